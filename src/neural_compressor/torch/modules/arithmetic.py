"""Quantized addition, multiplication and matrix product of activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from neural_compressor.errors import QuantizationError
from neural_compressor.formats.kv_cache import KV_SCHEME
from neural_compressor.torch import functional
from neural_compressor.torch.modules.activation import Range, calibrated_qparams, has_fixed_range, within_codes
from neural_compressor.torch.modules.base import QUANT_MODULES, QuantModule
from neural_compressor.torch.modules.kernels.quint8 import to_quint8
from neural_compressor.torch.modules.kernels.table import SIMULATED
from neural_compressor.torch.modules.kv_cache import is_held
from neural_compressor.torch.modules.layer_operator import is_compiled
from neural_compressor.torch.modules.portable import as_type, is_leaving

Operand = Tensor | float
"""A tensor or a plain number."""


class QuantArithmetic(QuantModule):
    """An op of two operands without a weight.

    ``act_ranges`` are those of the operands and, last of three, of the output. Without the output's range the op is
    simulated: integer kernels return 8-bit codes. Plain numbers and integer tensors stay as they are in the simulation.
    """

    inputs = ("a", "b", "output")

    def _keep_qparams(self, act_ranges: Sequence[Range]) -> None:
        scheme = self.scheme.activation
        if scheme is None or scheme.is_float:
            raise QuantizationError(f"a quantized {self.op_type} needs a quantized activation type")
        if self._is_calibrated and len(act_ranges) < 2:
            raise QuantizationError(f"a static {self.op_type} needs the ranges of its operands; got {len(act_ranges)}")
        for index, name in enumerate(self.inputs):
            # Integer kernels return codes; no other type has its output rounded.
            known = self._is_calibrated and index < len(act_ranges) and (name != "output" or scheme.dtype.is_integer)
            self._register_qparams(name, calibrated_qparams(act_ranges[index], scheme, name) if known else None)

    def _quantize(self, module: nn.Module) -> None:
        """There is no weight."""

    def _choose_kernel(self, device: str) -> str:
        return super()._choose_kernel(device) if self.qparams("output") is not None else SIMULATED

    def forward(self, a: Operand, b: Operand) -> Tensor:
        if isinstance(a, Tensor) and isinstance(b, Tensor) and is_compiled():
            return self._as_operator(a, b)
        return self._simulated(a, b) if self.simulated or is_leaving() else self._integer(a, b)

    def _simulated(self, a: Operand, b: Operand) -> Tensor:
        dtype = _result_type(a, b)
        y = as_type(self._float_op(self._operand(a, b, "a"), self._operand(b, a, "b")), dtype)
        y = y.relu() if self.relu else y
        return y if self.simulated else self._leaving(y)

    def empty_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        a, b = inputs
        like = self._float_op(a.new_empty(a.shape, device="meta"), b.new_empty(b.shape, device="meta"))
        return [a.new_empty(like.shape, dtype=_result_type(a, b))]

    def _operand(self, x: Operand, other: Operand, name: str) -> Operand:
        if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_quantized):
            return x
        if self._holds(x):
            return x.float()
        # Beside a plain number there was one operand to calibrate.
        alone = not isinstance(other, Tensor) and self.qparams("output") is None
        return self._rounded(x, "a" if alone else name)

    def _holds(self, x: Tensor) -> bool:
        """Whether ``x`` comes from a cache in the type of the op, and is not rounded again."""
        return is_held(x) and self.scheme.activation is not None and self.scheme.activation.dtype == KV_SCHEME.dtype

    def _integer(self, a: Operand, b: Operand) -> Tensor:
        left, right = self._quint8(a, "a"), self._quint8(b, "b")
        if left.shape != right.shape:
            shape = torch.Size(torch.broadcast_shapes(left.shape, right.shape))  # type: ignore[no-untyped-call]
            left, right = left.expand(shape).contiguous(), right.expand(shape).contiguous()
        return self._integer_op(left, right, *self._u8("output")).dequantize().to(_result_type(a, b))

    def _quint8(self, x: Operand, name: str) -> Tensor:
        scheme, qparams = self.scheme.activation, self._u8(name)
        assert scheme is not None
        tensor = x if isinstance(x, Tensor) else torch.tensor(float(x))
        return to_quint8(within_codes(tensor, qparams, scheme), *qparams)

    def _float_op(self, a: Operand, b: Operand) -> Tensor:
        raise NotImplementedError

    def _integer_op(self, a: Tensor, b: Tensor, scale: float, zero_point: int) -> Tensor:
        name = self.op_type.lower()
        op: Callable[..., Tensor] = getattr(torch.ops.quantized, f"{name}_relu" if self.relu else name)
        return op(a, b, scale, zero_point)


@QUANT_MODULES.register("Add")
class QuantAdd(QuantArithmetic):
    """Replaces :class:`neural_compressor.torch.functional.Add`."""

    replaces = functional.Add

    def _float_op(self, a: Operand, b: Operand) -> Tensor:
        total = a + b
        return total if isinstance(total, Tensor) else torch.as_tensor(total)


@QUANT_MODULES.register("Mul")
class QuantMul(QuantArithmetic):
    """Replaces :class:`neural_compressor.torch.functional.Mul`."""

    replaces = functional.Mul

    def _float_op(self, a: Operand, b: Operand) -> Tensor:
        product = a * b
        return product if isinstance(product, Tensor) else torch.as_tensor(product)


@QUANT_MODULES.register("MatMul")
class QuantMatMul(QuantArithmetic):
    """Replaces :class:`neural_compressor.torch.functional.MatMul`; simulated, as torch's quantized matmul is inside."""

    replaces = functional.MatMul

    def _rounded(self, x: Tensor, name: str = "input") -> Tensor:
        if name == "a" or x.dim() < 2 or has_fixed_range(self.scheme.activation):
            return super()._rounded(x, name)
        # Groups and blocks lie along what the product sums over: the columns of its right operand.
        return super()._rounded(x.mT.contiguous(), name).mT

    def _float_op(self, a: Operand, b: Operand) -> Tensor:
        assert isinstance(a, Tensor)
        assert isinstance(b, Tensor)
        return torch.matmul(a, b)


def _result_type(a: Operand, b: Operand) -> torch.dtype:
    """The type the float op returns; quint8 operands stand for float32."""
    found = [torch.float32 if x.is_quantized else x.dtype for x in (a, b) if isinstance(x, Tensor)]
    return torch.promote_types(found[0], found[-1])
