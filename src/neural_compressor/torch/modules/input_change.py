"""Changes of the input of a layer before it is quantized and multiplied: a multiplier, a rotation, an order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neural_compressor.algorithms.hadamard import Rotation, hadamard_matrix
from neural_compressor.errors import QuantizationError
from neural_compressor.torch.modules.kernels.stored_weight import kept


@dataclass(frozen=True, eq=False)
class InputChange:
    """``x -> x * multiplier -> rotation -> x[..., order]`` along the channels of an input, as far as these are given.

    ``on_weight`` changes the weight so that the layer gives what it gave; SmoothQuant without folding has
    ``InputChange(multiplier=1 / smoothing)``.

    >>> x, weight = torch.randn(3, 8), torch.randn(5, 8)
    >>> change = InputChange(torch.rand(8) + 0.5, Rotation(8, seed=1), torch.arange(7, -1, -1))
    >>> bool(torch.allclose(change.on_input(x) @ change.on_weight(weight).T, x @ weight.T, atol=1e-5))
    True
    """

    multiplier: Tensor | None = None
    rotation: Rotation | None = None
    order: Tensor | None = None

    def __bool__(self) -> bool:
        return self.multiplier is not None or self.rotation is not None or self.order is not None

    def to(self, device: torch.device) -> InputChange:
        """The same with its tensors on ``device``."""
        multiplier, order = (None if each is None else each.to(device) for each in (self.multiplier, self.order))
        return InputChange(multiplier, self.rotation, order)

    def check(self, channels: int) -> None:
        """Refuse what does not fit an input of so many channels."""
        if self.multiplier is not None:
            if tuple(self.multiplier.shape) != (channels,):
                raise QuantizationError(
                    f"an input of {channels} channels cannot be multiplied by a tensor of {tuple(self.multiplier.shape)}"
                )
            if not bool((torch.isfinite(self.multiplier) & (self.multiplier != 0)).all()):
                raise QuantizationError("the multiplier of an input must be finite and nowhere zero")
        if self.rotation is not None and self.rotation.features != channels:
            raise QuantizationError(f"a rotation of {self.rotation.features} inputs does not fit {channels} channels")
        if self.order is not None and not torch.equal(self.order.cpu().long().sort().values, torch.arange(channels)):
            raise QuantizationError(f"the order of inputs is none of {channels} channels")

    def on_input(self, x: Tensor, axis: int = -1) -> Tensor:
        """``x`` changed, whose channels lie along ``axis`` (counted from the end)."""
        if self.multiplier is not None:
            x = x * self.multiplier.reshape(-1, *(1,) * (-1 - axis))
        if self.rotation is not None:
            x = rotated(x.movedim(axis, -1), self.rotation).movedim(-1, axis)
        return x if self.order is None else x.index_select(axis, self.order)

    def on_weight(self, weight: Tensor) -> Tensor:
        """A weight for changed inputs, of one for inputs as they come; input channels lie along its last axis."""
        weight = weight if self.multiplier is None else weight / self.multiplier
        weight = weight if self.rotation is None else rotated(weight, self.rotation)
        return weight if self.order is None else weight.index_select(-1, self.order)

    def off_weight(self, weight: Tensor) -> Tensor:
        """What :meth:`on_weight` was made from."""
        weight = weight if self.order is None else weight.index_select(-1, torch.argsort(self.order))
        weight = weight if self.rotation is None else self.rotation.undo(weight)
        return weight if self.multiplier is None else weight * self.multiplier


def rotated(x: Tensor, rotation: Rotation) -> Tensor:
    """``rotation.apply(x)``, in float32 (or float64) and open to gradients.

    A Hadamard matrix of Sylvester is the Kronecker product of two smaller ones, so that a block of n values costs about
    ``2 * sqrt(n)`` operations a value in two products, instead of log n passes over memory.

    >>> x = torch.randn(2, 96)
    >>> turn = Rotation(96, seed=3)
    >>> bool(torch.allclose(rotated(x, turn), turn.apply(x), atol=1e-5))
    True
    """
    x = x if x.dtype == torch.float64 else x.float()
    if rotation.seed is not None:
        x = x * _signs(rotation.features, rotation.seed, x.device).to(x.dtype)
    outer, inner = _factors(rotation.block_size)
    blocks = x.reshape(*x.shape[:-1], rotation.features // rotation.block_size, outer, inner)
    blocks = _matrix(outer, x.device, x.dtype) @ blocks @ _matrix(inner, x.device, x.dtype)
    return blocks.reshape(x.shape)


def _factors(block: int) -> tuple[int, int]:
    """Two powers of two, as near to one another as can be, whose product is ``block``."""
    bits = block.bit_length() - 1
    return 1 << (bits // 2), 1 << (bits - bits // 2)


@kept
def _matrix(n: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # what is kept must also serve a call with gradients
        return torch.from_numpy(hadamard_matrix(n)).to(device, dtype)


@kept
def _signs(features: int, seed: int, device: torch.device) -> Tensor:
    # Blocks of one value are turned by their sign alone.
    signs = Rotation(features, block=1, seed=seed).apply(np.ones(features, np.float32))
    with torch.inference_mode(False):
        return torch.from_numpy(signs).to(device)
