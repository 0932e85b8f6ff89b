"""Small models and data the PyTorch tests share."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ConvNet(nn.Module):
    """conv-bn-relu, a residual, a head: what folding and fusing have to get right."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.fc = nn.Linear(32, 4)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = x + self.conv2(x)
        return self.fc(self.pool(x).flatten(1))


def make_convnet(seed=0):
    torch.manual_seed(seed)
    model = ConvNet().eval()
    model.bn1.running_mean.normal_()
    model.bn1.running_var.uniform_(0.5, 2)
    return model


def make_mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval()


def make_loader(shape=(1, 8, 8), samples=24, batch=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *shape, generator=generator)
    return DataLoader(TensorDataset(x, torch.zeros(samples, dtype=torch.long)), batch_size=batch)


@pytest.fixture
def convnet():
    return make_convnet()


@pytest.fixture
def mlp():
    return make_mlp()


@pytest.fixture
def make_data():
    return make_loader


@pytest.fixture
def images():
    return make_loader()
