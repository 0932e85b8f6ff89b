"""How fast each weight-only kernel multiplies, over torch's float32 and bfloat16 products.

    python benchmarks/weight_only_kernels.py                  # the table, one thread
    python benchmarks/weight_only_kernels.py --device cuda
    python benchmarks/weight_only_kernels.py --fit            # and the constants of nn/weight_only_kernels.py

Calls of all kernels are interleaved, and each kernel goes round several layers so that no weight is found in the cache
which a model would have driven out. Times are medians: of the thread's CPU time, or of the GPU between two events.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.kernels.dequantized_product import dequantized_product, product_dtype
from neural_compressor.torch.modules.kernels.weight_only import DEQUANTIZE, WEIGHT_ONLY_KERNELS, WeightOnlyKernel

WIDTHS, ROWS = (576, 2048, 4096), (1, 4, 16, 128, 512)
WEIGHTS = {
    "int4 g64": {"dtype": "int4", "group_size": 64},
    "uint4 asym g32": {"dtype": "uint4", "scheme": "asym", "group_size": 32},
    "int8": {"dtype": "int8", "granularity": "per_channel"},
    "int8 g64": {"dtype": "int8", "group_size": 64},
    "nf4 g64": {"dtype": "nf4", "group_size": 64},
}
Product = Callable[[Tensor], object]
Case = tuple[list[Product], torch.dtype]
"""The same product with the weights of several layers, and the type of its input."""


def float_case(width: int, dtype: torch.dtype, copies: int, device: str) -> Case:
    """torch's own product."""

    def product(weight: Tensor) -> Product:
        return lambda x: F.linear(x, weight)

    return [product(torch.randn(width, width, device=device).to(dtype)) for _ in range(copies)], dtype


def kernel_case(kernel: WeightOnlyKernel, layers: Sequence[WeightOnlyLinear]) -> Case:
    """A kernel by itself, with the input in the type it multiplies."""

    def product(layer: WeightOnlyLinear) -> Product:
        packed = kernel.pack(layer.stored_weight())
        return lambda x: kernel.run(packed, x)

    return [product(layer) for layer in layers], torch.float32 if "onnx" in kernel.name else torch.bfloat16


def dequantize_case(layers: Sequence[WeightOnlyLinear], device: str) -> Case:
    """Unpack, multiply, forget."""
    dtype = product_dtype(torch.float32, device, exact=False)

    def product(layer: WeightOnlyLinear) -> Product:
        return lambda x: dequantized_product(x, layer.stored_weight(), dtype)

    return [product(layer) for layer in layers], dtype


def cases_of(weight: str, width: int, device: str) -> dict[str, Case]:
    """Every way to multiply with a weight of this kind."""
    copies = max(1, min(8, 48_000_000 // (4 * width * width)))
    scheme = OpScheme.from_dict({"weight": WEIGHTS[weight]})
    layers = [
        WeightOnlyLinear.from_float(nn.Linear(width, width, bias=False).to(device), scheme) for _ in range(copies)
    ]
    cases = {
        str(t).removeprefix("torch."): float_case(width, t, copies, device) for t in (torch.float32, torch.bfloat16)
    }
    for kernel in WEIGHT_ONLY_KERNELS:
        if kernel.can_run(layers[0].stored_weight()):
            cases[kernel.name] = kernel_case(kernel, layers)
    cases[DEQUANTIZE] = dequantize_case(layers, device)
    cases["layer, float32"] = list(layers), torch.float32
    # Another layer than the one before has just left in the cache.
    cases["layer, bfloat16"] = [*layers[1:], *layers[:1]], torch.bfloat16
    return cases


def seconds(product: Product, x: Tensor) -> float:
    """One call."""
    if x.device.type == "cuda":
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        product(x)
        stop.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop)) / 1e3
    start_time = time.thread_time()
    product(x)
    return time.thread_time() - start_time


def measure(cases: Mapping[str, Case], rows: int, width: int, device: str, budget: float) -> dict[str, float]:
    """The median time of each case, in seconds; about ``budget`` seconds in all."""
    x = torch.randn(rows, width, device=device)
    inputs = {dtype: x.to(dtype) for _, dtype in cases.values()}
    once = sum(seconds(product, inputs[dtype]) for products, dtype in cases.values() for product in products)
    copies = len(next(iter(cases.values()))[0])
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(max(5, min(60, int(budget * copies / once)))):
        for name, (products, dtype) in cases.items():
            times[name].append(seconds(products[turn % len(products)], inputs[dtype]))
    return {name: statistics.median(measured) for name, measured in times.items()}


def print_fit(measured: Mapping[str, Sequence[tuple[int, int, float]]]) -> None:
    """Costs that fit ``(weights, rows, seconds)``, each weighed by its inverse so that fast calls count too."""
    for name, points in measured.items():
        table = np.asarray([[1.0, weights * 1e-6, weights * rows * 1e-6] for weights, rows, _ in points])
        micro = np.asarray([seconds * 1e6 for _, _, seconds in points])
        call, weight, row = np.linalg.lstsq(table / micro[:, None], np.ones(len(points)), rcond=None)[0]
        print(f"{name:>34}: Cost({call:.0f}, {weight:.1f}, {row:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weights", nargs="+", default=list(WEIGHTS), choices=list(WEIGHTS))
    parser.add_argument("--widths", nargs="+", type=int, default=WIDTHS)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--seconds", type=float, default=1.0, help="spent on each line of the table")
    parser.add_argument("--fit", action="store_true", help="print the constants of the cost model")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    measured: dict[str, list[tuple[int, int, float]]] = {}
    for weight in options.weights:
        for width in options.widths:
            cases = cases_of(weight, width, options.device)
            print(f"\n{weight}, {width} x {width}: times as fast as float32")
            print("rows".rjust(6), "float32".rjust(12), *(name.rjust(max(len(name), 8)) for name in list(cases)[1:]))
            for rows in options.rows:
                found = measure(cases, rows, width, options.device, options.seconds)
                for name, time_taken in found.items():
                    key = name if name != DEQUANTIZE else f"{name} {weight}"
                    measured.setdefault(key, []).append((width * width, rows, time_taken))
                base = found.pop("float32")
                ratios = (f"{base / t:.2f}".rjust(max(len(name), 8)) for name, t in found.items())
                print(str(rows).rjust(6), f"{base * 1e3:.3f} ms".rjust(12), *ratios, flush=True)
    if options.fit:
        print("\nmicroseconds a call, picoseconds a weight, picoseconds a weight and row")
        print_fit({name: points for name, points in measured.items() if not name.startswith("layer")})


if __name__ == "__main__":
    main()
