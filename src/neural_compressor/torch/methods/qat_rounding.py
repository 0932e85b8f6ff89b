"""What rounds weights and activations in the forward pass of a training; gradients pass straight through.

Scales follow the weights and the data, or are learned (LSQ, Esser et al. 2020; LSQ+, Bhalgat et al. 2020, for zero points).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.algorithms import rtn
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.observers import MovingAverageObserver, make_observer
from neural_compressor.schemes import (
    QParams,
    QuantizedArray,
    TensorScheme,
    quantize_with,
)
from neural_compressor.schemes.affine import choose_qparams, from_steps, integer_limits, to_steps, zero_points
from neural_compressor.schemes.grid import nearest
from neural_compressor.schemes.pair_safe import pair_safe_codes
from neural_compressor.torch.modules.activation import calibrated_qparams, simulate
from neural_compressor.torch.modules.base import finite
from neural_compressor.torch.modules.weighted import WeightedModule


def straight_through(x: Tensor, rounded: Tensor) -> Tensor:
    """``rounded``, with the gradient of ``x``."""
    return x + (rounded - x).detach()


def _scaled_gradient(x: Tensor, factor: float | Tensor) -> Tensor:
    scaled = x * factor
    return x.detach() + (scaled - scaled.detach())


def _learned_step(first: Tensor, ratio: Tensor, values: float, scheme: TensorScheme) -> Tensor:
    """``first * ratio``, positive, with the gradient of LSQ for ``values`` numbers that share a step.

    What is trained is the ratio to the first step. Optimizers that move all parameters alike, such as Adam, then change a
    step by a share of it; for plain descent its gradient is divided by the first step, so that the step moves as in LSQ.
    """
    factor = 1 / math.sqrt(values * _largest_code(scheme))
    first = first.clamp(min=1e-6)
    return first * _scaled_gradient(ratio, factor / first**2).abs().clamp(min=1e-6)


def state_of(observers: Sequence[MovingAverageObserver]) -> Tensor:
    """What moving averages hold, one after the other, as one tensor: checkpoints in safetensors hold nothing else."""
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(torch.from_numpy(each.state()) for each in observers)])


def observers_of(state: Tensor, scheme: TensorScheme) -> list[MovingAverageObserver]:
    """The moving averages whose :func:`state_of` is ``state``."""
    found, numbers = [], state.detach().cpu().double().numpy()
    while numbers.size:
        observer = make_observer(scheme)
        assert isinstance(observer, MovingAverageObserver)
        numbers = observer.restore(numbers)
        found.append(observer)
    return found


class WeightRounding(nn.Module):
    """A parametrization that rounds a weight as the quantized op will store it, with the range it has right now."""

    def __init__(self, layout: WeightedModule, where: str) -> None:
        super().__init__()
        # The quantized op knows how a weight is a matrix. In a tuple, so that it is no part of the model that is trained.
        self._layout, self.where = (layout,), where

    @property
    def layout(self) -> WeightedModule:
        """The op that the layer will be."""
        return self._layout[0]

    def forward(self, weight: Tensor) -> Tensor:
        try:
            values: Tensor = self.layout.quantized_weight(weight.detach()).dequantize()
        except QuantizationError as error:  # a training that diverges makes weights NaN
            raise QuantizationError(f"{self.where}: {error}") from None
        return straight_through(weight, self.layout.from_matrix(values).to(weight.dtype))

    def array(self, weight: Tensor) -> QuantizedArray | None:
        """Codes and scales for ``weight``, where they are not those of rounding to nearest over its range."""
        return None


class LearnedWeightRounding(WeightRounding):
    """Rounds a weight with scales that are parameters; zero points stay as they were found at first."""

    def __init__(self, layout: WeightedModule, where: str, weight: Tensor) -> None:
        super().__init__(layout, where)
        scheme = layout.weight_scheme
        if scheme.dtype.scale_type is not None or scheme.scales is not None:
            raise ConfigError(
                f"learned_step_size trains float scales, and those of {scheme.dtype.name} are numbers of another type: "
                "leave it out for this op"
            )
        matrix = layout.to_matrix(weight.detach())
        if scheme.pair_safe:
            found = layout.quantized_weight(weight.detach()).qparams
        else:
            found = rtn(matrix, scheme, search="mse", full_range=False).qparams
        assert isinstance(found.scale, Tensor)
        self.first: Tensor
        self.register_buffer("first", found.scale.detach().to(weight.device, torch.float32).clone())
        self.register_buffer("zero_point", found.zero_point)
        self.step = nn.Parameter(torch.ones_like(self.first))

    @property
    def qparams(self) -> QParams:
        """Scales and zero points."""
        values = math.prod(self.layout.matrix_shape) / max(1, self.step.numel())
        return QParams(_learned_step(self.first, self.step, values, self.layout.weight_scheme), self.zero_point)

    def checked(self, weight: Tensor) -> Tensor:
        """``weight``, which a training that diverges makes NaN."""
        finite(weight, f"{self.where}: the weight")
        return weight

    def forward(self, weight: Tensor) -> Tensor:
        scheme, qparams, matrix = self.layout.weight_scheme, self.qparams, self.layout.to_matrix(self.checked(weight))
        steps = to_steps(matrix, scheme, qparams)
        zero = zero_points(scheme, qparams, tuple(matrix.shape))
        if scheme.pair_safe:
            assert isinstance(qparams.scale, Tensor)
            codes = pair_safe_codes(matrix.detach(), qparams.scale.detach(), self.layout.pairs())
            codes = codes.to(steps.dtype)
            rounded = straight_through(torch.where(steps.abs() > codes.abs() + 1, codes, steps), codes)
        else:
            rounded = _on_grid(steps, scheme, zero)
        return self.layout.from_matrix(from_steps(rounded, scheme, qparams, tuple(matrix.shape))).to(weight.dtype)

    def array(self, weight: Tensor) -> QuantizedArray:
        scheme, matrix = self.layout.weight_scheme, self.layout.to_matrix(self.checked(weight).detach()).float()
        qparams = QParams(self.qparams.scale.detach(), self.zero_point)  # type: ignore[union-attr]
        if not scheme.pair_safe:
            return quantize_with(matrix, scheme, qparams)
        codes = pair_safe_codes(matrix, qparams.scale, self.layout.pairs())
        return QuantizedArray(codes, qparams.scale, None, scheme, tuple(matrix.shape))


def _largest_code(scheme: TensorScheme) -> float:
    return max(1.0, float(integer_limits(scheme)[1] if scheme.dtype.is_integer else scheme.dtype.peak))


def _on_grid(steps: Tensor, scheme: TensorScheme, zero: Tensor | None) -> Tensor:
    """``steps`` rounded to the grid, less the zero point; the gradient is that of clipping."""
    if not scheme.dtype.is_integer:
        inside = steps.clamp(-scheme.dtype.peak, scheme.dtype.peak)
        return straight_through(inside, nearest(inside.detach(), scheme.dtype.element_type))
    inside = (steps if zero is None else steps + zero).clamp(*integer_limits(scheme))
    rounded = straight_through(inside, inside.detach().round())
    return rounded if zero is None else rounded - zero


class ActivationRounding(nn.Module):
    """What stands on the inputs of an op while it is trained: rounds them to the scheme, over a moving-average range.

    Where no range can be fixed, because each input brings its own, they are rounded over that.
    """

    def __init__(self, scheme: TensorScheme, where: str, fixed_range: bool, with_output: bool) -> None:
        super().__init__()
        self.scheme, self.where, self.fixed_range, self.with_output = scheme, where, fixed_range, with_output
        self.observer_scheme = replace(scheme, algorithm="moving_average")
        self.observers: list[Any] = []
        self.frozen = False

    def inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Forward pre-hook: observe and round each float tensor."""
        index = 0

        def rounded(value: Any) -> Any:
            nonlocal index
            if not isinstance(value, Tensor):
                return value
            index += 1
            return self._round(index - 1, value, module.training) if value.is_floating_point() else value

        args = tuple(rounded(value) for value in args)
        return args, {name: rounded(value) for name, value in kwargs.items()}

    def output(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        """Forward hook of functional ops, whose output is quantized too."""
        return self._round(sum(isinstance(a, Tensor) for a in args), output, module.training)

    def _round(self, index: int, x: Tensor, training: bool) -> Tensor:
        if not x.numel():
            return x
        if not self.fixed_range:
            return straight_through(x, simulate(x, self.scheme, None).to(x.dtype))
        if training and not self.frozen:
            try:
                self._observe(index, x.detach())
            except CalibrationError as error:
                raise CalibrationError(f"{self.where}: {error}") from error
        if not self.is_seen(index):
            return x  # not trained yet: there is no range to round to
        return self._rounded(index, x)

    def _observe(self, index: int, x: Tensor) -> None:
        while len(self.observers) <= index:
            self.observers.append(make_observer(self.observer_scheme))
        self.observers[index].update(x.float())

    def is_seen(self, index: int) -> bool:
        """Whether the tensor of that place was given in training."""
        return index < len(self.observers)

    def freeze(self) -> None:
        """Keep the ranges as they are."""
        self.frozen = True

    def _rounded(self, index: int, x: Tensor) -> Tensor:
        qparams = calibrated_qparams(self.observers[index].range(self.scheme), self.scheme, "input")
        return straight_through(x, simulate(x, self.scheme, qparams).to(x.dtype))

    def ranges(self) -> list[tuple[Any, Any]]:
        """The ranges to quantize over, one a tensor."""
        return [observer.range(self.scheme) for observer in self.observers]

    def get_extra_state(self) -> Tensor:
        """The ranges, so that a checkpoint of the training has them."""
        return state_of(self.observers)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the ranges of a checkpoint."""
        self.observers = observers_of(state, self.observer_scheme)


class LearnedActivationRounding(ActivationRounding):
    """Rounds inputs with a scale and a zero point that are parameters; the first batch gives them their values."""

    def __init__(self, scheme: TensorScheme, where: str, tensors: int, with_output: bool, device: torch.device) -> None:
        super().__init__(scheme, where, fixed_range=True, with_output=with_output)
        self.steps = nn.ParameterList([nn.Parameter(torch.ones((), device=device)) for _ in range(tensors)])
        moves = not scheme.symmetric
        self.zeros = nn.ParameterList(
            [nn.Parameter(torch.zeros((), device=device)) for _ in range(tensors if moves else 0)]
        )
        # Buffers, so that a checkpoint of the training has them; a first step of 0 is one that was not seen.
        self.first: Tensor
        self.fixed_zeros: Tensor
        self.register_buffer("first", torch.zeros(tensors, device=device))
        self.register_buffer("fixed_zeros", torch.zeros(tensors, device=device))

    def is_seen(self, index: int) -> bool:
        return bool(self.first[index] > 0)

    def freeze(self) -> None:
        super().freeze()
        self.requires_grad_(False)

    @torch.no_grad()
    def _observe(self, index: int, x: Tensor) -> None:
        if self.is_seen(index):
            return
        observer = make_observer(self.observer_scheme)
        observer.update(x.float())
        low, high = observer.range(self.scheme)
        found = choose_qparams(low, high, self.scheme)
        self.first[index] = torch.as_tensor(found.scale)
        if found.zero_point is not None:
            (self.zeros[index] if len(self.zeros) else self.fixed_zeros[index]).copy_(torch.as_tensor(found.zero_point))

    def _qparams(self, index: int, values: int = 1) -> tuple[Tensor, Tensor | None]:
        step = _learned_step(self.first[index], self.steps[index], values, self.scheme)
        if not len(self.zeros):
            unsigned = self.scheme.dtype.is_integer and integer_limits(self.scheme)[0] >= 0
            return step, self.fixed_zeros[index] if unsigned else None
        low, high = integer_limits(self.scheme)
        zero = self.zeros[index].clamp(low, high)
        return step, straight_through(zero, zero.round())

    def _rounded(self, index: int, x: Tensor) -> Tensor:
        step, zero = self._qparams(index, x.numel())
        if zero is not None and len(self.zeros):
            zero = _scaled_gradient(zero, 1 / math.sqrt(x.numel() * _largest_code(self.scheme)))
        return (_on_grid(x.float() / step, self.scheme, zero) * step).to(x.dtype)

    def ranges(self) -> list[tuple[Any, Any]]:
        """From the smallest to the largest value that a code stands for."""
        found = []
        for index in filter(self.is_seen, range(len(self.steps))):
            step, zero = (None if each is None else each.detach() for each in self._qparams(index))
            assert step is not None
            if self.scheme.dtype.is_integer and zero is not None:
                low, high = integer_limits(self.scheme)
                found.append(((low - zero) * step, (high - zero) * step))
            else:
                scaling, kind = self.scheme.scaling, self.scheme.dtype
                full = _largest_code(self.scheme) if scaling is None else scaling.full_scale(kind)
                found.append((-step * full, step * full))
        return found
