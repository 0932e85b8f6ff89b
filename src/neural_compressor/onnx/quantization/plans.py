"""Settings of configurations that hold for a whole model: passes, calibration data, provider and form of the graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from neural_compressor.config.composition import Composition
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.onnx.quantization.config import OnnxConfig
from neural_compressor.onnx.quantization.config.fields import EXTRA_OPTIONS
from neural_compressor.onnx.quantization.quant_types import QuantFormat
from neural_compressor.onnx.runtime.capability import OnnxQuery, ProviderCapability, runs_in
from neural_compressor.onnx.runtime.providers import choose_target
from neural_compressor.schemes import OpKey, OpScheme, Pass, Plan

logger = logging.getLogger("neural_compressor")


def optimize_pass(config: Composition, level: Any) -> Pass:
    """How the graph is simplified first.

    Where no ``level`` is said ONNX Runtime does so for static quantization, which gains from constants computed
    beforehand, as far as nodes keep their names; other models are tidied only.
    """
    name = None if level is None else str(getattr(level, "name", level))
    if any(getattr(each, "approach", "") == "static" for each in config.every):
        return Pass("optimize", {} if name is None else {"level": name})
    simplify = {"simplify": "tidy" if name is None else "none"}
    return Pass("optimize", {"level": name or "DISABLE_ALL", **simplify})


def make_plan(
    ops: Mapping[OpKey, OpScheme],
    optimize: Pass,
    configs: Mapping[str, Sequence[Any]],
    capabilities: Mapping[str, ProviderCapability],
    named: Collection[str],
) -> Plan:
    """The plan of these schemes, with the passes that the configurations ask for and the size of the calibration data."""
    passes, size = [optimize], Plan().calib_sampling_size
    if static := configs.get("static"):
        size = setting(static, "calibration_sampling_size")
        meant = sorted(name for name, _ in ops if name in named)
        passes += _static_passes(static, capabilities["static"].quant_format, meant)
    if weights := configs.get("weight_only"):
        form, level = capabilities["weight_only"].quant_format, setting(weights, "accuracy_level")
        passes.append(_pass("weight_layout", quant_format=form, accuracy_level=level))
    return Plan(ops, size, passes=passes)


def _static_passes(configs: Sequence[Any], quant_format: str, named: Collection[str]) -> list[Pass]:
    def extra(name: str) -> Any:
        return setting(configs, f"extra_options[{name!r}]", lambda config: config.option(name))

    smoothing = {config.smoothing for config in configs} - {None}
    if len(smoothing) > 1:
        raise ConfigError(
            f"outliers are smoothed once for the whole model, and the configurations say {smoothing}; choose one"
        )
    found: list[Pass] = [*smoothing]
    if (correction := extra("BiasCorrection")) is not False:
        found.append(_pass("correct_biases", required=correction))
    if (percentile := extra("CalibPercentile")) != EXTRA_OPTIONS["CalibPercentile"][0]:
        found.append(Pass("calibrate", {"percentile": percentile}))
    layout = _pass(
        "qdq_layout",
        quant_format=quant_format,
        add_qdq_pair_to_weight=extra("AddQDQPairToWeight"),
        dedicated_qdq_pair=extra("DedicatedQDQPair"),
        optypes_to_exclude_output_quant=extra("OpTypesToExcludeOutputQuantization"),
        named=named,
    )
    return [*found, layout]


def _pass(name: str, **options: Any) -> Pass:
    """A pass with those options that say something."""
    return Pass(name, {key: value for key, value in options.items() if value})


def setting(configs: Iterable[OnnxConfig], name: str, get: Callable[[Any], Any] | None = None) -> Any:
    """What the configurations that say something other than the default say; the default where none does.

    Two that say different things are an error. ``get`` reads the setting where it is no field called ``name``.
    """
    read: Callable[[Any], Any] = get or (lambda config: getattr(config, name))
    every: list[Any] = list(configs)
    said = [value for config in every if (value := read(config)) != read(type(config)())]
    if any(value != said[0] for value in said[1:]):
        values = ", ".join(dict.fromkeys(repr(value) for value in said))
        raise ConfigError(f"{name} holds for the whole model, and its configurations say {values}; choose one")
    return said[0] if said else read(every[0])


def find_reader(configs: Sequence[OnnxConfig], given: Any) -> Any:
    """The calibration data reader of the configurations of one mode, or else the one ``given``."""
    own = {id(config.reader): config.reader for config in configs if config.reader is not None}
    if len(own) > 1:
        raise ConfigError(
            "the configurations have several calibration data readers, and a model is calibrated with one"
        )
    found = next(iter(own.values()), given)
    waiting = [type(config).__name__ for config in configs if getattr(config, "needs_calibration", False)]
    if waiting and found is None:
        raise CalibrationError(
            f"{', '.join(dict.fromkeys(waiting))} needs calibration data; give the configuration, or the call, a "
            "calibration_data_reader"
        )
    return found


def find_capability(configs: Sequence[Any], mode: str, graph_only: bool) -> ProviderCapability:
    """What the configurations of one mode are for.

    The default form of model gives way to the provider's own where it runs nothing in that form.
    """
    name = setting(configs, "providers")[0] if mode == "weight_only" else setting(configs, "execution_provider")
    target = choose_target(name, graph_only=graph_only)
    provider, own = target.provider.name, OnnxQuery(target.provider.name)
    if mode == "dynamic":
        return ProviderCapability(target, own)
    wanted: QuantFormat = setting(configs, "quant_format")
    if wanted is QuantFormat.QOperator and not runs_in(provider, wanted.name, mode):
        logger.warning("%s takes no %s models: the model is %s", provider, wanted, own.quant_format)
        return ProviderCapability(target, own)
    return ProviderCapability(target, OnnxQuery(provider, wanted.name))
