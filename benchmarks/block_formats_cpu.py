"""Seconds to round a matrix to block formats and back: ours, torchao's emulation, and the definition written out.

    python benchmarks/block_formats_cpu.py --size 4096 --rounds 5

CPU seconds of all threads (OMP_NUM_THREADS sets them), the least of several rounds in turns. Where a side gives other
values than ours its worst difference is printed beside: torchao's NVFP4 has other scales of blocks.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from neural_compressor.dtypes import dtype
from neural_compressor.schemes import TensorScheme, fake_quantize

FORMATS = ("mxfp4", "mxfp8_e4m3", "mxint8", "nvfp4")
Side = Callable[[Tensor], Tensor]
_FLOATS = {"mxfp4": (2, 1, 6.0), "nvfp4": (2, 1, 6.0), "mxfp8_e4m3": (8, 3, 448.0)}
"""Exponent of the largest number, digits, largest number."""


def plain(name: str) -> Side:
    """The definition written with log2 and powers, as emulations do."""

    def elements(x: Tensor, top: int, digits: int, largest: float, lowest: int) -> Tensor:
        exponent = torch.floor(torch.log2(x.abs() + (x == 0) * 2.0**-126)).clamp(min=lowest)
        step = 2.0 ** (exponent - digits)
        return (torch.round(x / step) * step).clamp(-largest, largest)

    def run(x: Tensor) -> Tensor:
        size = 16 if name == "nvfp4" else 32
        blocks = x.reshape(-1, size)
        peak = blocks.abs().amax(1, keepdim=True)
        if name == "nvfp4":
            whole = peak.max() / 2688
            scale = (peak / 6 / whole).clamp(2.0**-9, 448.0).to(torch.float8_e4m3fn).float() * whole
            return (elements(blocks / scale, *_FLOATS[name], 0) * scale).reshape(x.shape)
        top = 6 if name == "mxint8" else _FLOATS[name][0]
        scale = 2.0 ** (torch.floor(torch.log2(peak + (peak == 0) * 2.0**-126)) - top).clamp(-127, 127)
        if name == "mxint8":
            return (torch.round(blocks / scale).clamp(-128, 127) * scale).reshape(x.shape)
        lowest = {"mxfp4": 0, "mxfp8_e4m3": -6}[name]
        return (elements(blocks / scale, *_FLOATS[name], lowest) * scale).reshape(x.shape)

    return run


def torchao(name: str) -> Side | None:
    """torchao's emulation, where it is installed and has the format."""
    try:
        from torchao.prototype.mx_formats.mx_tensor import MXTensor
        from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    except ImportError:
        return None
    if name == "nvfp4":
        return lambda x: NVFP4Tensor.to_nvfp4(x, per_tensor_scale=x.abs().amax() / 2688).dequantize(torch.float32)
    kind = {"mxfp4": torch.float4_e2m1fn_x2, "mxfp8_e4m3": torch.float8_e4m3fn}.get(name)
    return None if kind is None else lambda x: MXTensor.to_mx(x, kind, 32).dequantize(torch.float32)


def sides(name: str) -> dict[str, Side]:
    """Who rounds to a format."""
    scheme = TensorScheme(dtype(name))
    found: dict[str, Side | None] = {
        "ours": lambda x: fake_quantize(x, scheme),
        "plain": plain(name),
        "torchao": torchao(name),
    }
    return {side: run for side, run in found.items() if run is not None}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    x = torch.randn(options.size, options.size, generator=torch.Generator().manual_seed(0))
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    table = Table("format", "ours", "plain", "torchao", title=f"CPU seconds, {tuple(x.shape)}, {cpu}")
    for name in FORMATS:
        least: dict[str, float] = {}
        notes: dict[str, str] = {}
        reference = fake_quantize(x, TensorScheme(dtype(name)))
        for _ in range(options.rounds):
            for side, run in sides(name).items():
                start = time.process_time()
                try:
                    found = run(x)
                except Exception as error:  # noqa: BLE001  what another package cannot do is a cell of the table
                    notes[side] = f"{type(error).__name__}: {error}"[:40]
                    continue
                least[side] = min(least.get(side, float("inf")), time.process_time() - start)
                worst = float((found - reference).abs().max())
                notes[side] = f" (differs by {worst:.2g})" if worst else ""
        cells = [f"{least[s]:.3f}{notes[s]}" if s in least else notes.get(s, "") for s in ("ours", "plain", "torchao")]
        table.add_row(name, *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
