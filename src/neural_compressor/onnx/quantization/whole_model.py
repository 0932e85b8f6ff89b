"""Settings that hold for a whole model, from the configurations that say something of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.quantization.config.fields import Smoothing
from neural_compressor.onnx.quantization.config.integer import StaticQuantConfig
from neural_compressor.onnx.quantization.config.onnx_config import OnnxConfig


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


def reader_of(configs: Iterable[OnnxConfig], given: Any) -> Any:
    """The calibration data reader of the configurations, or else the one ``given``."""
    own = {id(config.reader): config.reader for config in configs if config.reader is not None}
    if len(own) > 1:
        raise ConfigError(
            "the configurations have several calibration data readers, and a model is calibrated with one"
        )
    return next(iter(own.values()), given)


def smoothing_of(configs: Iterable[StaticQuantConfig]) -> Smoothing | None:
    """What is done to outliers first: the one thing that the configurations say, if any."""
    found = {config.smoothing for config in configs} - {None}
    if len(found) > 1:
        raise ConfigError(
            f"outliers are smoothed once for the whole model, and the configurations say {found}; choose one"
        )
    return next(iter(found), None)
