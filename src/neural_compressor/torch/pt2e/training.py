"""Quantization-aware training of exported graphs: what stands on the edges rounds as the converted graph will.

The graph is the one that calibration has, in evaluation mode: batch normalisation is folded into convolutions, and what is
trained are the weights that the kernels see. Gradients pass straight through roundings. Scales follow weights and data, or
are learned, as in eager models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule

from neural_compressor.algorithms.qat import qat_options
from neural_compressor.observers import MovingAverageObserver
from neural_compressor.schemes import OpKey, Plan, QuantizedArray, TensorScheme
from neural_compressor.torch.methods.qat_rounding import (
    LearnedActivationRounding,
    LearnedWeightRounding,
    observers_of,
    state_of,
    straight_through,
)
from neural_compressor.torch.modules.activation import calibrated_qparams, simulate
from neural_compressor.torch.modules.kernels.integer import kernel_pairs
from neural_compressor.torch.modules.packed_weight import quantized_matrix
from neural_compressor.torch.pt2e.execution import GraphExecution
from neural_compressor.torch.pt2e.observers import BatchObserver, RangeObserver, WeightObserver, as_rows, attribute
from neural_compressor.torch.pt2e.quantizer import Observers


class RoundedRange(RangeObserver):
    """Rounds an activation over the moving average of its ranges."""

    def __init__(self, scheme: TensorScheme, **more: Any) -> None:
        super().__init__(replace(scheme, algorithm="moving_average"), **more)

    def forward(self, x: Tensor) -> Tensor:
        """Take ``x`` into account and hand it on rounded; before any range is known, as it is."""
        x = super().forward(x)
        if not self.seen or not x.numel():
            return x
        qparams = calibrated_qparams(self._observer.range(self.scheme), self.scheme, self.where)
        return straight_through(x, simulate(x.detach(), self.scheme, qparams).to(x.dtype))

    def get_extra_state(self) -> Tensor:
        """The range, so that a checkpoint of the training has it."""
        assert isinstance(self._observer, MovingAverageObserver)
        return state_of([self._observer])

    def set_extra_state(self, state: Tensor) -> None:
        """Take the range of a checkpoint."""
        (self._observer,) = observers_of(state, self.scheme)
        self.seen = self._observer.batches


class RoundedWeight(WeightObserver):
    """Rounds a weight as :meth:`convert` will, with the range it has right now."""

    def forward(self, x: Tensor) -> Tensor:
        """The weight rounded."""
        codes, scale = as_rows(self.quantized(x.detach()), x)
        rounded = codes * scale.reshape(-1, *(1,) * (x.dim() - 1))
        return straight_through(x, rounded.to(x.dtype))


class RoundedBatch(BatchObserver):
    """Rounds an activation over the range of each batch."""

    def forward(self, x: Tensor) -> Tensor:
        """``x`` rounded."""
        return straight_through(x, simulate(x.detach(), self.scheme, None).to(x.dtype)) if x.numel() else x


@dataclass(frozen=True)
class _Matrix:
    """How the weight of a layer of a graph is a matrix: what is asked of the op that a layer of an eager model will be."""

    weight_scheme: TensorScheme
    kind: str
    shape: torch.Size

    @property
    def matrix_shape(self) -> tuple[int, int]:
        return self.shape[0], math.prod(self.shape[1:])

    def pairs(self) -> np.ndarray:
        return kernel_pairs(self.kind, self.shape)

    def to_matrix(self, weight: Tensor) -> Tensor:
        return weight.flatten(1)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        return matrix.reshape(self.shape)

    def quantized_weight(self, weight: Tensor) -> QuantizedArray:
        return quantized_matrix(self.to_matrix(weight).float(), self.weight_scheme, self.pairs())


class LearnedRange(RangeObserver):
    """Rounds an activation with a step and a zero point that are parameters."""

    def __init__(self, scheme: TensorScheme, **more: Any) -> None:
        super().__init__(scheme, **more)
        self.rounding = LearnedActivationRounding(scheme, self.where, 1, with_output=False, device=torch.device("cpu"))

    def forward(self, x: Tensor) -> Tensor:
        """Hand ``x`` on rounded; the first gives the parameters their values."""
        self.rounding.where = self.where
        (x,), _ = self.rounding.inputs(self, (x,), {})
        self.seen = int(self.rounding.is_seen(0))
        return x

    def range(self) -> tuple[Any, Any]:
        """From the smallest to the largest value that a code stands for."""
        return self.rounding.ranges()[0]

    def get_extra_state(self) -> Tensor:
        """Whether the parameters have their values."""
        return torch.tensor(self.seen)

    def set_extra_state(self, state: Tensor) -> None:
        """Take that of a checkpoint."""
        self.seen = int(state)


class LearnedWeight(WeightObserver):
    """Rounds a weight with scales that are parameters, from :meth:`begin` on."""

    rounding: LearnedWeightRounding

    def begin(self, weight: Tensor) -> None:
        """Take the first scales from ``weight``."""
        layout: Any = _Matrix(self.scheme, self.kind, weight.shape)
        self.rounding = LearnedWeightRounding(layout, self.where, weight)

    def forward(self, x: Tensor) -> Tensor:
        """The weight rounded."""
        return self.rounding(x)  # type: ignore[no-any-return]

    def quantized(self, weight: Tensor) -> QuantizedArray:
        """The weight in the codes of the scales that were learned."""
        return self.rounding.array(weight)


class GraphTraining(GraphExecution):
    """A plan on its way through training: :attr:`model` is trained in a loop of the user's, then comes :meth:`apply`.

    In evaluation mode, and after :meth:`stop`, ranges stay as they are; roundings stay in any case.
    """

    observers = Observers(RoundedRange, RoundedWeight, RoundedBatch)
    unseen = (
        "the ranges of {} static ops are learnt in training, and no batch has run through the model that prepare_qat "
        "returned in training mode: train it before convert"
    )

    def __init__(self, model: GraphModule, plan: Plan, reasons: Mapping[OpKey, str]) -> None:
        if qat_options(plan).learned_step_size:
            self.observers = Observers(LearnedRange, LearnedWeight, RoundedBatch)
        # Weights find their own place, biases too: nothing is corrected afterwards.
        super().__init__(model, replace(plan, passes=()), reasons)
        self._state = {}  # what training wrote stays
        for node in self.model.graph.nodes:
            observer = self.model.get_submodule(node.target) if node.op == "call_module" else None
            if isinstance(observer, LearnedWeight):
                observer.begin(attribute(self.model, node.args[0].target).detach())
        for parameter in self.model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        self.model.train = partial(self._train, self.model)  # type: ignore[method-assign]
        self.model.eval = partial(self._train, self.model, False)  # type: ignore[method-assign]
        self.model.train()

    def stop(self) -> None:
        super().stop()
        for observer in self._observers:
            if isinstance(observer, LearnedRange):
                observer.rounding.freeze()

    def _train(self, model: GraphModule, mode: bool = True) -> GraphModule:
        """In place of ``train`` and ``eval``: nothing else in a graph knows modes."""
        torch.nn.Module.train(model, mode)
        self._observe(mode and self.is_listening)
        return model
