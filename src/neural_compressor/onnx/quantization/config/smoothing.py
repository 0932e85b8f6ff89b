"""The settings of SmoothQuant: how outliers of activations move into the weights before quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neural_compressor.config.numbers import number_between
from neural_compressor.config.words import as_list
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.linear_ops import LINEAR_TYPES
from neural_compressor.registry import close_matches


@dataclass(frozen=True)
class Smoothing:
    """What smoothing is to do. Of several ``alpha`` the one with the least loss is taken for each group of nodes."""

    alpha: float | str | tuple[float | str, ...] = 0.5
    folding: bool = True
    op_types: tuple[str, ...] = LINEAR_TYPES
    calib_iter: int = 100
    scales_per_op: bool = True


def smoothing_alpha(value: Any) -> float | str:
    """Validate how far outliers move: from 0 to 1, or ``"auto"``."""
    return "auto" if isinstance(value, str) and value == "auto" else number_between(0, 1)(value)


def smoothed_types(value: Any) -> tuple[str, ...]:
    """Validate the types of node to smooth."""
    found = tuple(as_list(value))
    for kind in found:
        if kind not in LINEAR_TYPES:
            raise ConfigError(f"got {kind!r}; {close_matches(str(kind), LINEAR_TYPES)}")
    if not found:
        raise ConfigError(f"got an empty list, expected some of {', '.join(LINEAR_TYPES)}")
    return found
