"""The rounding of one weight while it is learned.

A weight ``w`` with scale ``s`` and zero point ``z`` becomes ``(clip(round(w / s + v) + z) - z) * s``. AutoRound (Cheng et
al. 2023) learns ``v``, one number a weight within half a step, and a factor for each ``s``, by the sign of the gradient
that a rounding which lets gradients straight through would have. There is no autograd in here: one pass over a cache-sized
part of the weight at a time takes the gradient in and puts the new values out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from neural_compressor.dtypes import IntType
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_TENSOR, QParams, QuantizedArray, TensorScheme
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.grid import code_dtype
from neural_compressor.schemes.ranges import from_parts, to_parts

_CPU_VALUES = 1 << 17  # half a megabyte of float32: what a part needs stays in the cache of a core
_FACTORS = (0.25, 2.0)


def check_scheme(scheme: TensorScheme) -> None:
    """Refuse what has no integer steps to round to."""
    if not isinstance(scheme.dtype, IntType):
        raise ConfigError(
            f"AutoRound learns to round to integers, and {scheme.dtype.name} is none; use an integer type (int2 to int8), "
            "or rtn, gptq or awq for this one"
        )


class LearnedRounding:
    """``weight`` (outputs, inputs) on the integer grid of ``scheme``, at first rounded to nearest with ``qparams``.

    >>> from neural_compressor.schemes import qparams_of
    >>> w, scheme = torch.tensor([[0.4, -0.7, 7.0]]), TensorScheme(IntType(4))
    >>> rounding = LearnedRounding(w, scheme, qparams_of(w, scheme))
    >>> rounding.values().tolist()
    [[0.0, -1.0, 7.0]]
    >>> rounding.step(torch.tensor([[-1.0, 0.0, 0.0]]), rate=0.2, scale_rate=0.0, out=torch.empty(1, 3)).tolist()
    [[1.0, -1.0, 7.0]]
    """

    def __init__(self, weight: Tensor, scheme: TensorScheme, qparams: QParams, momentum: float = 0.0) -> None:
        check_scheme(scheme)
        if qparams.scale is None:
            raise ConfigError(f"{scheme.dtype.name} needs scales to start from, and the parameters given have none")
        self.scheme = scheme
        self.shape = tuple(weight.shape)
        parts = to_parts(weight.float(), scheme.granularity)
        self._parts_shape = tuple(parts.shape)
        # Lines share a scale each: (scales, values).
        self._weight = parts.reshape(
            (1, -1) if scheme.granularity == PER_TENSOR else (-1, parts.shape[-1])
        ).contiguous()
        self._offset = torch.zeros_like(self._weight)
        self._trend = torch.zeros_like(self._weight) if momentum else None
        self._momentum = momentum
        self._scale_shape = tuple(qparams.scale.shape)
        self._start = qparams.scale.reshape(-1, 1).float()
        self._factor = torch.ones_like(self._start)
        self._zero_point = qparams.zero_point
        zero = (
            torch.zeros_like(self._start) if qparams.zero_point is None else qparams.zero_point.reshape(-1, 1).float()
        )
        low, high = integer_limits(scheme)
        self._zero, self._low, self._high = zero, low - zero, high - zero

    @property
    def scale(self) -> Tensor:
        """The scales as learned so far, in the shape that the scheme's granularity says."""
        scale: Tensor = self._start * self._factor
        return scale.reshape(self._scale_shape)

    def reset(self) -> None:
        """Forget what was learned."""
        self._offset.zero_()
        self._factor.fill_(1.0)

    def values(self, out: Tensor | None = None) -> Tensor:
        """The quantized weight (outputs, inputs) in float32, or put in ``out``, in whatever dtype that has."""
        lines = self._lines_in(out)
        for part in self._parts():
            scale = self._scale(part)
            lines[part] = self._steps(part, self._weight[part] / scale)[0].mul_(scale)
        return self._put(lines, out)

    def step(self, gradient: Tensor, rate: float, scale_rate: float, out: Tensor) -> Tensor:
        """Move against the sign of ``gradient``, that of the loss by :meth:`values`, and put the new values in ``out``.

        ``rate`` is in steps of the grid, ``scale_rate`` a fraction of the scale; 0 leaves the scales alone.
        """
        gradients, lines = self._as_lines(gradient), self._lines_in(out)
        for part in self._parts():
            slope, scale = gradients[part].float(), self._scale(part)
            exact = self._weight[part] / scale
            steps, rounded = self._steps(part, exact)
            # 1 where no end of the grid clipped the weight, else 0: a mask in float is many times faster than in bool.
            inside = rounded.sub_(steps).abs_().clamp_(max=1.0).neg_().add_(1.0)
            if scale_rate:
                # By the scale a value grows as its code; less weight / scale, which shrinks, where it is not clipped.
                by_scale = steps.sub_(exact.mul_(inside)).mul_(slope).sum(1, keepdim=True)
                moved = self._factor[part].sub_(torch.sign(by_scale * self._start[part]), alpha=scale_rate)
                self._factor[part] = moved.clamp_(*_FACTORS)
                scale = self._scale(part)
                exact = torch.div(self._weight[part], scale, out=exact)
            if self._trend is not None:
                slope = self._trend[part].mul_(self._momentum).add_(slope)
            direction = (slope * inside).mul_(torch.sign(scale)).sign_()
            self._offset[part] = self._offset[part].sub_(direction, alpha=rate).clamp_(-0.5, 0.5)
            lines[part] = self._steps(part, exact)[0].mul_(scale)
        return self._put(lines, out)

    def result(self) -> QuantizedArray:
        """Codes and scales that dequantize to exactly :meth:`values`."""
        kind = self.scheme.dtype
        assert isinstance(kind, IntType)
        codes = torch.empty(self._weight.shape, dtype=code_dtype(torch, kind), device=self._weight.device)
        for part in self._parts():
            steps, _ = self._steps(part, self._weight[part] / self._scale(part))
            codes[part] = steps.add_(self._zero[part]).to(codes.dtype)
        whole = from_parts(codes.reshape(self._parts_shape), self.shape, self.scheme.granularity)
        return QuantizedArray(whole.contiguous(), self.scale, self._zero_point, self.scheme, self.shape)

    def _steps(self, part: slice, exact: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of a part in whole steps of the grid, and the same before the ends of the grid clipped them."""
        rounded = (exact + self._offset[part]).round_()
        return torch.minimum(torch.maximum(rounded, self._low[part]), self._high[part]), rounded

    def _scale(self, part: slice) -> Tensor:
        scale: Tensor = self._start[part] * self._factor[part]
        return scale

    def _parts(self) -> Iterator[slice]:
        """Cache-sized runs of lines on a CPU, all at once elsewhere."""
        count, size = self._weight.shape
        step = max(1, _CPU_VALUES // size) if self._weight.device.type == "cpu" else count
        return (slice(start, start + step) for start in range(0, count, step))

    def _as_lines(self, matrix: Tensor) -> Tensor:
        """(outputs, inputs) in lines; where a last group is short, the places it lacks are zero."""
        missing = self._weight.numel() // self.shape[0] - self.shape[1] if len(self._parts_shape) == 3 else 0
        return (F.pad(matrix, (0, missing)) if missing else matrix).reshape(self._weight.shape)

    def _lines_in(self, out: Tensor | None) -> Tensor:
        """The memory of ``out`` as lines where all groups are full, else new memory."""
        if out is None or out.numel() != self._weight.numel():
            return torch.empty_like(self._weight)
        return out.view(self._weight.shape)

    def _put(self, lines: Tensor, out: Tensor | None) -> Tensor:
        if out is not None and lines.data_ptr() == out.data_ptr():
            return out
        values = from_parts(lines.reshape(self._parts_shape), self.shape, self.scheme.granularity)
        return values if out is None else out.copy_(values)
