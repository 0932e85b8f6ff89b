"""The modes of :class:`FP8Config`: measuring and quantizing in one run, or in two with statistics in files between them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.formats.kv_cache import KVScales
from neural_compressor.schemes import OpKey, OpScheme, Plan
from neural_compressor.torch.accelerator import follow_inputs, target_device
from neural_compressor.torch.executor import Execution
from neural_compressor.torch.methods.measurements import (
    MeasurementFiles,
    Measuring,
    Range,
    measured_caches,
    measured_ranges,
    model_digest,
    read_measurements,
    write_measurements,
)
from neural_compressor.torch.methods.ranges import Ranges
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.kv_cache import (
    attach_kv_scales,
    kv_scales_for,
    observing_caches,
    require_attentions,
)
from neural_compressor.torch.quantization.config import AutoRoundConfig, FP8Config, StaticQuantConfig

logger = logging.getLogger("neural_compressor")
_METHOD_FIELDS = ("fp8_config", "scale_method", "scale_params", "device_for_scales")


class FP8Run:
    """What an :class:`FP8Config` asks of files while a plan is prepared and carried out.

    ``queries`` has queries, keys and values rounded, whatever the configuration says of a cache, if there is one.
    """

    def __init__(self, model: nn.Module, config: FP8Config | None, plan: Plan, queries: bool = False) -> None:
        self._has_device = config is not None
        config = config or FP8Config()
        rank = config.local_rank if config.global_rank is None else config.global_rank
        if config.world_size is None and rank is not None:
            field = "local_rank" if config.global_rank is None else "global_rank"
            raise ConfigError(
                f"FP8Config.{field}: got {rank} without a world_size, expected both: a rank is one of so many processes"
            )
        if config.world_size is not None and not config.seperate_measure_files:
            raise ConfigError(
                "FP8Config.seperate_measure_files: got False with a world_size: ranks write a file each, and QUANTIZE "
                "merges them; leave it at True"
            )
        self.config, self._model, self._plan, self._queries = config, model, plan, queries
        self._has_caches = config.kv_cache or queries
        self.files = MeasurementFiles(
            config.dump_stats_path,
            config.observer,
            config.measure_exclude,
            config.calibration_sample_interval,
            rank,
            config.world_size,
        )
        self._measured, self._digest = "", model_digest(model)
        self._ranges: Mapping[OpKey, list[Range]] = {}
        self._kv_scales: dict[str, KVScales] = {}
        self._caches: Mapping[str, Sequence[torch.Tensor]] = {}
        self._observing = ExitStack()
        self._measuring: Measuring | None = None
        self.runs = 0
        if self._has_caches:
            require_attentions(model)

    def place(self) -> None:
        """Move the model to the device that ``INC_TARGET_DEVICE`` names; one that is not there is an error."""
        if self._has_device and (device := target_device()) is not None:
            self._model.to(device)

    def _follow(self, execution: Execution) -> None:
        """Let a model on the CPU go where its calibration data is."""

        def moved(device: torch.device) -> None:
            if execution.survey is not None:  # whose copy shares the parameters, not the buffers
                execution.survey.model.to(device)

        if execution.needs_data or self.sees_data:
            self._observing.callback(follow_inputs(self._model, moved))

    @property
    def sees_data(self) -> bool:
        """Whether it looks at what runs through the model, for files or for the scales of caches."""
        return self.config.writes_statistics or (self.config.measure and self._has_caches)

    def begin(self, execution: Execution) -> None:
        """Start of calibration, when ``execution`` listens: statistics for files and of caches."""
        if self.sees_data:
            self._observing.callback(self._model.register_forward_pre_hook(self._count).remove)
        if self.config.measure and self._has_caches:
            self._caches = self._observing.enter_context(observing_caches(self._model, self._queries))
        if self.config.writes_statistics:
            self._measuring = Measuring(self._model, self._plan, self.files, self._caches)
            self._measuring.start()
        self._follow(execution)

    def _count(self, *call: Any) -> None:
        self.runs += 1

    def stop(self) -> None:
        """End of calibration, before that of the execution, which began first; statistics are written."""
        self._observing.close()
        if self._measuring is not None:
            file, self._measuring = self._measuring.finish(), None
            logger.info("statistics are in %s", file)

    def abandon(self) -> None:
        """End of a calibration that failed: nothing is written."""
        self._observing.close()
        if self._measuring is not None:
            self._measuring.stop()
            self._measuring = None

    def attach_caches(self, model: nn.Module) -> None:
        """Have the attentions of the quantized model round keys and values, where the configuration asks for it."""
        if self._has_caches:
            attach_kv_scales(model, self._kv_scales)

    def settle_caches(self) -> None:
        """Find the scales of keys and values before the model is changed."""
        if self._has_caches:
            found = self._caches if self.config.measure else measured_caches(self.files, self._model)
            self._kv_scales = kv_scales_for(self._model, found, self._queries)

    def ranges(self) -> Ranges | None:
        """What earlier runs measured; None where this one does."""
        if self.config.mode in ("QUANTIZE", "LOAD") and self.config.needs_ranges:
            self._ranges = self._scaled() if self.config.mode == "LOAD" else self._found()
            return Ranges.given(self._plan, self._ranges)
        return None

    def _found(self) -> Mapping[OpKey, list[Range]]:
        found, self._measured = measured_ranges(self.files, self._model, self._plan)
        if not self.config.recalc_scales and self.files.scales.exists():
            stored = read_measurements(self.files.scales, self._model, "quantize with recalc_scales=True")
            is_same = stored["measured"] == self._measured and stored["scale_method"] == self._method
            if is_same and all(name in stored["ops"] for name, _ in self._static):
                return self._scaled()
        return self._complete(found, "statistics", self.files.own)

    @property
    def _static(self) -> list[OpKey]:
        """The ops of the plan that need ranges."""
        return [key for key, op in self._plan.items() if op.activation is not None and op.mode == "static"]

    def _complete(self, found: Mapping[OpKey, list[Range]], what: str, file: Path) -> Mapping[OpKey, list[Range]]:
        wanting = [key for key in self._static if key not in found]
        if wanting and not self.config.ignore_modules_wo_measures:
            raise FormatError(
                f"op {wanting[0][0]!r} ({wanting[0][1]}) and {len(wanting) - 1} others have no {what} in {file}: data did "
                "not reach them, or a list left them out of that run; put them on the blocklist, or leave them in float "
                "with ignore_modules_wo_measures=True"
            )
        return found

    def _scaled(self) -> Mapping[OpKey, list[Range]]:
        """The ranges that give the scales of an earlier run."""
        stored = read_measurements(self.files.scales, self._model, "run convert with mode='QUANTIZE' first")
        if stored["scale_method"] != self._method:
            triples = zip(_METHOD_FIELDS, stored["scale_method"], self._method, strict=False)
            differing = [f"{field} {one!r}, and here it is {other!r}" for field, one, other in triples if one != other]
            told = "; ".join(differing) or "other rules (set_local)"
            raise FormatError(f"{self.files.scales} has scales of {told}: quantize with mode='QUANTIZE'")
        found: dict[OpKey, list[Range]] = {}
        for key, op in self._plan.items():
            scales = stored["ops"].get(key[0])
            if scales and op.activation is not None:
                found[key] = [_range_of(each, op) for each in scales]
        return self._complete(found, "scales", self.files.scales)

    @property
    def _method(self) -> list[Any]:
        config = self.config
        rules = [[rule.selector.to_plain(), rule.config.identity] for rule in config.local]
        own = [config.fp8_config, config.scale_method, config.scale_params, config.device_for_scales]
        return [*own, rules] if rules else own

    def keep_scales(self, model: nn.Module) -> None:
        """Write the scales of inputs for later runs (LOAD), and the ranges of those that a rule has in integers."""
        if self.config.mode != "QUANTIZE" or not self._measured:
            return
        ops: dict[str, Sequence[float | Range]] = {}
        for name, module in model.named_modules():
            if isinstance(module, QuantModule):
                found = [module.qparams(each) for each in module.inputs]
                ops[name] = [float(q.scale) for q in found if q is not None and q.scale is not None]
        for key, op in self._plan.items():
            if op.activation is not None and op.activation.dtype.is_integer and key in self._ranges:
                ops[key[0]] = self._ranges[key]
        write_measurements(
            self.files.scales,
            {
                "complete": True,
                "model": self._digest,
                "measured": self._measured,
                "scale_method": self._method,
                "ops": {name: scales for name, scales in ops.items() if scales},
            },
        )


def _range_of(stored: float | Sequence[float], op: OpScheme) -> Range:
    """The range that a scheme finds a ``stored`` scale for: scales are rounded up to what they are already."""
    if not isinstance(stored, float | int):
        low, high = stored
        return low, high
    scheme = op.activation
    assert scheme is not None
    kind = scheme.dtype
    magnitude = stored * (kind.peak if scheme.scaling is None else scheme.scaling.full_scale(kind))
    return -magnitude, magnitude


def from_files(config: Any) -> Any:
    """``config`` where no data can run: what is of mode AUTO and says where statistics are reads them, as QUANTIZE does."""
    if not isinstance(config, Composition) or not any(map(_names_files, config.parts)):
        return config
    reading = config.model_copy(deep=True)
    for part in reading.parts:
        if _names_files(part):
            part.mode = "QUANTIZE"
    return reading


def _names_files(part: Composition) -> bool:
    return isinstance(part, FP8Config) and part.mode == "AUTO" and bool(part.changed("dump_stats_path"))


def fp8_run(model: nn.Module, config: Composition, plan: Plan) -> FP8Run | None:
    """The files that ``config`` speaks of, if any, and the scales of attentions."""
    found = [part for part in config.parts if isinstance(part, FP8Config)]
    queries = any(isinstance(part, AutoRoundConfig) and part.static_attention_dtype for part in config.parts)
    apart = next((part for part in found if not part.quantize), None)
    if apart is not None and len(config.parts) > 1:
        raise ConfigError(
            f"FP8Config.mode: {apart.mode!r} is a run of its own, and other configurations are added to it; leave these out"
        )
    reading = next((part for part in found if not part.measure), None)
    if reading is not None:
        _check_reading(reading.mode, config, "AutoRoundConfig.static_attention_dtype" if queries else "")
    if queries and any(step.name == "rotate" for step in plan.passes):
        raise ConfigError(
            "AutoRoundConfig.static_attention_dtype: hadamard='folded' turns the values of attentions after their scales "
            "were taken; leave one out"
        )
    return FP8Run(model, found[0] if found else None, plan, queries) if found or queries else None


def _check_reading(mode: str, config: Composition, beside: str) -> None:
    """Refuse what the files of an earlier run do not have."""
    if beside or len([part for part in config.parts if isinstance(part, FP8Config)]) > 1:
        raise ConfigError(
            f"FP8Config.mode: {mode!r} reads files of one FP8Config alone, and {beside or 'another FP8Config'} is added to "
            "it; take AUTO, or say what is different of some ops with set_local"
        )
    for each in config.every:
        if isinstance(each, StaticQuantConfig) and "act_algo" in each.model_fields_set and each.act_algo != "minmax":
            raise ConfigError(
                f"{type(each).__name__}.act_algo: got {each.act_algo!r}, and files of mode {mode!r} have the smallest and "
                "largest values alone; leave it out, or take AUTO"
            )
