"""How far apart two measurements of one model are: a model raced against an identical copy of itself, many times.

The ratio should be 1.00 each time. ``--busy`` keeps one core busy with another process meanwhile.

    python benchmarks/latency_spread.py --repeats 25 --busy
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.tuning.bench import Bench

IMAGES = {"32 images": 32, "1 image": 1}


def network() -> nn.Module:
    """Three convolutions and a classifier for images of 16x16."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 64, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4096, 10)).eval()


def exported(model: nn.Module) -> onnx.ModelProto:
    """The network in ONNX, for any number of images."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        axes = {"x": {0: "batch"}}
        torch.onnx.export(
            model, (torch.zeros(1, 1, 16, 16),), str(path), input_names=["x"], dynamic_axes=axes, dynamo=False
        )
        return onnx.load(path)


def spin() -> None:
    """Work without end."""
    while True:
        sum(range(1000))


@contextmanager
def company(busy: bool) -> Iterator[None]:
    """Another process that works all the time, where asked for."""
    process = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    if busy:
        process.start()
    try:
        yield
    finally:
        if busy:
            process.terminate()
            process.join()


def ratios(
    bench: Bench, model: Any, duplicate: Any, repeats: int, measure: Callable[[Bench, Any], Any]
) -> tuple[list[float], float]:
    """The latency of the copy as a multiple of the model's, and the widest spread that came with one."""
    baseline = bench.measure(model)
    assert baseline.latency_ms is not None
    compared = bench.against(model, baseline)
    found = [measure(compared, duplicate) for _ in range(repeats)]
    return [each.latency_ms / baseline.latency_ms for each in found], max(each.latency_spread for each in found)


EFFORTS: dict[str, Callable[[Bench, Any], Any]] = {
    "trial": lambda bench, model: bench.measure(model),
    "final": lambda bench, model: bench.measure_again([model], [bench.measure(model)])[0],
}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--busy", action="store_true", help="keep one core busy with another process meanwhile")
    options = parser.parse_args()
    print("ratio of a model to itself: framework, input, measured as; least, most, widest spread")
    frameworks = {"PyTorch": (PyTorchAdaptor(), network()), "ONNX Runtime": (ONNXRTAdaptor(), exported(network()))}
    with company(options.busy):
        for framework, (adaptor, model) in frameworks.items():
            for shown, count in IMAGES.items():
                x = torch.randn(count, 1, 16, 16)
                batch = {"x": x.numpy()} if framework == "ONNX Runtime" else x
                for effort, measure in EFFORTS.items():
                    bench = Bench(adaptor, None, batch)
                    found, spread = ratios(bench, model, copy.deepcopy(model), options.repeats, measure)
                    name = f"{framework}, {shown}, {effort}"
                    print(f"{name:34}{min(found):7.3f}{max(found):7.3f}{spread:7.3f}", flush=True)


if __name__ == "__main__":
    main()
