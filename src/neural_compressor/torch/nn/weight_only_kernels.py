"""What multiplies with the weight of a weight-only layer: one table of kernels, and what each of them costs.

Reading packed weights makes few rows fast, and nothing else does: as rows become more, unpacking the weight once and
multiplying in bfloat16 overtakes each of these kernels. The costs say where; ``benchmarks/weight_only_kernels.py`` measures
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from neural_compressor.torch.nn import int4pack, int8pack, ort_matmul
from neural_compressor.torch.nn.stored_weight import StoredWeight


@dataclass(frozen=True)
class Cost:
    """How long a product takes: microseconds a call, picoseconds a weight, picoseconds a weight and row.

    >>> Cost(10, 50, 20).microseconds(weights=1_000_000, rows=2)
    100.0
    """

    call: float
    weight: float
    row: float

    def microseconds(self, weights: int, rows: int) -> float:
        """The time of a product of ``rows`` inputs with so many weights."""
        return self.call + weights * (self.weight + self.row * rows) * 1e-6


@dataclass(frozen=True)
class WeightOnlyKernel:
    """A kernel that multiplies with packed weights: where it runs, how it is prepared, what it costs."""

    name: str
    can_run: Callable[[StoredWeight], bool]
    pack: Callable[[StoredWeight], Any]
    run: Callable[[Any, Tensor], Tensor]
    cost: Cost


def _on_cpu(weight: StoredWeight) -> bool:
    return weight.data.device.type == "cpu"


def _on_cuda(weight: StoredWeight) -> bool:
    return weight.data.device.type == "cuda"


def _int4_on_cpu(weight: StoredWeight) -> bool:
    return _on_cpu(weight) and int4pack.takes_int4(weight) and int4pack.int4_runs_on_cpu()


def _int8_halves_on_cpu(weight: StoredWeight) -> bool:
    return _on_cpu(weight) and int4pack.takes_int8_halves(weight) and int4pack.int4_runs_on_cpu()


def _int8_on_cpu(weight: StoredWeight) -> bool:
    return _on_cpu(weight) and int8pack.takes_int8(weight) and int8pack.int8_runs_on_cpu()


def _ort_on_cpu(weight: StoredWeight) -> bool:
    return _on_cpu(weight) and ort_matmul.ort_runs(weight)


def _int4_on_cuda(weight: StoredWeight) -> bool:
    return _on_cuda(weight) and int4pack.takes_int4(weight) and int4pack.int4_runs_on_cuda(weight.data.device)


def _int8_halves_on_cuda(weight: StoredWeight) -> bool:
    return _on_cuda(weight) and int4pack.takes_int8_halves(weight) and int4pack.int4_runs_on_cuda(weight.data.device)


KERNELS: tuple[WeightOnlyKernel, ...] = (
    WeightOnlyKernel("torch int4pack", _int4_on_cpu, int4pack.pack_int4, int4pack.run_int4, Cost(8, 33, 24)),
    WeightOnlyKernel("torch int8pack", _int8_on_cpu, int8pack.pack_int8, int8pack.run_int8, Cost(20, 65, 27)),
    WeightOnlyKernel(
        "torch int4pack twice", _int8_halves_on_cpu, int4pack.pack_int4, int4pack.run_int4, Cost(15, 70, 46)
    ),
    WeightOnlyKernel("onnxruntime MatMulNBits", _ort_on_cpu, ort_matmul.pack_ort, ort_matmul.run_ort, Cost(20, 25, 14)),
    WeightOnlyKernel("cuda int4pack", _int4_on_cuda, int4pack.pack_int4, int4pack.run_int4, Cost(28, 0.05, 0.056)),
    WeightOnlyKernel(
        "cuda int4pack twice", _int8_halves_on_cuda, int4pack.pack_int4, int4pack.run_int4, Cost(32, 0.1, 0.11)
    ),
)
"""Every kernel for packed weights, with its cost on one thread of a CPU with AVX-512, or on an H200.

Missing is torch's int8 product with dynamic activations, faster than all of these: with one scale for a whole batch of
activations it takes the perplexity of SmolLM2-135M from 19.8 to 29.5, which is no weight-only quantization any more.
"""

DEQUANTIZE = "dequantize"
_MEASURED_ROWS = 512
_DEQUANTIZE = {"cpu": Cost(60, 750, 10.5), "cuda": Cost(80, 6, 0.0025)}
_DEQUANTIZE_BYTES = {"cpu": Cost(60, 450, 10.5), "cuda": Cost(80, 5, 0.0025)}


def dequantize_cost(weight: StoredWeight) -> Cost:
    """What it costs to unpack the weight at each call and to multiply in bfloat16.

    It is what is left where no kernel fits, and what is best for many rows.
    """
    table = _DEQUANTIZE_BYTES if weight.scheme.dtype.bits == 8 else _DEQUANTIZE
    return table[weight.data.device.type]


def kernel_of(weight: StoredWeight) -> WeightOnlyKernel | None:
    """The kernel that is fastest for one row; None where no one takes the weight.

    One, because each holds the weight in a layout of its own.
    """
    fitting = [kernel for kernel in KERNELS if kernel.can_run(weight)]
    weights = weight.shape[0] * weight.shape[1]
    return min(fitting, key=lambda kernel: kernel.cost.microseconds(weights, 1), default=None)


def most_rows(kernel: WeightOnlyKernel, weight: StoredWeight) -> int:
    """Up to how many rows ``kernel`` is faster than unpacking the weight."""
    unpack, weights = dequantize_cost(weight), weight.shape[0] * weight.shape[1]
    ahead = unpack.microseconds(weights, 0) - kernel.cost.microseconds(weights, 0)
    behind = (kernel.cost.row - unpack.row) * weights * 1e-6
    return min(max(int(ahead / behind), 1), _MEASURED_ROWS)
