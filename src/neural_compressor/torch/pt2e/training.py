"""Quantization-aware training of exported graphs: what stands on the edges rounds as the converted graph will.

The graph is the one that calibration has, in evaluation mode: batch normalisation is folded into convolutions, and what is
trained are the weights that the kernels see. Gradients pass straight through roundings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from neural_compressor.algorithms.qat import trained
from neural_compressor.observers import MovingAverageObserver
from neural_compressor.schemes import OpKey, Plan, TensorScheme
from neural_compressor.torch.methods.qat import check_trainable
from neural_compressor.torch.methods.qat_rounding import observers_of, state_of, straight_through
from neural_compressor.torch.modules.activation import calibrated_qparams, simulate
from neural_compressor.torch.pt2e.execution import GraphExecution
from neural_compressor.torch.pt2e.observers import BatchObserver, RangeObserver, WeightObserver, as_rows
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
        check_trainable(plan)
        # Weights find their own place, biases too: nothing is corrected afterwards.
        super().__init__(model, trained(replace(plan, passes=())), reasons)
        self._state = {}  # what training wrote stays
        for parameter in self.model.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        self.model.train = partial(self._train, self.model)  # type: ignore[method-assign]
        self.model.eval = partial(self._train, self.model, False)  # type: ignore[method-assign]
        self.model.train()

    def _train(self, model: GraphModule, mode: bool = True) -> GraphModule:
        """In place of ``train`` and ``eval``: nothing else in a graph knows modes."""
        torch.nn.Module.train(model, mode)
        self._observe(mode and self.is_listening)
        return model
