"""Which integer kernel runs an op under a scheme on this machine; where none does, the op is simulated in float.

A kernel counts only after it has computed the worst case exactly: without VNNI instructions pairs of u8 x s8 products
are summed in 16 bits, which silently saturates unless weights are safe in pairs, or one side is limited to 7 bits.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from neural_compressor.schemes import OpScheme, PerChannel, PerTensor, TensorScheme, any_cpu_weight, in_pairs
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.torch.modules.kernels import fbgemm, onednn
from neural_compressor.torch.modules.kernels.quint8 import codes_of, to_quint8, with_qparams
from neural_compressor.torch.modules.kernels.table import Kernel, kernel_for, kernels_of, register

WORST_PAIRS: dict[str, tuple[tuple[int, int], ...]] = {
    "all": ((-128, -128), (127, 127)),
    "pair_safe": ((64, 64), (-64, -64), (127, 1), (1, 127), (-127, -1), (100, 28), (127, -127)),
    "reduced": ((-64, -64), (64, 64)),
}
"""The neighbouring weights that come nearest to an overflow, by what is done about it."""


@dataclass(frozen=True)
class IntegerKernel(Kernel):
    """An integer kernel of the CPU: the ops and modes it runs, the weights it takes, and a probe of the machine.

    ``exact`` is asked with the largest activation code and a key of :data:`WORST_PAIRS`.
    """

    op_types: frozenset[str]
    mode: str
    takes_weight: Callable[[TensorScheme | None], bool]
    exact: Callable[[str, int, str], bool]

    def fits(self, op_type: str, scheme: OpScheme, device: str = "cpu") -> bool:
        if device != "cpu" or op_type not in self.op_types or scheme.mode != self.mode:
            return False
        return self.takes_weight(scheme.weight) and scheme.activation is not None and is_tensor_int8(scheme.activation)

    def runs(self, op_type: str, scheme: OpScheme, device: str = "cpu") -> bool:
        """Whether this kernel computes ``op_type`` under ``scheme`` here, exactly."""
        if not self.fits(op_type, scheme, device) or scheme.activation is None:
            return False
        weight, codes = scheme.weight, "all"
        if weight is not None and (weight.reduce_range or weight.pair_safe):
            codes = "reduced" if weight.reduce_range else "pair_safe"
        low, high = integer_limits(scheme.activation)
        return self.exact(op_type, high - low, codes)


def fits_kernel(op_type: str, scheme: OpScheme) -> bool:
    """Whether there is an integer kernel for an op, exact on this machine or not."""
    return any(kernel.fits(op_type, scheme) for kernel in kernels_of(IntegerKernel))


def why_simulated(op_type: str, scheme: OpScheme) -> str:
    """What stands against a kernel for an op, and what would help."""
    kernel = next((kernel for kernel in kernels_of(IntegerKernel) if kernel.fits(op_type, scheme)), None)
    in_blocks = [t.dtype.name for t in (scheme.weight, scheme.activation) if t is not None and t.dtype.scale_type]
    if in_blocks:
        names = " with ".join(dict.fromkeys(in_blocks))
        return f"no kernel here multiplies {names}: values are rounded to blocks, and floats are multiplied"
    if kernel is None:
        known = {k.mode for k in kernels_of(IntegerKernel) if op_type in k.op_types}
        if not known:
            return (
                f"torch has no integer kernel for {op_type}; a rule that keeps it in fp32 makes it faster, not smaller"
            )
        if scheme.mode not in known:
            return f"torch has no {scheme.mode} integer kernel for {op_type}, only {' and '.join(sorted(known))}"
        return (
            "torch has integer kernels for 8-bit weights (sym for convolutions) and per-tensor 8-bit activations only"
        )
    if kernel.exact(op_type, 255, "pair_safe"):
        return (
            "without VNNI this CPU adds pairs of products in 16 bits, which these weights can overflow; "
            "quantize on this machine, where weights are chosen to be safe, or with reduce_range=True"
        )
    return "this build of torch has no x86 kernel that computes it exactly here"


def safe_weight(op_type: str, scheme: OpScheme) -> TensorScheme | None:
    """The scheme of the weight on which the kernel of this machine is exact: as it is, unless that alone saturates."""
    if scheme.weight is None or kernel_for(op_type, scheme) is not None:
        return scheme.weight
    safe = any_cpu_weight(scheme.weight)
    runs = kernel_for(op_type, OpScheme(safe, scheme.activation, scheme.mode)) is not None
    return safe if runs else scheme.weight


def kernel_pairs(op_type: str, shape: Sequence[int]) -> np.ndarray:
    """For each column of a weight as a matrix the one whose product a kernel without VNNI adds to its own in 16 bits.

    Convolutions take neighbouring channels at one place of the window; depthwise ones have a kernel that adds in 32 bits,
    but for some in three dimensions, which take neighbouring places.

    >>> kernel_pairs("Conv2d", (8, 3, 1, 2)).tolist()
    [2, 3, 0, 1, 4, 5]
    """
    inputs, places = shape[1], math.prod(shape[2:])
    if op_type not in _CONV:
        return in_pairs(math.prod(shape[1:]))
    if inputs == 1:
        return in_pairs(places) if len(shape) == 5 else np.arange(places)
    return (in_pairs(inputs)[:, None] * places + np.arange(places)).reshape(-1)


def is_tensor_int8(scheme: TensorScheme) -> bool:
    """Whether a tensor is of 8-bit integers with one scale."""
    return scheme.dtype.is_integer and scheme.dtype.bits == 8 and isinstance(scheme.granularity, PerTensor)


def takes_int8(scheme: TensorScheme | None) -> bool:
    """Whether a weight is of 8-bit integers with one scale, or one for each row."""
    if scheme is None or not scheme.dtype.is_integer or scheme.dtype.bits != 8:
        return False
    return isinstance(scheme.granularity, PerTensor) or scheme.granularity == PerChannel(0)


def _takes_symmetric_int8(scheme: TensorScheme | None) -> bool:
    return scheme is not None and takes_int8(scheme) and scheme.symmetric and scheme.dtype.signed


def _has_engine(name: str) -> bool:
    return name in torch.backends.quantized.supported_engines and hasattr(torch, "quantize_per_tensor")


@functools.cache
def _linear_is_exact(op_type: str, act_max: int, codes: str) -> bool:
    if not _has_engine("x86") or not hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32"):
        return False
    with warnings.catch_warnings():
        # torch announces the end of its quantized tensors once a process, at their first use: here.
        warnings.simplefilter("ignore")
        weight = _worst(codes, 32, 64)
        packed = fbgemm.pack_linear(weight, torch.ones(32), None, None)
        y = fbgemm.linear_static(torch.full((2, 64), float(act_max)), 1.0, 0, packed, relu=False)
    return bool((y == act_max * weight.float().sum(1)).all())


@functools.cache
def _conv_is_exact(op_type: str, act_max: int, codes: str) -> bool:
    dims = int(op_type[4])
    if not _has_engine("onednn") or not _has_engine("x86") or not hasattr(torch.ops.onednn, f"qconv{dims}d_pointwise"):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return all(_conv_case(dims, *channels, act_max, codes) for channels in ((16, 1), (3, 1), (16, 16), (16, 8)))


def _conv_case(dims: int, channels: int, groups: int, act_max: int, codes: str) -> bool:
    inside, outputs = (3,) * dims, 16
    x = codes_of(to_quint8(torch.full((1, channels, *inside), float(act_max)), 1.0, 0))
    by_channel = _worst(codes, outputs, channels // groups)
    weight = by_channel.reshape(outputs, -1, *(1,) * dims).expand(-1, -1, *inside).contiguous()
    if channels == groups and dims == 3:
        weight = _worst(codes, outputs, 3**dims).reshape(outputs, 1, *inside)
    geometry = onednn.ConvGeometry((1,) * dims, (0,) * dims, (1,) * dims, groups)
    expected = act_max * weight.float().flatten(1).sum(1)
    y = onednn.conv(x, (1.0, 0), onednn.pack_conv(weight, torch.ones(outputs), None, geometry, (1.0, 0)), relu=False)
    if dims != 2 or not bool((y.flatten() == expected).all()):
        return bool((y.flatten() == expected).all())
    # The kernel that hands codes on returns nothing else: an overflow is many steps of these.
    step = float(expected.abs().max()) / 100
    handed_on = onednn.conv2d(lambda: (weight, torch.ones(outputs)), None, geometry, False, (step, 128))
    found = handed_on(with_qparams(x, 1.0, 0)).dequantize().flatten()
    return bool(((found - expected).abs() <= step).all())


def _worst(codes: str, rows: int, columns: int) -> torch.Tensor:
    pairs = torch.tensor(WORST_PAIRS[codes], dtype=torch.int8)
    return pairs[torch.arange(rows) % len(pairs)].repeat(1, -(-columns // 2))[:, :columns].contiguous()


@functools.cache
def _pointwise_runs(op_type: str, act_max: int, codes: str) -> bool:
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

INTEGER_KERNELS = register(
    IntegerKernel("fbgemm int8", _LINEAR, "static", takes_int8, _linear_is_exact),
    IntegerKernel("fbgemm int8 dynamic", _LINEAR | _RECURRENT, "dynamic", takes_int8, _linear_is_exact),
    IntegerKernel("onednn int8", _CONV, "static", _takes_symmetric_int8, _conv_is_exact),
    IntegerKernel("onednn int8 dynamic", _CONV, "dynamic", _takes_symmetric_int8, _conv_is_exact),
    IntegerKernel("torch int8", frozenset({"Add", "Mul"}), "static", _takes_none, _pointwise_runs),
)
