"""Few-bit weights of ResNet-20 on CIFAR-10: quantized after training, and trained for a while with rounding.

    python benchmarks/qat_cifar.py --data DIR [--epochs 30] [--bits 2]

``DIR`` is described in ``vision_models.py``. The network is trained on the few images there are for calibration, with flips
and shifts, towards the outputs of the float network. Weights of all convolutions but the first have ``--bits``; the first,
the last layer and all activations have 8.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from vision_models import Vision, resnet

from neural_compressor.algorithms.qat import trained
from neural_compressor.kernel_timings import cpu_model
from neural_compressor.schemes import OpKey, OpScheme, Plan
from neural_compressor.torch.adaptor import PyTorchAdaptor

_ACTIVATION = {"dtype": "uint8", "scheme": "asym", "granularity": "per_tensor", "quant_mode": "static"}


def plan_of(capability: dict[str, Any], bits: int) -> Plan:
    """Few bits for the convolutions behind the first, 8 for the rest."""

    def op(width: int) -> OpScheme:
        weight = {"dtype": f"int{width}", "scheme": "sym", "granularity": "per_channel"}
        return OpScheme.from_dict({"weight": weight, "activation": _ACTIVATION})

    keys: list[OpKey] = list(capability["opwise"])
    convs = [key for key in keys if key[1] == "Conv2d"][1:]
    return Plan({key: op(bits if key in convs else 8) for key in keys if key[1] in ("Conv2d", "Linear")})


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """``x`` flipped and shifted by up to 4 pixels."""
    x = x.flip(3) if torch.rand((), generator=generator) < 0.5 else x
    dx, dy = torch.randint(0, 9, (2,), generator=generator).tolist()
    return F.pad(x, (4, 4, 4, 4))[:, :, dy : dy + 32, dx : dx + 32]


def train(adaptor: PyTorchAdaptor, plan: Plan, task: Vision, epochs: int) -> nn.Module:
    """The quantized model after training towards the outputs of the float one."""
    generator = torch.Generator().manual_seed(0)
    session = adaptor.prepare_training(plan.to_tune_cfg(), task.model)
    steps = epochs * len(task.calibration) // 32
    optimizer = torch.optim.Adam(session.model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for batch in task.calibration[torch.randperm(len(task.calibration), generator=generator)].split(32):
            x = augmented(batch, generator)
            with torch.no_grad():
                target = task.model(x).softmax(1)
            optimizer.zero_grad()
            F.cross_entropy(session.model(x), target).backward()
            optimizer.step()
            schedule.step()
    return session.finish()


def accuracy(model: nn.Module, task: Vision) -> float:
    """Top-1 in percent."""
    with torch.no_grad():
        found = torch.cat([model(x).argmax(1) for x in task.images.split(100)])
    return float((found == task.labels).float().mean()) * 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--bits", type=int, default=2)
    parser.add_argument("--images", type=int, default=2000)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    task = resnet(arguments.data, arguments.images)
    loader = list(task.calibration.split(64))
    adaptor = PyTorchAdaptor({"dataloader": loader})
    plan = plan_of(adaptor.query_fw_capability(task.model), arguments.bits)
    table = Table(title=f"ResNet-20, int{arguments.bits} weights, {cpu_model()}")
    for column in ("", "top-1 %", "seconds"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("float", f"{accuracy(task.model, task):.1f}", "")
    for name, make in (
        ("after training", lambda: adaptor.quantize(plan.to_tune_cfg(), task.model, loader)),
        (f"trained {arguments.epochs} epochs", lambda: train(adaptor, trained(plan), task, arguments.epochs)),
        (
            "the same, learned step sizes",
            lambda: train(adaptor, trained(plan, learned_step_size=True), task, arguments.epochs),
        ),
    ):
        begun = time.perf_counter()
        model = make()
        seconds = time.perf_counter() - begun
        table.add_row(name, f"{accuracy(model, task):.1f}", f"{seconds:.0f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
