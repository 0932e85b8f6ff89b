"""Configurations of quantization after training, of quantization-aware training and of mixed precision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.criteria import AccuracyCriterion, TuningCriterion
from neural_compressor.config.op_rule import rule_dict
from neural_compressor.config.process_options import usual_seed
from neural_compressor.config.recipes import Recipes, known_recipes
from neural_compressor.config.validators import (
    APPROACHES,
    BACKENDS,
    DEVICES,
    DOMAINS,
    QUANT_FORMATS,
    ExcludedPrecisions,
    Flag,
    Names,
    Seed,
    as_list,
    at_least,
    flag,
    optional,
    quant_level,
    text,
    word,
)
from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of

QuantLevel = Annotated[str | int, BeforeValidator(quant_level)]
ReduceRange = Annotated[bool, BeforeValidator(lambda value: False if value is None else flag(value))]


class _RuleConfig(ConfigModel):
    """The fields that all three share: where a model runs, rules about its ops, the promise and how to search."""

    device: Annotated[str, BeforeValidator(word(DEVICES))] = "cpu"
    backend: Annotated[str, BeforeValidator(word(BACKENDS))] = "default"
    inputs: Names = Field(default_factory=list)
    outputs: Names = Field(default_factory=list)
    op_type_dict: Annotated[dict[str, Any], BeforeValidator(rule_dict("op_type_dict"))] = Field(default_factory=dict)
    op_name_dict: Annotated[dict[str, Any], BeforeValidator(rule_dict("op_name_dict"))] = Field(default_factory=dict)
    excluded_precisions: ExcludedPrecisions = ()
    quant_level: QuantLevel = "auto"
    accuracy_criterion: AccuracyCriterion = Field(default_factory=AccuracyCriterion)
    tuning_criterion: TuningCriterion = Field(default_factory=TuningCriterion)


def _sampling_sizes(value: Any) -> list[int]:
    sizes = as_list(value)
    if not sizes:
        raise ConfigError("got an empty list, expected at least one number of samples, such as 100")
    return list(dict.fromkeys(at_least(1)(size) for size in sizes))


def _yaml_file(value: Any) -> Path | None:
    if value is None:
        return None
    path = path_of(value)
    if not path.is_file():
        raise ConfigError(f"there is no file {str(path)!r}; expected the path of a framework YAML")
    return path


class PostTrainingQuantConfig(_RuleConfig):
    """How to quantize a trained model: approach, rules about ops, the promise to keep and how to search.

    >>> PostTrainingQuantConfig(approach="dynamic", op_name_dict={"head": {"weight": {"dtype": "fp32"}}}).approach
    'dynamic'
    >>> PostTrainingQuantConfig(approach="statc")
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: PostTrainingQuantConfig.approach: got 'statc'; did you mean 'static'? ...

    ``framework_yaml`` is a capability YAML of the user's own, laid over the built-in one.
    ``diagnosis`` asks for what the report of every run has: errors and times of ops.
    ``seed`` makes the search repeatable. ``ni_workload_name`` names files of a tool that is not here: none is written.
    """

    domain: Annotated[str, BeforeValidator(word(DOMAINS))] = "auto"
    recipes: Annotated[dict[str, Any], PlainValidator(known_recipes)] = Field(default_factory=Recipes)
    quant_format: Annotated[str, BeforeValidator(word(QUANT_FORMATS))] = "default"
    approach: Annotated[str, BeforeValidator(word(APPROACHES))] = "static"
    calibration_sampling_size: Annotated[list[int], BeforeValidator(_sampling_sizes)] = Field(default=[100])
    reduce_range: ReduceRange = False
    example_inputs: Any = None
    diagnosis: Flag = False
    ni_workload_name: Annotated[Literal["quantization"], PlainValidator(word(("quantization",)))] = "quantization"
    framework_yaml: Annotated[Path | None, BeforeValidator(_yaml_file)] = None
    seed: Seed = Field(default_factory=usual_seed)


class QuantizationAwareTrainingConfig(_RuleConfig):
    """How to quantize a model while it is trained.

    With ``learned_step_size`` scales are trained like weights (LSQ), which pays below 8 bits. From epoch ``freeze_after``
    on, counted from 0 by ``callbacks.on_epoch_begin``, the ranges of activations stay as they are.

    >>> QuantizationAwareTrainingConfig(reduce_range=True).reduce_range
    True
    """

    reduce_range: ReduceRange = False
    learned_step_size: Flag = False
    freeze_after: Annotated[int | None, BeforeValidator(optional(at_least(1)))] = None
    model_name: Annotated[str, BeforeValidator(text)] = ""


def _mixed_precisions(value: Any) -> tuple[str, ...]:
    known = ("bf16", "fp16")
    found = [word(known)(name) for name in as_list(value)]
    if not found:
        raise ConfigError(f"got an empty list; known: {', '.join(known)}")
    return tuple(dict.fromkeys(found))


class MixedPrecisionConfig(_RuleConfig):
    """How to run parts of a model in bf16 or fp16.

    ``precision`` is another word for ``precisions``.

    >>> MixedPrecisionConfig(precisions=["fp16", "bf16"]).precisions
    ('fp16', 'bf16')
    """

    precisions: Annotated[tuple[str, ...], BeforeValidator(_mixed_precisions)] = ("bf16",)
    example_inputs: Any = None

    def __init__(self, **values: Any) -> None:
        if "precision" in values:
            if "precisions" in values:
                raise ConfigError("MixedPrecisionConfig got the precisions twice, as 'precision' and as 'precisions'")
            values["precisions"] = values.pop("precision")
        super().__init__(**values)
