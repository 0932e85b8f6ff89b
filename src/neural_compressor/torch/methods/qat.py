"""Quantization-aware training: weights and activations are rounded in the forward pass, gradients pass straight through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from neural_compressor.errors import CalibrationError
from neural_compressor.observers import make_observer
from neural_compressor.schemes import OpKey, Plan, TensorScheme, quantize_pairs
from neural_compressor.schemes.affine import choose_qparams
from neural_compressor.schemes.quantize import fake_quantize
from neural_compressor.schemes.ranges import value_range
from neural_compressor.torch.modules.kernels.integer import kernel_pairs
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.quantized_model import build
from neural_compressor.torch.structure.ops import FUNCTIONAL


def _straight_through(x: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    return x + (rounded - x).detach()


class WeightRounding(nn.Module):
    """A parametrization that rounds a weight to its scheme, with the range it has right now."""

    def __init__(self, scheme: TensorScheme, op_type: str) -> None:
        super().__init__()
        self.scheme, self.op_type = scheme, op_type

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        fixed = weight.detach()
        if self.scheme.pair_safe:
            rounded = quantize_pairs(
                fixed.flatten(1), self.scheme, kernel_pairs(self.op_type, fixed.shape)
            ).dequantize()
            return _straight_through(weight, rounded.reshape(fixed.shape))
        qparams = choose_qparams(*value_range(fixed, self.scheme.granularity), self.scheme)
        return _straight_through(weight, fake_quantize(fixed, self.scheme, qparams))


class ActivationRounding:
    """A hook that observes the inputs of an op while training and rounds them to the scheme, with a moving-average range."""

    def __init__(self, scheme: TensorScheme, with_output: bool) -> None:
        self.scheme = scheme
        self.with_output = with_output
        self.observer_scheme = replace(scheme, algorithm="moving_average")
        self.observers: list[Any] = []
        self.seen: set[int] = set()

    def inputs(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Forward pre-hook: observe and round each float tensor."""
        index, rounded = 0, []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                rounded.append(self._round(index, arg, module.training) if arg.is_floating_point() else arg)
                index += 1
            else:
                rounded.append(arg)
        return tuple(rounded)

    def output(self, module: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        """Forward hook of functional ops, whose output is quantized too."""
        return self._round(sum(isinstance(a, torch.Tensor) for a in args), output, module.training)

    def _round(self, index: int, x: torch.Tensor, training: bool) -> torch.Tensor:
        while len(self.observers) <= index:
            self.observers.append(make_observer(self.observer_scheme))
        observer, fixed = self.observers[index], x.detach()
        if training and x.numel():
            observer.update(fixed)
            self.seen.add(index)
        if index not in self.seen:
            return x  # not trained yet: there is no range to round to
        low, high = observer.range(self.scheme)
        qparams = choose_qparams(low, high, self.scheme)
        return _straight_through(x, fake_quantize(fixed, self.scheme, qparams))

    def ranges(self) -> list[tuple[Any, Any]]:
        """The ranges seen, one a tensor."""
        return [observer.range(self.scheme) for observer in self.observers]


class QatSession:
    """A model on its way through quantization-aware training: :attr:`model` is trained, :meth:`finish` converts it."""

    def __init__(self, model: nn.Module, plan: Plan, structure: Structure, reasons: Mapping[OpKey, str]) -> None:
        self.model = model
        self.plan = plan
        self.structure = structure
        self.reasons = dict(reasons)
        self._activations: dict[OpKey, ActivationRounding] = {}
        self._handles: list[Any] = []
        for key, scheme in plan.items():
            module = model.get_submodule(key[0])
            if scheme.is_float:
                continue
            if scheme.weight is not None and isinstance(getattr(module, "weight", None), nn.Parameter):
                parametrize.register_parametrization(module, "weight", WeightRounding(scheme.weight, key[1]))
            if scheme.activation is not None and scheme.mode == "static":
                self._attach(key, module, scheme.activation)

    def _attach(self, key: OpKey, module: nn.Module, scheme: TensorScheme) -> None:
        rounding = ActivationRounding(scheme, with_output=isinstance(module, FUNCTIONAL))
        self._activations[key] = rounding
        self._handles.append(module.register_forward_pre_hook(rounding.inputs))
        if rounding.with_output:
            self._handles.append(module.register_forward_hook(rounding.output))

    def finish(self) -> nn.Module:
        """The quantized model with the trained weights and the ranges seen in training."""
        if self._activations and not any(rounding.seen for rounding in self._activations.values()):
            raise CalibrationError(
                f"the ranges of {len(self._activations)} ops are learnt in training, and no batch has run through the model "
                "that is to be trained: call it (the manager's model, not the one given to it) in training mode before "
                "training ends"
            )
        for handle in self._handles:
            handle.remove()
        for key in self.plan:
            module = self.model.get_submodule(key[0])
            if parametrize.is_parametrized(module, "weight"):
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
        ranges = {key: rounding.ranges() for key, rounding in self._activations.items() if rounding.seen}
        return build(self.model.eval(), self.plan, ranges, self.structure, self.reasons)
