"""What is to be done to each layer: an algorithm, a scheme and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from neural_compressor.algorithms import (
    ALGORITHMS,
    FloatZeroArray,
    InputStatistics,
    LayerResult,
    Rotation,
    quantize_parameter,
)
from neural_compressor.schemes import TensorScheme
from neural_compressor.torch.nn.weight_only import is_conv1d

BLOCKWISE = "autoround"
"""The algorithm that works on a whole block; all others work on layers that share an input."""


@dataclass(frozen=True)
class LayerJob:
    """How one layer is quantized: ``options`` are the algorithm's own.

    ``importance`` weighs the search of scales with calibration data; ``hadamard`` rotates the inputs; ``folding`` lets a
    scale of the inputs go into the normalisation before, or leaves it out; ``scales`` and ``zeros`` say how the scales
    and float zero points are themselves rounded.
    """

    algorithm: str
    scheme: TensorScheme
    options: Mapping[str, Any] = field(default_factory=dict)
    importance: bool = False
    hadamard: bool = False
    folding: bool = False
    scales: TensorScheme | None = None
    zeros: TensorScheme | None = None

    @property
    def needs_data(self) -> bool:
        """Whether the layer's inputs must have been seen."""
        return self.algorithm == BLOCKWISE or self.importance or ALGORITHMS[self.algorithm].needs_statistics

    @property
    def kind(self) -> str:
        """Equal for layers that may be quantized as one."""
        return repr(self)

    def unscaled(self) -> LayerJob:
        """The same without a scale of the inputs."""
        if self.algorithm == "awq":
            return replace(self, options={**self.options, "auto_scale": False})
        return replace(self, algorithm="rtn", options={})

    def run(self, weight: torch.Tensor, statistics: InputStatistics | None) -> LayerResult:
        """The quantized ``weight`` (outputs, inputs)."""
        options = dict(self.options)
        if self.hadamard:
            options["rotation"] = Rotation(weight.shape[1], seed=0)
        result = ALGORITHMS[self.algorithm](weight, self.scheme, statistics, **options)
        array = result.array
        if self.scales is not None:
            array = replace(array, scale=_rounded(array.scale, self.scales))
        if self.zeros is not None and isinstance(array, FloatZeroArray):
            array = replace(array, zero=_rounded(array.zero, self.zeros))
        return replace(result, array=array)


def _rounded(values: Any, scheme: TensorScheme) -> Any:
    return quantize_parameter(values, scheme).dequantize().reshape(values.shape)


def matrix_of(layer: nn.Module) -> torch.Tensor:
    """The weight of a linear layer as (outputs, inputs)."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach().T if is_conv1d(layer) else weight.detach()
