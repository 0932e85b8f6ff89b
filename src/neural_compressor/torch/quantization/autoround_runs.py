"""Runs of :class:`AutoRoundConfig`: the data that it names, the device, and the files that the result is written to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import OpScheme, Plan
from neural_compressor.torch.accelerator import device_named
from neural_compressor.torch.batches import feed, on_device_of
from neural_compressor.torch.files.gguf import check_gguf
from neural_compressor.torch.files.huggingface_writer import check_checkpoint
from neural_compressor.torch.modules.weight_only import hold_scales_in
from neural_compressor.torch.modules.weighted import FLOATS
from neural_compressor.torch.quantization.config.autoround import AutoRoundConfig
from neural_compressor.torch.quantization.config.autoround_names import EXPORTS, RUN_FIELDS
from neural_compressor.torch.quantization.config.autoround_schemes import scheme_fields
from neural_compressor.torch.quantization.saving import save
from neural_compressor.torch.quantization.texts import calls_from
from neural_compressor.tuning.identity import identity

logger = logging.getLogger("neural_compressor")
USUAL_FOLDER = "temp_auto_round"


def runs_of(config: Any) -> AutoRoundConfig | None:
    """The part of ``config`` that speaks of a run; what a rule for some layers says of one is refused."""
    parts = config.parts if isinstance(config, Composition) else ()
    for rule in (rule for part in parts for rule in part.local if isinstance(rule.config, AutoRoundConfig)):
        for name in rule.config.changed(*RUN_FIELDS):
            raise ConfigError(
                f"AutoRoundConfig.{name}: the rule for {rule.selector} speaks of a run, which is over the whole model; say "
                "it in the outer configuration"
            )
    found = [part for part in parts if isinstance(part, AutoRoundConfig) and part.changed(*RUN_FIELDS)]
    if len(found) > 1:
        raise ConfigError("AutoRoundConfig: two parts of a sum name data or files of the whole model; say it in one")
    return found[0] if found else None


@dataclass(frozen=True)
class NamedData:
    """Runs a model on the data that ``part`` names."""

    part: AutoRoundConfig

    @classmethod
    def of(cls, config: Any) -> NamedData | None:
        """That of ``config``; None where it names none."""
        part = runs_of(config)
        return None if part is None or part.dataset is None else cls(part)

    @property
    def known_by(self) -> tuple[Any, ...]:
        """What tells it from other data, in a journal too."""
        return self.part.dataset, self.part.tokenizer, self.part.nsamples, self.part.seqlen

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        for batch in named_batches(self.part, model):
            feed(model, batch)


def target_of(config: Any, model: nn.Module) -> torch.device | None:
    """Where ``config`` wants ``model``; None where it is there already, or nothing is said."""
    part = runs_of(config)
    if part is None or part.device_map is None:
        return None
    try:
        device = device_named(part.device_map)
    except ConfigError as error:
        raise ConfigError(f"AutoRoundConfig.device_map: {error}") from None
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_meta for tensor in tensors):
        if device.type == "cpu":  # where weights are read to
            return None
        raise ConfigError(
            f"AutoRoundConfig.device_map: got {part.device_map!r}, and weights of a model without values (meta device) are "
            "read to the CPU; leave it out, and move the result"
        )
    there = {tensor.device for tensor in tensors}
    is_there = {each.type for each in there} == {device.type} and (device.index is None or there == {device})
    return None if is_there or not there else device


def refuse_both(config: Any, given: Any, name: str) -> None:
    """Refuse calibration ``given`` to a function as ``name`` beside data that ``config`` names."""
    if given is not None and getattr(config, "dataset", None) is not None:
        raise ConfigError(f"{name} and {type(config).__name__}.dataset both give data; pass one of them")


def data_for_all(configs: Iterable[Any], run_fn: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """What calibrates every one of ``configs``: ``run_fn``, or the data that some of them name, which has to be the same."""
    named = list(filter(None, map(NamedData.of, configs)))
    for data in named:
        refuse_both(data.part, run_fn, "run_fn")
    if len({identity(data) for data in named}) > 1:
        raise ConfigError(
            "autotune: all configurations are calibrated on the same data, and those of AutoRoundConfig differ in dataset, "
            "tokenizer, nsamples or seqlen; say the same in all, or give a run_fn and no dataset"
        )
    return run_fn or next(iter(named), None)


def named_batches(part: AutoRoundConfig, model: nn.Module) -> Iterator[Any]:
    """The data that ``part`` names, as batches for the model."""
    folder = getattr(getattr(model, "config", None), "_name_or_path", None)
    sizes = {"nsamples": part.nsamples, "seqlen": part.seqlen, "batch_size": part.batch_size}
    for args, kwargs in calls_from(part.dataset, part.tokenizer, folder, **sizes):
        yield on_device_of(model, kwargs or args[0])


@dataclass(frozen=True)
class Export:
    """What is done to the quantized model: the type of its scales, and files that are written of it."""

    part: AutoRoundConfig

    @classmethod
    def of(cls, config: Any) -> Export | None:
        """What ``config`` asks for; None where that is nothing."""
        part = runs_of(config)
        if part is None:
            return None
        in_files = part.static_kv_dtype is not None and part.static_attention_dtype is None
        if in_files and not part.changed("export_format", "output_dir"):
            raise ConfigError("AutoRoundConfig.static_kv_dtype: scales are written into files; give output_dir too")
        if part.scale_dtype is not None:
            _check_scales(part)
        if not part.changed("export_format", "output_dir", "scale_dtype"):
            return None
        if in_files and part.dataset is None:
            raise ConfigError("AutoRoundConfig.static_kv_dtype: scales are found on data; give dataset too")
        return cls(part)

    @property
    def _name(self) -> str:
        return self.part.export_format or "compressed-tensors"

    @property
    def _folder(self) -> str:
        return self.part.output_dir or USUAL_FOLDER

    @property
    def _writes(self) -> bool:
        return bool(self.part.changed("export_format", "output_dir"))

    @property
    def _of_attention(self) -> list[str]:
        """The fields that ask for scales of attentions."""
        return list(self.part.changed("static_attention_dtype", "static_kv_dtype"))

    def _options(self, plan: Plan) -> Mapping[str, Any]:
        """What ``save`` is told: GPTQ's tensors, as which ``auto_round`` is written, are those of integer weights alone."""
        if self._name == "auto_round" and not all(_is_integer_weight(op) for op in plan.values() if not op.is_float):
            return EXPORTS["llm_compressor"]
        return EXPORTS[self._name]

    def check(self, model: nn.Module, plan: Plan) -> None:
        """Refuse what cannot be written of ``model``, as far as it is known before it is quantized."""
        if not self._writes:
            return
        with_cache, layout = bool(self._of_attention), self._options(plan).get("layout")
        if layout is not None:
            check_checkpoint(model, plan, self._folder, layout, with_cache, self.part.dataset is not None)
            return
        if with_cache:
            raise ConfigError(
                f"AutoRoundConfig.{self._of_attention[0]}: a GGUF file has no scales of a cache; leave it out"
            )
        check_gguf(model, self._folder)

    def finish(self, model: nn.Module) -> None:
        """Round scales, write ``model``; where that fails, a warning says why, as the model is not to be lost for it."""
        if self.part.scale_dtype is not None:
            try:
                hold_scales_in(model, FLOATS[self.part.scale_dtype], method=self.part.algorithm)
            except QuantizationError as error:
                logger.warning("not all scales are in %s: %s", self.part.scale_dtype, error)
        if not self._writes:
            return
        try:
            self._write(model)
        except Exception as error:  # noqa: BLE001  training may have taken hours
            logger.warning(
                "the quantized model is not in %s: %s: %s. Write it with model.save(folder, format=..., layout=...)",
                self._folder,
                type(error).__name__,
                error,
            )

    def _write(self, model: nn.Module) -> None:
        name, folder = self._name, self._folder
        plan: Plan = model.quantization.plan  # type: ignore[assignment, union-attr]
        options: dict[str, Any] = {"format": "huggingface", **self._options(plan)}
        tokenizer = self.part.tokenizer
        if options["format"] == "gguf":
            options["tokenizer"] = tokenizer
        if self._of_attention == ["static_kv_dtype"]:  # otherwise the model has scales
            options["kv_cache"] = list(named_batches(self.part, model))
        if self.part.dataset is not None and any(_has_tensor_scale(op) for op in plan.values()):
            options["input_data"] = list(named_batches(self.part, model))
        if name == "auto_round":
            logger.warning("export_format 'auto_round' is written as %s", options["layout"])
        save(model, folder, **options)
        if options["format"] == "huggingface" and hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(folder)
        logger.info("the quantized model is in %s (%s)", folder, name)


def export_of_all(configs: Iterable[Any]) -> Export | None:
    """What is written of the best of ``configs``, which those that speak of files say alike."""
    found = list(filter(None, map(Export.of, configs)))
    if any(each.part.scale_dtype is not None for each in found):
        raise ConfigError(
            "autotune: scale_dtype is of convert, and what was evaluated has scales in float32; leave it out"
        )
    told = {(each.part.export_format, each.part.output_dir, each.part.static_kv_dtype) for each in found}
    if len(told) > 1:
        raise ConfigError(
            "autotune: one model is written, and configurations differ in export_format, output_dir or static_kv_dtype; say "
            "the same in all, or save the model that comes back with model.save(...)"
        )
    return next(iter(found), None)


def _is_integer_weight(op: OpScheme) -> bool:
    return op.activation is None and op.weight is not None and op.weight.dtype.is_integer


def _has_tensor_scale(op: OpScheme) -> bool:
    """Whether inputs, rounded as they come, have a scale of the whole tensor, which files want beforehand."""
    return op.mode == "dynamic" and op.activation is not None and op.activation.dtype.name.startswith("nvfp4")


def _check_scales(part: AutoRoundConfig) -> None:
    """Refuse a type of scales where they are none of floats, or kernels want them in float32."""
    of_rules = [rule.config for rule in part.local if isinstance(rule.config, AutoRoundConfig)]
    activations = {each.act_bits for each in (part, *of_rules)}
    activations |= {scheme_fields(option)["act_bits"] for option in part.options or ()}
    if min(activations) < 16 or any(each.super_bits is not None for each in (part, *of_rules)):
        raise ConfigError(
            f"AutoRoundConfig.scale_dtype: got {part.scale_dtype!r}, which is for float scales of weights alone; leave out "
            "super_bits, and schemes with activations in few bits"
        )
