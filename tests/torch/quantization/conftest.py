"""Models of every shape that weight-only quantization has to handle."""

import pytest
import torch
from torch import nn


class Block(nn.Module):
    """A pre-norm MLP block, as transformers have them."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.gate, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x, *, scale=1.0):
        h = self.norm(x)
        return x + scale * self.down(torch.sigmoid(self.gate(h)) * self.up(h))


class Stack(nn.Module):
    def __init__(self, width=32, depth=3, vocabulary=50):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.lm_head(x)


@pytest.fixture
def stack():
    torch.manual_seed(0)
    return Stack().eval()


@pytest.fixture
def tokens():
    return [torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(i)) for i in range(6)]


@pytest.fixture
def run(tokens):
    def calibrate(model):
        for ids in tokens:
            model(ids)

    return calibrate


@pytest.fixture
def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
