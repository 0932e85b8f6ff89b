"""What is to be done to each layer: an algorithm, a scheme and options."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from neural_compressor.algorithms import (
    ALGORITHMS,
    AutoRoundOptions,
    InputStatistics,
    LayerResult,
    Rotation,
    double_quant,
)
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import TensorScheme
from neural_compressor.torch.methods.autoround.training import tune_layer
from neural_compressor.torch.modules.weight_only import is_conv1d
from neural_compressor.torch.structure.replay import UNLIMITED, CalibrationLimit

BLOCKWISE = "autoround"
"""The algorithm that trains a whole block; all others work on layers that share an input."""


@dataclass(frozen=True)
class LayerJob:
    """How one layer is quantized, its scales included: ``options`` are the algorithm's own.

    ``importance`` weighs the search of scales with calibration data; ``hadamard`` rotates the inputs; ``folding`` lets a
    scale of the inputs go into the normalisation before, or leaves it out. ``quantized_input`` says whether training takes
    the inputs that arrive behind quantized layers, or those of the float model. ``absorb`` names layers that share an input
    by the normalisation that takes up their scale, and ``limit`` is how much of the data is wanted.
    """

    algorithm: str
    scheme: TensorScheme
    options: Mapping[str, Any] = field(default_factory=dict)
    importance: bool = False
    hadamard: bool = False
    folding: bool = False
    quantized_input: bool = True
    absorb: Mapping[str, Sequence[str]] = field(default_factory=dict)
    limit: CalibrationLimit = UNLIMITED

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
        options = {name: value for name, value in self.options.items() if name == "full_range"}
        return replace(
            self, algorithm="rtn", options={**options, **({"search": "mse"} if self.options.get("clip") else {})}
        )

    def absorber(self, layers: Collection[str]) -> str | None:
        """The name of what takes up the scale of ``layers``, where :attr:`absorb` says so."""
        found = {norm: listed for norm, listed in self.absorb.items() if set(listed) & set(layers)}
        if not found:
            return None
        norm, listed = next(iter(found.items()))
        if len(found) > 1 or set(listed) != set(layers):
            raise ConfigError(
                f"{norm!r} is to take up the scale of {sorted(listed)}, and {sorted(layers)} share one input and one "
                "configuration: list all of these, and no other, by one normalisation"
            )
        return norm

    def run(self, weight: torch.Tensor, statistics: InputStatistics | None, last: bool = False) -> LayerResult:
        """The quantized ``weight`` (outputs, inputs), of one layer or of several stacked; its scales are floats.

        The ``last`` who wants ``statistics`` may use them up.
        """
        scheme, options = replace(self.scheme, scales=None, zeros=None), dict(self.options)
        if self.algorithm == BLOCKWISE:
            assert statistics is not None
            return tune_layer(weight, scheme, statistics, AutoRoundOptions(**options))
        if self.hadamard:
            options["rotation"] = Rotation(weight.shape[1], seed=0)
        if self.algorithm == "gptq":
            options["use_up"] = last
        return ALGORITHMS[self.algorithm](weight, scheme, statistics, **options)

    def finish(self, result: LayerResult) -> LayerResult:
        """What :meth:`run` found for one layer, with its scales and zero points as the scheme wants them."""
        return replace(result, array=double_quant(result.array, self.scheme.scales, self.scheme.zeros))


def matrix_of(layer: nn.Module) -> torch.Tensor:
    """The weight of a linear layer as (outputs, inputs)."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach().T if is_conv1d(layer) else weight.detach()
