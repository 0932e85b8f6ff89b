"""Which integer kernel runs an op under a scheme on this machine; where none does, the op is simulated in float.

A kernel counts only after it has computed the worst case exactly: without VNNI instructions pairs of u8 x s8 products
are summed in 16 bits, which silently saturates unless one side is limited to 7 bits.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from neural_compressor.dtypes import IntType
from neural_compressor.schemes import OpScheme, PerChannel, PerTensor, TensorScheme
from neural_compressor.torch.nn import fbgemm, onednn
from neural_compressor.torch.nn.quint8 import codes_of, to_quint8

SIMULATED = "simulated"


@dataclass(frozen=True)
class Kernel:
    """An integer kernel: the ops and modes it runs, the weights it takes, and a probe of the machine.

    ``exact`` is asked with the largest activation code and the largest weight magnitude that the scheme can produce.
    """

    name: str
    op_types: frozenset[str]
    mode: str
    takes_weight: Callable[[TensorScheme | None], bool]
    exact: Callable[[str, int, int], bool]

    def runs(self, op_type: str, scheme: OpScheme) -> bool:
        """Whether this kernel computes ``op_type`` under ``scheme`` here, exactly."""
        if op_type not in self.op_types or scheme.mode != self.mode or not self.takes_weight(scheme.weight):
            return False
        if scheme.activation is None or not _is_tensor_int8(scheme.activation):
            return False
        act_max = 127 if scheme.activation.reduce_range else 255
        weight_max = 64 if scheme.weight is not None and scheme.weight.reduce_range else 128
        return self.exact(op_type, act_max, weight_max)


def kernel_for(op_type: str, scheme: OpScheme) -> Kernel | None:
    """The kernel of this machine for an op, or None."""
    return next((kernel for kernel in KERNELS if kernel.runs(op_type, scheme)), None)


def _is_tensor_int8(scheme: TensorScheme) -> bool:
    return isinstance(scheme.dtype, IntType) and scheme.dtype.bits == 8 and isinstance(scheme.granularity, PerTensor)


def _takes_int8(scheme: TensorScheme | None) -> bool:
    if scheme is None or not isinstance(scheme.dtype, IntType) or scheme.dtype.bits != 8:
        return False
    return isinstance(scheme.granularity, PerTensor) or scheme.granularity == PerChannel(0)


def _takes_symmetric_int8(scheme: TensorScheme | None) -> bool:
    return scheme is not None and _takes_int8(scheme) and scheme.symmetric and scheme.dtype.signed


def _has_engine(name: str) -> bool:
    return name in torch.backends.quantized.supported_engines and hasattr(torch, "quantize_per_tensor")


@functools.cache
def _linear_is_exact(op_type: str, act_max: int, weight_max: int) -> bool:
    if not _has_engine("x86") or not hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32"):
        return False
    with warnings.catch_warnings():
        # torch announces the end of its quantized tensors once a process, at their first use: here.
        warnings.simplefilter("ignore")
        x = torch.full((2, 64), float(act_max))
        codes = torch.full((32, 64), -weight_max, dtype=torch.int8)
        packed = fbgemm.pack_linear(codes, torch.ones(32), None, None)
        y = fbgemm.linear_static(x, 1.0, 0, packed, relu=False)
    return bool((y == -float(act_max) * weight_max * 64).all())


@functools.cache
def _conv_is_exact(op_type: str, act_max: int, weight_max: int) -> bool:
    dims = int(op_type[4])
    if not _has_engine("onednn") or not _has_engine("x86") or not hasattr(torch.ops.onednn, f"qconv{dims}d_pointwise"):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return all(_conv_case(dims, groups, act_max, weight_max) for groups in (1, 16))


def _conv_case(dims: int, groups: int, act_max: int, weight_max: int) -> bool:
    inside = (3,) * dims
    x = codes_of(to_quint8(torch.full((1, 16, *inside), float(act_max)), 1.0, 0))
    codes = torch.full((16, 16 // groups, *inside), -weight_max, dtype=torch.int8)
    geometry = onednn.ConvGeometry((1,) * dims, (0,) * dims, (1,) * dims, groups)
    y = onednn.conv(x, (1.0, 0), onednn.pack_conv(codes, torch.ones(16), None, geometry, (1.0, 0)), relu=False)
    return bool((y == -float(act_max) * weight_max * codes[0].numel()).all())


@functools.cache
def _pointwise_runs(op_type: str, act_max: int, weight_max: int) -> bool:
    if not _has_engine("x86"):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = to_quint8(torch.tensor([1.0, 2.0]), 1.0, 0)
        op = torch.ops.quantized.add if op_type == "Add" else torch.ops.quantized.mul
        found: list[float] = op(x, x, 1.0, 0).dequantize().tolist()
    return found == ([2.0, 4.0] if op_type == "Add" else [1.0, 4.0])


def _takes_none(scheme: TensorScheme | None) -> bool:
    return scheme is None


_LINEAR = frozenset({"Linear"})
_RECURRENT = frozenset({"LSTM", "GRU"})
_CONV = frozenset({"Conv1d", "Conv2d", "Conv3d"})

KERNELS: tuple[Kernel, ...] = (
    Kernel("fbgemm int8", _LINEAR, "static", _takes_int8, _linear_is_exact),
    Kernel("fbgemm int8 dynamic", _LINEAR | _RECURRENT, "dynamic", _takes_int8, _linear_is_exact),
    Kernel("onednn int8", _CONV, "static", _takes_symmetric_int8, _conv_is_exact),
    Kernel("onednn int8 dynamic", _CONV, "dynamic", _takes_symmetric_int8, _conv_is_exact),
    Kernel("torch int8", frozenset({"Add", "Mul"}), "static", _takes_none, _pointwise_runs),
)
"""Every integer kernel the modules know how to call, in order of preference."""
