"""The README's examples run as printed."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^## (.+?)\n.*?```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.head = nn.Sequential(nn.Linear(144, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.head(self.conv(x).flatten(1))


@pytest.mark.parametrize("code", [code for _, code in BLOCKS], ids=[title for title, _ in BLOCKS])
def test_example(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    batch = torch.randn(4, 1, 8, 8)

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    names = {
        "model": Model().eval(),
        "loader": [(batch, torch.zeros(4))],
        "evaluate": lambda model: 1.0,
        "train": train,
        "batch": batch,
    }
    exec(compile(code, "README.md", "exec"), names)


def test_there_are_examples():
    assert len(BLOCKS) >= 4
