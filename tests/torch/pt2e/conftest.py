"""Small models that are exported."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class SmallCnn(nn.Module):
    """Batch norm to fold, a residual, pooling between layers."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.Conv2d(8, 8, 3, padding="same")
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.stem(x))))
        x = torch.relu(self.body(x) + x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Branching(nn.Module):
    """What no graph can hold: a branch on the values of a tensor."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Module()
        self.inner.fc = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        x = self.inner.fc(x)
        if x.sum() > 0:
            x = x * 2
        return self.last(x)


@pytest.fixture
def cnn():
    torch.manual_seed(0)
    model = SmallCnn().eval()
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2)
    return model


@pytest.fixture
def branching():
    return Branching()


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config).eval()
