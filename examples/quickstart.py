"""Train a small CNN on real data, tune it to int8 under an accuracy promise, save the model and a report.

Run it with ``make quickstart``, or ``python examples/quickstart.py --help`` for the options.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from neural_compressor import quantization
from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig, TuningCriterion


def digits_cnn() -> nn.Sequential:
    """Five convolutions with batch normalisation and a classifier, for 16x16 images: enough work for int8 to pay."""

    def block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *block(1, 64),
        *block(64, 128, 2),
        *block(128, 128),
        *block(128, 256, 2),
        *block(256, 256),
        nn.Flatten(),
        nn.Linear(4096, 10),
    )


def digits_data(images: int | None = None) -> tuple[DataLoader, DataLoader]:
    """Training and test loaders over scikit-learn's handwritten digits, enlarged to 16x16; over the first ``images``."""
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels[:images], dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    x = nn.functional.interpolate(x, size=16, mode="bilinear")
    y = torch.tensor(labels[:images])
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.4, random_state=0, stratify=y)
    shuffled = torch.Generator().manual_seed(0)
    train = DataLoader(TensorDataset(x_train, y_train), batch_size=32, shuffle=True, generator=shuffled)
    return train, DataLoader(TensorDataset(x_test, y_test), batch_size=64)


def train(model: nn.Module, loader: DataLoader, epochs: int) -> nn.Module:
    """Plain cross-entropy training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in track(range(epochs), description="training"):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.eval()


def main() -> None:
    """Train, tune, save, load back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("quickstart_out"), help="folder for the model and the report")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, help="use only so many, for a short run")
    parser.add_argument("--tolerable-loss", type=float, default=0.01, help="the promise: relative accuracy loss")
    options = parser.parse_args()
    torch.manual_seed(0)
    train_loader, test_loader = digits_data(options.images)
    model = train(digits_cnn(), train_loader, options.epochs)

    def accuracy(candidate: nn.Module) -> float:
        with torch.no_grad():
            hits = sum((candidate(x).argmax(1) == y).sum().item() for x, y in test_loader)
        return hits / len(test_loader.dataset)  # type: ignore[arg-type]

    conf = PostTrainingQuantConfig(
        approach="static",
        accuracy_criterion=AccuracyCriterion(tolerable_loss=options.tolerable_loss),
        tuning_criterion=TuningCriterion(max_trials=6, timeout=60, objective=["performance", "modelsize"]),
    )
    q_model = quantization.fit(
        model,
        conf,
        calib_dataloader=train_loader,
        eval_func=accuracy,
        workspace=options.out,
        title="digits CNN",
    )
    q_model.save(options.out / "model")
    again = quantization.load(options.out / "model", model)
    batch = next(iter(test_loader))[0]
    same = torch.equal(q_model(batch), again(batch))
    console = Console()
    console.print(
        f"model   {options.out / 'model'} (read back: {'the same outputs, bit for bit' if same else 'DIFFERENT'})"
    )
    console.print(f"report  {q_model.result.report}")


if __name__ == "__main__":
    main()
