"""What a user asks of quantization after training, of quantization-aware training and of mixed precision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.criteria import AccuracyCriterion, TuningCriterion
from neural_compressor.config.fields import (
    Backend,
    Device,
    ExcludedPrecisions,
    Flag,
    Names,
    OpNameRules,
    OpTypeRules,
    QuantLevel,
    ReduceRange,
    Seed,
    Text,
    mixed_precisions,
)
from neural_compressor.config.recipes import known_recipes
from neural_compressor.config.validators import APPROACHES, DOMAINS, QUANT_FORMATS, as_list, at_least, word
from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of


class _RuleConfig(ConfigModel):
    """The fields that all three share: where a model runs, rules about its ops, the promise and how to search."""

    device: Device = "cpu"
    backend: Backend = "default"
    inputs: Names = Field(default_factory=list)
    outputs: Names = Field(default_factory=list)
    op_type_dict: OpTypeRules = Field(default_factory=dict)
    op_name_dict: OpNameRules = Field(default_factory=dict)
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
    ``seed`` makes the search repeatable.
    """

    domain: Annotated[str, BeforeValidator(word(DOMAINS))] = "auto"
    recipes: Annotated[dict[str, Any], BeforeValidator(known_recipes)] = Field(default_factory=dict)
    quant_format: Annotated[str, BeforeValidator(word(QUANT_FORMATS))] = "default"
    approach: Annotated[str, BeforeValidator(word(APPROACHES))] = "static"
    calibration_sampling_size: Annotated[list[int], BeforeValidator(_sampling_sizes)] = Field(default=[100])
    reduce_range: ReduceRange = False
    example_inputs: Any = None
    diagnosis: Flag = False
    framework_yaml: Annotated[Path | None, BeforeValidator(_yaml_file)] = None
    seed: Seed = 42


class QuantizationAwareTrainingConfig(_RuleConfig):
    """How to quantize a model while it is trained.

    >>> QuantizationAwareTrainingConfig(reduce_range=True).reduce_range
    True
    """

    reduce_range: ReduceRange = False
    model_name: Text = ""


class MixedPrecisionConfig(_RuleConfig):
    """How to run parts of a model in bf16 or fp16.

    >>> MixedPrecisionConfig(precisions=["fp16", "bf16"]).precisions
    ('fp16', 'bf16')
    """

    precisions: Annotated[tuple[str, ...], BeforeValidator(mixed_precisions)] = ("bf16",)
    example_inputs: Any = None
