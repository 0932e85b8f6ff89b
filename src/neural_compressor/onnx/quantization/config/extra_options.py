"""The further options of static and dynamic quantization, under the names ONNX Runtime's users know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neural_compressor.config.numbers import number_between
from neural_compressor.config.words import as_list, at_least, flag
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.quantization.config.smoothing import smoothed_types, smoothing_alpha
from neural_compressor.registry import close_matches


def _types(value: Any) -> list[str]:
    return [str(item) for item in as_list(value)]


def _alphas(value: Any) -> Any:
    return [smoothing_alpha(item) for item in value] if isinstance(value, list | tuple) else smoothing_alpha(value)


EXTRA_OPTIONS: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "ActivationSymmetric": (False, flag),
    "WeightSymmetric": (None, flag),
    "AddQDQPairToWeight": (False, flag),
    "DedicatedQDQPair": (False, flag),
    "OpTypesToExcludeOutputQuantization": ([], _types),
    "BiasCorrection": (None, flag),
    "CalibPercentile": (99.999, number_between(50, 100)),
    "SmoothQuant": (False, flag),
    "SmoothQuantAlpha": (0.5, _alphas),
    "SmoothQuantFolding": (True, flag),
    "SmoothQuantOpTypes": (None, smoothed_types),
    "SmoothQuantCalibIter": (100, at_least(1)),
    "SmoothQuantScalesPerOp": (True, flag),
}
"""Each option with its default and what admits a value."""
DYNAMIC_OPTIONS = ("WeightSymmetric",)
"""Those that mean something where ranges of activations are taken from each batch."""


def options_among(known: tuple[str, ...] = tuple(EXTRA_OPTIONS)) -> Callable[[Any], dict[str, Any]]:
    """A validator of a dict of the ``known`` options.

    >>> options_among()({"ActivationSymmetric": True})
    {'ActivationSymmetric': True}
    """

    def check(value: Any) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"got {value!r}, expected a dict of options; known: {', '.join(known)}")
        found = {}
        for name, given in value.items():
            if name not in known:
                raise ConfigError(f"has no option {name!r}; {close_matches(str(name), known)}")
            try:
                found[name] = EXTRA_OPTIONS[name][1](given)
            except ConfigError as error:
                raise ConfigError(f"option {name}: {error}") from None
        return found

    return check


def extra_option(options: Mapping[str, Any], name: str) -> Any:
    """What ``options`` say of ``name``, or its default."""
    return options.get(name, EXTRA_OPTIONS[name][0])
