"""What multiplies with the weight of a weight-only layer: one table of kernels, and what each of them costs.

Reading packed weights makes few rows fast, and nothing else does: as rows become more, unpacking the weight once and
multiplying in float overtakes each of these kernels. Which kernel is fastest, and up to how many rows, is found by a race on
the machine (``race.py``) with the shapes of the model; where none is run, a fixed table of costs says it.
``benchmarks/weight_only_kernels.py`` measures the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules.kernels.dequantized_product import dequantized_product, product_dtype
from neural_compressor.torch.modules.kernels.ort_matmul import ort_runs, pack_ort, run_ort
from neural_compressor.torch.modules.kernels.race import Race, current_race, instructions
from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight
from neural_compressor.torch.modules.kernels.table import Kernel, kernels_of, register
from neural_compressor.torch.modules.kernels.torch_matmul import (
    pack_int4,
    pack_int8,
    run_int4,
    run_int8,
    takes_int4,
    takes_int8,
    takes_int8_halves,
)


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
class WeightOnlyKernel(Kernel):
    """A kernel that multiplies with packed weights: where it runs, how it is prepared, what it costs by class of device.

    Which of them runs depends on the layout of a weight too: :func:`choose` asks for it.
    ``run(packed, x)`` is the product with inputs along the last axis of ``x``, which has any rank.
    """

    can_run: Callable[[StoredWeight], bool]
    pack: Callable[[StoredWeight], Any]
    run: Callable[[Any, Tensor], Tensor]
    costs: Mapping[str, Cost]

    def fits(self, op_type: str, scheme: OpScheme, device: str = "cpu") -> bool:
        own = "cuda" if "cuda" in self.costs else "cpu"
        return scheme.mode == "weight_only" and op_type in ("Linear", "Conv1D") and device == own

    def runs(self, op_type: str, scheme: OpScheme, device: str = "cpu") -> bool:
        return False  # a scheme alone does not tell


def _takes_on(device: str, takes: Callable[[StoredWeight], bool], weight: StoredWeight) -> bool:
    return weight.data.device.type == device and takes(weight)


def _on(device: str, takes: Callable[[StoredWeight], bool]) -> Callable[[StoredWeight], bool]:
    return partial(_takes_on, device, takes)  # which can be pickled, as layers are with their kernel


def _cpu(avx512: Cost, avx2: Cost) -> dict[str, Cost]:
    return {"avx512": avx512, "avx2": avx2}


WEIGHT_ONLY_KERNELS = register(
    WeightOnlyKernel(
        "onnxruntime MatMulNBits", _on("cpu", ort_runs), pack_ort, run_ort, _cpu(Cost(20, 25, 14), Cost(20, 50, 25))
    ),
    WeightOnlyKernel(
        "torch int4pack", _on("cpu", takes_int4), pack_int4, run_int4, _cpu(Cost(8, 33, 24), Cost(8, 90, 36))
    ),
    WeightOnlyKernel(
        "torch int8pack", _on("cpu", takes_int8), pack_int8, run_int8, _cpu(Cost(20, 65, 27), Cost(20, 145, 35))
    ),
    WeightOnlyKernel(
        "torch int4pack twice",
        _on("cpu", takes_int8_halves),
        pack_int4,
        run_int4,
        _cpu(Cost(15, 70, 46), Cost(15, 195, 69)),
    ),
    WeightOnlyKernel("cuda int4pack", _on("cuda", takes_int4), pack_int4, run_int4, {"cuda": Cost(28, 0.05, 0.056)}),
    WeightOnlyKernel(
        "cuda int4pack twice", _on("cuda", takes_int8_halves), pack_int4, run_int4, {"cuda": Cost(32, 0.1, 0.11)}
    ),
)
"""Every kernel for packed weights, in order of preference, with its cost on one thread of a CPU or on an H200.

Missing is torch's int8 product with dynamic activations, faster than all of these: with one scale for a whole batch of
activations it takes the perplexity of SmolLM2-135M from 19.8 to 29.5, which is no weight-only quantization any more.
"""

DEQUANTIZE = "dequantize"
_DEQUANTIZE = {"avx512": Cost(60, 750, 10.5), "avx2": Cost(60, 750, 23), "cuda": Cost(80, 6, 0.0025)}
_DEQUANTIZE_BYTES = {"avx512": Cost(60, 450, 10.5), "avx2": Cost(60, 450, 23), "cuda": Cost(80, 5, 0.0025)}

_MUST_GAIN = 1.5
"""A kernel is taken before one that is preferred to it where it is so many times as fast.

Noise decides nothing then, and layers that share an input, but not their size, have the same kernel and so one product.
"""
_MUST_GAIN_ON_UNPACKING = 1.1
"""So many times as fast as unpacking a kernel must be for many rows: the product of unpacked weights has more digits."""
_ROWS = (8, 32, 128, 512)
"""Where kernel and unpacking are compared; beyond the last one weights are unpacked."""
_SMALL = 1 << 16
"""Weights of fewer values than this are not worth a race: a call takes about as long whatever runs it."""
_RACED = 1 << 20
"""Of a larger weight so many values race, and the time is taken to grow with the outputs."""


@dataclass(frozen=True)
class Choice:
    """The kernel of a weight, and up to how many rows it is faster than unpacking; one kernel, as each holds the weight
    in a layout of its own."""

    kernel: WeightOnlyKernel | None = None
    most_rows: int = 0


def choose(weight: StoredWeight) -> Choice:
    """What multiplies with ``weight``: by a race on this machine, for small weights and on GPUs by the table."""
    fitting = [kernel for kernel in kernels_of(WeightOnlyKernel) if kernel.can_run(weight)]
    if not fitting:
        return Choice()
    race = current_race()
    values = weight.shape[0] * weight.shape[1]
    if race is None or values < _SMALL or weight.data.device.type != "cpu":
        return _choice(fitting, lambda kernels, rows: _by_table(weight, kernels, rows))
    racer = _Racer(race, weight)
    return _choice(fitting, racer.microseconds)


Times = Callable[[Sequence["WeightOnlyKernel | None"], int], list[float]]
"""Microseconds of each kernel, or of unpacking where it is None, for a number of rows."""


def _choice(fitting: Sequence[WeightOnlyKernel], times: Times) -> Choice:
    kernel, least = fitting[0], float("inf")
    for other, taken in zip(fitting, times(fitting, 1), strict=True):
        if taken * _MUST_GAIN < least:
            kernel, least = other, taken
    return Choice(kernel, _most_rows(kernel, times))


def _most_rows(kernel: WeightOnlyKernel, times: Times) -> int:
    """Where the straight lines between what was timed cross."""
    fewer, ahead = 1, 0.0
    for rows in _ROWS:
        packed, unpacked = times([kernel, None], rows)
        gain = unpacked - packed * _MUST_GAIN_ON_UNPACKING
        if gain < 0:
            return fewer if fewer == 1 else int(fewer + (rows - fewer) * ahead / (ahead - gain))
        fewer, ahead = rows, gain
    return fewer


def device_class(weight: StoredWeight) -> str:
    """The column of the fixed tables: ``avx512`` (with VNNI), ``avx2`` for every other CPU, or ``cuda``."""
    kind = weight.data.device.type
    if kind != "cpu":
        return kind
    return "avx512" if "AVX512" in instructions() and "VNNI" in instructions() else "avx2"


def dequantize_cost(weight: StoredWeight) -> Cost:
    """What it costs to unpack the weight at each call and to multiply in the fastest float type.

    It is what is left where no kernel fits, and what is best for many rows.
    """
    table = _DEQUANTIZE_BYTES if weight.scheme.dtype.bits == 8 else _DEQUANTIZE
    return table[device_class(weight)]


def _by_table(weight: StoredWeight, kernels: Sequence[WeightOnlyKernel | None], rows: int) -> list[float]:
    values, kind = weight.shape[0] * weight.shape[1], device_class(weight)
    costs = [dequantize_cost(weight) if kernel is None else kernel.costs[kind] for kernel in kernels]
    return [cost.microseconds(values, rows) for cost in costs]


class _Racer:
    """Times products with a weight; layouts are made once, and only where something has to be timed."""

    def __init__(self, race: Race, weight: StoredWeight) -> None:
        outputs, inputs = weight.shape
        raced = min(outputs, max(_RACED // inputs // 64, 1) * 64)
        self._race, self._weight = race, weight.rows(slice(0, raced))
        self._scale = outputs / raced
        self._packed: dict[str, Any] = {}
        kind = "" if weight.zeros() is None else " with zeros"
        scheme = f"{weight.scheme.dtype.name} g{weight.group_size}{kind}"
        self._what = f"{scheme} {raced}x{inputs}, {torch.get_num_threads()} threads"

    def microseconds(self, kernels: Sequence[WeightOnlyKernel | None], rows: int) -> list[float]:
        names = [DEQUANTIZE if kernel is None else kernel.name for kernel in kernels]
        keys = [f"{name}: {self._what}, {rows} rows" for name in names]
        makers = {key: self._maker(kernel, rows) for key, kernel in zip(keys, kernels, strict=True)}
        found = self._race.microseconds(makers)
        return [found[key] * self._scale for key in keys]

    def _maker(self, kernel: WeightOnlyKernel | None, rows: int) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            x, weight = torch.ones(rows, self._weight.shape[1]), self._weight
            if kernel is None:
                dtype = product_dtype(x.dtype, "cpu", exact=False)
                return lambda: dequantized_product(x, weight, dtype).float()
            if kernel.name not in self._packed:
                self._packed[kernel.name] = kernel.pack(weight)
            packed = self._packed[kernel.name]
            return lambda: kernel.run(packed, x).float()

        return make
