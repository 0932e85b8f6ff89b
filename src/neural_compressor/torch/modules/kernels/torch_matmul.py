"""torch's products of bfloat16 rows with packed weights: in 4 bits on CPU and CUDA, in 8 bits on CPU.

Those of 4 bits compute ``(code - 8) * scale + offset`` for groups of 32 to 256 inputs, scale and offset in bfloat16. They
take 8 bits too: a code is 16 times its upper half plus its lower half, the upper halves stand before the lower ones as if
the layer had twice the inputs, and the input is given twice. The kernel of 8 bits itself takes one scale an output.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_compressor.torch.modules.kernels.kernel_codes import KernelCodes, kernel_codes
from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight

_GROUPS = (32, 64, 128, 256)
_VALUES = 1 << 20
"""How many codes are unpacked at a time: the kernel's own packing takes four bytes for each."""


@dataclass(frozen=True, eq=False)
class Int4Pack:
    """A weight in the layout of the kernel, with scale and offset of each group of each output."""

    packed: Tensor
    scale_and_offset: Tensor
    group: int
    inputs: int
    columns: int
    outputs: int
    halves: int
    op: Any
    """torch's operator for the device."""


def pack_int4(weight: StoredWeight) -> Int4Pack:
    """``weight`` in the layout of the kernel of its device."""
    codes = _codes_of(weight)
    assert codes is not None
    halves = codes.bits // 4
    on_cpu = weight.data.device.type == "cpu"
    packed = [_packed(_halved(codes.codes(part), halves), on_cpu) for _, part in weight.parts(_VALUES)]
    return Int4Pack(
        torch.cat(packed),
        _scale_and_offset(codes, 16 if on_cpu else 8),
        codes.group,
        weight.shape[1],
        codes.columns,
        weight.shape[0],
        halves,
        torch.ops.aten._weight_int4pack_mm_for_cpu.default if on_cpu else torch.ops.aten._weight_int4pack_mm.default,
    )


def run_int4(pack: Int4Pack, x: Tensor) -> Tensor:
    """``x @ weight.T`` for inputs along the last axis of ``x``, in bfloat16."""
    rows = x.reshape(-1, pack.inputs).to(torch.bfloat16)
    if pack.columns != pack.inputs:
        rows = F.pad(rows, (0, pack.columns - pack.inputs))
    if pack.halves == 2:
        rows = torch.cat([rows, rows], dim=1)
    y: Tensor = pack.op(rows.contiguous(), pack.packed, pack.group, pack.scale_and_offset)
    y = y if y.shape[1] == pack.outputs else y[:, : pack.outputs]
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], pack.outputs)


def takes_int4(weight: StoredWeight) -> bool:
    """Whether codes of 4 bits hold ``weight``, and its device multiplies with them."""
    return kernel_codes(weight, 4, _GROUPS) is not None and int4_runs(weight.data.device)


def takes_int8_halves(weight: StoredWeight) -> bool:
    """The same of 8 bits, where 4 bits do not hold ``weight``."""
    codes = _codes_of(weight)
    return codes is not None and codes.bits == 8 and int4_runs(weight.data.device)


def _codes_of(weight: StoredWeight) -> KernelCodes | None:
    return kernel_codes(weight, 4, _GROUPS) or kernel_codes(weight, 8, _GROUPS)


def _halved(codes: Tensor, halves: int) -> Tensor:
    return codes if halves == 1 else torch.cat([codes >> 4, codes & 15], dim=1)


def _packed(codes: Tensor, on_cpu: bool) -> Tensor:
    outputs, columns = codes.shape
    if on_cpu:
        codes = F.pad(codes, (0, 0, 0, -outputs % 16))
        cpu: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
        return cpu
    codes = F.pad(codes, (0, 0, 0, -outputs % 8))
    tiles = next(tiles for tiles in (8, 4, 2) if columns % (16 * tiles) == 0)
    cuda: Tensor = torch.ops.aten._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], tiles)
    return cuda


def _scale_and_offset(codes: KernelCodes, rows: int) -> Tensor:
    """Bfloat16 of shape (groups, outputs, 2), the outputs filled up to a multiple of ``rows``."""
    scale = codes.scales().to(torch.bfloat16).float()
    zeros = codes.zeros()
    zero = torch.full_like(scale, codes.middle) if zeros is None else zeros
    if codes.bits == 4:
        offset = (8 - zero) * scale
    else:
        # Of (16 upper + lower - zero) the kernel is given (16 (upper - 8) + (lower - 8)): what is left is 136 - zero.
        offset = torch.cat([torch.zeros_like(scale), (136 - zero) * scale], dim=1)
        scale = torch.cat([16 * scale, scale], dim=1)
    both = torch.stack([scale, offset], dim=-1).transpose(0, 1)
    return F.pad(both, (0, 0, 0, -both.shape[1] % rows)).to(torch.bfloat16).contiguous()


@functools.cache
def int4_runs(device: torch.device) -> bool:
    """Whether a device has the kernel: a CPU is tried on a small product, a GPU needs tensor cores with bfloat16."""
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    if not hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu"):
        return False
    with torch.device("cpu"):
        codes = torch.arange(16 * 32, dtype=torch.int32).reshape(16, 32) % 16
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        scales = torch.tensor([1.0, 8.0], dtype=torch.bfloat16).expand(1, 16, 2).contiguous()
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(torch.eye(32, dtype=torch.bfloat16), packed, 32, scales)
    return bool(torch.equal(y.T.int(), codes))


# -- 8 bits ------------------------------------------------------------------------------------------------------------

_COLUMNS = 32
"""The kernel reads inputs in runs of so many: beyond the last whole one it would leave its memory."""


@dataclass(frozen=True, eq=False)
class Int8Pack:
    """Int8 weights (outputs, columns); ``zero`` is subtracted from each of an output's weights."""

    codes: Tensor
    scale: Tensor
    zero: Tensor | None
    ones: Tensor
    inputs: int


def pack_int8(weight: StoredWeight) -> Int8Pack:
    """``weight`` for the kernel; signed codes of 8 bits are used where they are."""
    kind, (outputs, inputs) = weight.scheme.dtype, weight.shape
    shift, missing = 0 if kind.signed else 128, -inputs % _COLUMNS
    if kind.bits == 8 and not shift and not missing:
        codes = weight.data.view(torch.int8)
    else:
        parts = [(part.numbers() - shift).to(torch.int8) for _, part in weight.parts(1 << 20)]
        codes = F.pad(torch.cat(parts), (0, missing))
    zeros = weight.zeros()
    zero = None if zeros is None else (zeros - shift).reshape(-1).expand(outputs)
    ones = torch.ones(outputs, dtype=torch.bfloat16, device=codes.device)
    return Int8Pack(codes, weight.steps().reshape(-1).expand(outputs), zero, ones, inputs)


def run_int8(pack: Int8Pack, x: Tensor) -> Tensor:
    """``x @ weight.T`` for inputs along the last axis of ``x``, to bfloat16's digits, in float32."""
    rows = x.reshape(-1, pack.inputs).to(torch.bfloat16)
    if pack.inputs != pack.codes.shape[1]:
        rows = F.pad(rows, (0, pack.codes.shape[1] - pack.inputs))
    # The kernel would round scales to bfloat16, so it is given ones.
    y: Tensor = torch.ops.aten._weight_int8pack_mm(rows.contiguous(), pack.codes, pack.ones)
    if pack.zero is not None:
        y = y - rows.float().sum(1, keepdim=True) * pack.zero
    y = y * pack.scale
    return y if x.dim() == 2 else y.reshape(*x.shape[:-1], len(pack.ones))


def takes_int8(weight: StoredWeight) -> bool:
    """Whether ``weight`` has integers of 5 to 8 bits and at most one scale an output, and this CPU the kernel."""
    kind = weight.scheme.dtype
    return kind.is_integer and 4 < kind.bits <= 8 and weight.groups == 1 and int8_runs()


@functools.cache
def int8_runs() -> bool:
    """Whether this machine has the kernel, tried on a small product."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    with torch.device("cpu"):
        codes = (torch.arange(16 * 32).reshape(16, 32) % 255 - 127).to(torch.int8)
        ones = torch.ones(16, dtype=torch.bfloat16)
        y = torch.ops.aten._weight_int8pack_mm(torch.eye(32, dtype=torch.bfloat16), codes, ones)
    return bool(torch.equal(y.T.int(), codes.int()))
