"""torch's product of bfloat16 rows with int8 weights that have one scale an output, or one in all."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight

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
    """``x @ weight.T`` for rows ``x``, to bfloat16's digits, in float32."""
    x = x.to(torch.bfloat16)
    if x.shape[1] != pack.codes.shape[1]:
        x = F.pad(x, (0, pack.codes.shape[1] - pack.inputs))
    # The kernel would round scales to bfloat16, so it is given ones.
    y: Tensor = torch.ops.aten._weight_int8pack_mm(x.contiguous(), pack.codes, pack.ones)
    if pack.zero is not None:
        y = y - x.float().sum(1, keepdim=True) * pack.zero
    return y * pack.scale


def takes_int8(weight: StoredWeight) -> bool:
    """Whether ``weight`` has integers of 5 to 8 bits and at most one scale an output."""
    kind = weight.scheme.dtype
    return kind.is_integer and 4 < kind.bits <= 8 and weight.groups == 1


@functools.cache
def int8_runs_on_cpu() -> bool:
    """Whether this machine has the kernel, tried on a small product."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return False
    with torch.device("cpu"):
        codes = (torch.arange(16 * 32).reshape(16, 32) % 255 - 127).to(torch.int8)
        ones = torch.ones(16, dtype=torch.bfloat16)
        y = torch.ops.aten._weight_int8pack_mm(torch.eye(32, dtype=torch.bfloat16), codes, ones)
    return bool(torch.equal(y.T.int(), codes.int()))
