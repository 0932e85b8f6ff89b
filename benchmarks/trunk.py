"""Static int8 against float on a small CNN and an MLP, trained on real digits: size, latency, accuracy, calibration.

With ``--data DIR`` on MobileNetV2 and ResNet-20 instead, with their images (``vision_models.py`` says what DIR holds).
Everything a table compares is measured in one run, on one thread, interleaved, in CPU time of that thread. Calibration
memory is the peak of a process of its own. The peer is PyTorch's own FX static quantization, what a user would reach for
instead.

    python benchmarks/trunk.py [--data DIR]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import vision_models
from peak_memory import peak_mib
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.strategy.build import build_space
from neural_compressor.torch.adaptor import PyTorchAdaptor


def cnn() -> nn.Sequential:
    """Convolutions with batch normalisation on 32x32 images."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def mlp() -> nn.Sequential:
    """Three wide layers on the same images, flattened."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


MODELS: dict[str, Callable[[], nn.Sequential]] = {"CNN": cnn, "MLP": mlp}


def digits() -> tuple[torch.Tensor, ...]:
    """Training and test images (enlarged to 32x32) with their labels."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    x = nn.functional.interpolate(x, size=32, mode="bilinear")
    return tuple(train_test_split(x, torch.tensor(labels), test_size=0.4, random_state=0))


def trained(name: str, x: torch.Tensor, y: torch.Tensor, epochs: int = 3) -> nn.Sequential:
    """The model after a short training, always the same."""
    torch.manual_seed(0)
    model = MODELS[name]()
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> float:
    """Share of right answers."""
    return float((model(x).argmax(1) == y).float().mean())


@torch.no_grad()
def latencies(
    models: dict[str, Callable[[torch.Tensor], torch.Tensor]], x: torch.Tensor, seconds: float
) -> dict[str, float]:
    """Median milliseconds of each model on ``x``, measured in turns so that noise hits all alike.

    The order is drawn anew each time: a model that runs behind a larger one finds less of its own in the caches.
    """
    times: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        for _ in range(3):
            model(x)
    end = time.perf_counter() + seconds
    order, draw = list(models.items()), random.Random(0)
    while time.perf_counter() < end:
        draw.shuffle(order)
        for name, model in order:
            start = time.thread_time()
            model(x)
            times[name].append(time.thread_time() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def prepared(x: torch.Tensor, samples: int, algorithm: str) -> tuple[PostTrainingQuantConfig, DataLoader]:
    """The configuration of one default static quantization, and ``samples`` samples in batches of 10."""
    rule = {".*": {"activation": {"algorithm": [algorithm]}}}
    conf = PostTrainingQuantConfig(approach="static", calibration_sampling_size=[samples], op_type_dict=rule)
    return conf, DataLoader(TensorDataset(x[:samples], torch.zeros(len(x[:samples]))), batch_size=10)


def ours(model: nn.Module, x: torch.Tensor, samples: int, algorithm: str = "minmax") -> nn.Module:
    """One default static quantization."""
    conf, loader = prepared(x, samples, algorithm)
    with tempfile.TemporaryDirectory() as workspace:
        fitted = quantization.fit(model, conf, calib_dataloader=loader, quiet=True, workspace=workspace)
    return fitted.model  # type: ignore[no-any-return]


def peer(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """PyTorch's own FX graph-mode static quantization with its x86 defaults."""
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        prepared = prepare_fx(model, get_default_qconfig_mapping("x86"), (x[:1],))
        for start in range(0, 100, 10):
            prepared(x[start : start + 10])
        return convert_fx(prepared)  # type: ignore[no-any-return]


def cpu() -> str:
    """The instructions that decide which kernels run."""
    vnni = "with" if torch.cpu._is_vnni_supported() else "without"
    return f"{torch.backends.cpu.get_cpu_capability()} {vnni} VNNI"


@torch.no_grad()
def outputs(model: nn.Module, images: torch.Tensor, batch: int = 50) -> torch.Tensor:
    """What a model says of all images."""
    return torch.cat([model(part) for part in images.split(batch)])


def decibels(reference: torch.Tensor, found: torch.Tensor) -> float:
    """Signal to noise of outputs."""
    return float(10 * torch.log10(reference.square().mean() / (reference - found).square().mean()))


def compare_vision(console: Console, data: Path, seconds: float, count: int) -> None:
    """Latency, top-1 and distance from float of trained image networks."""
    table = Table(title=f"static int8 against float on trained networks, one thread, {cpu()}")
    for column in ("model", "batch", "float ms", "int8 ms", "speed-up", "peer speed-up", "over peer"):
        table.add_column(column, justify="right")
    for column in ("top-1 float", "int8", "peer", "dB int8", "dB peer", "in float"):
        table.add_column(column, justify="right")
    for name in ("resnet20", "mobilenet_v2"):
        vision = vision_models.vision(name, data, count)
        quantized, other = ours(vision.model, vision.calibration, 100), peer(vision.model, vision.calibration)
        said = [outputs(model, vision.images) for model in (vision.model, quantized, other)]
        scores = [f"{float((y.argmax(1) == vision.labels).float().mean()):.4f}" for y in said]
        distances = [f"{decibels(said[0], y):.1f}" for y in said[1:]]
        kept = sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in quantized.modules())
        for batch in (1, 32):
            models = {"float": vision.model, "int8": quantized, "peer": other}
            ms = latencies(models, vision.images[:batch], seconds)
            ratios = [ms["float"] / ms["int8"], ms["float"] / ms["peer"], ms["peer"] / ms["int8"]]
            numbers = [f"{ms['float']:.2f}", f"{ms['int8']:.2f}", *(f"{ratio:.2f}x" for ratio in ratios)]
            table.add_row(name, str(batch), *numbers, *scores, *distances, str(kept))
    console.print(table)


def compare(console: Console, seconds: float) -> None:
    """Size, latency and accuracy, side by side."""
    x_train, x_test, y_train, y_test = digits()
    table = Table(title=f"static int8 against float, one thread, {cpu()}")
    for column in ("model", "size ratio", "batch", "float ms", "int8 ms", "speed-up", "peer speed-up"):
        table.add_column(column, justify="right")
    for column in ("accuracy float", "int8", "peer", "kernels"):
        table.add_column(column, justify="right")
    for name in MODELS:
        model = trained(name, x_train, y_train)
        quantized, other = ours(model, x_train, 100), peer(model, x_train)
        adaptor = PyTorchAdaptor()
        ratio = adaptor.model_size(model) / adaptor.model_size(quantized)
        kernels = {m.kernel for m in quantized.modules() if hasattr(m, "kernel")}
        scores = [f"{accuracy(m, x_test, y_test):.4f}" for m in (model, quantized, other)]
        for batch in (1, 32):
            ms = latencies({"float": model, "int8": quantized, "peer": other}, x_test[:batch], seconds)
            numbers = [f"{ms['float']:.3f}", f"{ms['int8']:.3f}"]
            faster = [f"{ms['float'] / ms['int8']:.2f}x", f"{ms['float'] / ms['peer']:.2f}x"]
            table.add_row(name, f"{ratio:.2f}x", str(batch), *numbers, *faster, *scores, ", ".join(sorted(kernels)))
    console.print(table)


def calibrate_once(name: str, samples: int, algorithm: str) -> None:
    """In a process of its own: calibrate, print seconds and peak memory as JSON."""
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), torch.rand(10, 1, 32, 32).repeat(samples // 10, 1, 1, 1)
    conf, loader = prepared(x, samples, algorithm)
    adaptor = PyTorchAdaptor({"dataloader": loader})
    plan = build_space(adaptor.query_fw_capability(model), conf).default_plan()
    start = time.perf_counter()
    adaptor.quantize(plan.to_tune_cfg(), model, loader)
    seconds = time.perf_counter() - start
    peak = peak_mib() - x.nbytes / 2**20
    print(json.dumps({"seconds": seconds, "peak_mib": peak}))


def calibration(console: Console) -> bool:
    """Calibration seconds and peak memory at 100 and 1000 samples; True where memory stays flat."""
    table = Table(title="calibration: peak memory of the process, the data itself left out")
    for column in ("model", "algorithm", "100 samples", "1000 samples", "peak at 100", "peak at 1000", "growth"):
        table.add_column(column, justify="right")
    flat = True
    for name in MODELS:
        for algorithm in ("minmax", "kl"):
            runs = []
            for samples in (100, 1000):
                command = [sys.executable, __file__, "--child", name, str(samples), algorithm]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                runs.append(json.loads(out.strip().splitlines()[-1]))
            growth = runs[1]["peak_mib"] / runs[0]["peak_mib"] - 1
            flat &= growth <= 0.10
            cells = [f"{r['seconds']:.2f} s" for r in runs] + [f"{r['peak_mib']:.0f} MiB" for r in runs]
            table.add_row(name, algorithm, *cells, f"{growth:+.1%}")
    console.print(table)
    return flat


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="time spent on each latency figure")
    parser.add_argument("--data", type=Path, help="folder of trained image networks, for their table alone")
    parser.add_argument("--images", type=int, default=1000, help="images that top-1 is measured on")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        calibrate_once(options.child[0], int(options.child[1]), options.child[2])
        return
    console = Console(width=170)
    if options.data is not None:
        compare_vision(console, options.data, options.seconds, options.images)
        return
    compare(console, options.seconds)
    flat = calibration(console)
    console.print(f"calibration memory grows by at most 10% from 100 to 1000 samples: {'yes' if flat else 'NO'}")
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
