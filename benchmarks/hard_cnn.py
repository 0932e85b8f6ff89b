"""What helps a CNN that int8 hurts: each way to choose ranges, corrections, equalization, learned rounding, beside float.

    python benchmarks/hard_cnn.py --data DIR [--images 1000] [--exactly NAME ...]
    python benchmarks/hard_cnn.py --data DIR --model resnet20 --only "4 bits" "3 bits"

``vision_models.py`` says what DIR holds. Everything is one run on one thread. Top-1 is paired: "won" and "lost" are images
that only the quantized, or only the float model gets right; the error is the standard error of the difference, in points.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import vision_models
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trunk import cpu, decibels, outputs

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig

NO_CORRECTION: dict[str, Any] = {"fast_bias_correction": False}
BY_LAYER: dict[str, Any] = {"learned_rounding": "layer"}
BY_BLOCK: dict[str, Any] = {"learned_rounding": "block"}
SEARCHED: dict[str, Any] = {"range_search": True}
EQUALIZED: dict[str, Any] = {"equalization": True}
VARIANTS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "a scale a channel, minmax, nothing corrected": ("per_channel", "minmax", NO_CORRECTION, "int8"),
    "a scale a channel, minmax": ("per_channel", "minmax", {}, "int8"),
    "a scale a channel, kl (default)": ("per_channel", "kl", {}, "int8"),
    "a scale a channel, kl, searched": ("per_channel", "kl", SEARCHED, "int8"),
    "a scale a channel, kl, equalized, searched": ("per_channel", "kl", EQUALIZED | SEARCHED, "int8"),
    "a scale a channel, kl, by layer": ("per_channel", "kl", BY_LAYER, "int8"),
    "a scale a channel, kl, searched, by layer": ("per_channel", "kl", SEARCHED | BY_LAYER, "int8"),
    "a scale a channel, percentile": ("per_channel", "percentile", {}, "int8"),
    "one scale, minmax, nothing corrected": ("per_tensor", "minmax", NO_CORRECTION, "int8"),
    "one scale, kl": ("per_tensor", "kl", {}, "int8"),
    "one scale, kl, equalized": ("per_tensor", "kl", EQUALIZED, "int8"),
    "one scale, kl, equalized, by layer": ("per_tensor", "kl", EQUALIZED | BY_LAYER, "int8"),
    "one scale, kl, equalized, searched": ("per_tensor", "kl", EQUALIZED | SEARCHED, "int8"),
    "one scale, kl, equalized, searched, by layer": ("per_tensor", "kl", EQUALIZED | SEARCHED | BY_LAYER, "int8"),
    "one scale, kl, equalized, searched, by block": ("per_tensor", "kl", EQUALIZED | SEARCHED | BY_BLOCK, "int8"),
    "4 bits, kl": ("per_channel", "kl", {}, "int4"),
    "4 bits, kl, searched": ("per_channel", "kl", SEARCHED, "int4"),
    "4 bits, kl, by layer": ("per_channel", "kl", BY_LAYER, "int4"),
    "4 bits, kl, by block": ("per_channel", "kl", BY_BLOCK, "int4"),
    "4 bits, kl, searched, by layer": ("per_channel", "kl", SEARCHED | BY_LAYER, "int4"),
    "3 bits, kl": ("per_channel", "kl", {}, "int3"),
    "3 bits, kl, by layer": ("per_channel", "kl", BY_LAYER, "int3"),
    "3 bits, kl, by block": ("per_channel", "kl", BY_BLOCK, "int3"),
    "3 bits, kl, searched, by layer": ("per_channel", "kl", SEARCHED | BY_LAYER, "int3"),
}
"""Granularity of weights, estimator of activation ranges, recipes, type of weights.

Below int8 activations have as few bits, and ops are simulated.
"""


def quantized(
    vision: vision_models.Vision, granularity: str, algorithm: str, recipes: dict[str, Any], dtype: str
) -> nn.Module:
    """One static quantization."""
    rules = {
        ".*": {"activation": {"algorithm": [algorithm]}},
        "Conv2d|Linear": {"weight": {"granularity": [granularity], "dtype": [dtype]}},
    }
    conf = PostTrainingQuantConfig(calibration_sampling_size=[100], op_type_dict=rules, recipes=recipes)
    loader = DataLoader(TensorDataset(vision.calibration, torch.zeros(len(vision.calibration))), batch_size=20)
    with tempfile.TemporaryDirectory() as workspace:
        fitted = quantization.fit(vision.model, conf, calib_dataloader=loader, quiet=True, workspace=workspace)
    return fitted.model  # type: ignore[no-any-return]


def compared(labels: Tensor, expected: Tensor, found: Tensor) -> list[str]:
    """Top-1, difference from float with its standard error, images won and lost, distance of outputs."""
    right, wanted = found.argmax(1) == labels, expected.argmax(1) == labels
    won, lost = int((right & ~wanted).sum()), int((wanted & ~right).sum())
    points, error = 100 * (won - lost) / len(labels), 100 * (won + lost) ** 0.5 / len(labels)
    top = f"{100 * float(right.float().mean()):.1f}"
    return [top, f"{points:+.1f} ({error:.1f})", str(won), str(lost), f"{decibels(expected, found):.1f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of trained image networks")
    parser.add_argument("--images", type=int, default=1000, help="images that top-1 is measured on")
    parser.add_argument("--model", default="mobilenet_v2", choices=vision_models.NAMES)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), help="parts of names of what is tried")
    parser.add_argument("--exactly", nargs="*", default=(), choices=list(VARIANTS), help="whole names of what is tried")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=150)
    vision = vision_models.vision(options.model, options.data, options.images)
    # Several times as fast in this layout.
    expected = outputs(vision.model, vision.images.contiguous(memory_format=torch.channels_last))
    table = Table(title=f"{options.model}, static quantization beside float, {len(vision.labels)} images, {cpu()}")
    for column in ("", "top-1", "points to float", "won", "lost", "dB", "seconds"):
        table.add_column(column, justify="right")
    table.add_row("float", f"{100 * float((expected.argmax(1) == vision.labels).float().mean()):.1f}")
    for name, variant in VARIANTS.items():
        if name in options.exactly if options.exactly else any(part in name for part in options.only):
            start = time.perf_counter()
            model = quantized(vision, *variant)
            seconds = time.perf_counter() - start
            row = [name, *compared(vision.labels, expected, outputs(model, vision.images)), f"{seconds:.0f}"]
            console.print("; ".join(row), highlight=False)  # a run takes minutes: what is known is shown
            table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
