"""The PyTorch adaptor passes the suite that every adaptor has to pass."""

import torch
from torch import nn

from neural_compressor.testing import AdaptorContract
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.tuning.metrics import METRICS


class TestPyTorchAdaptor(AdaptorContract):
    def make_adaptor(self):
        return PyTorchAdaptor({"dataloader": self.make_dataloader()})

    def make_model(self):
        torch.manual_seed(0)
        conv = [nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
        return nn.Sequential(*conv, nn.Flatten(), nn.Linear(512, 16), nn.ReLU(), nn.Linear(16, 4)).eval()

    def make_dataloader(self):
        generator = torch.Generator().manual_seed(0)
        return [
            (torch.randn(8, 1, 8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator))
            for _ in range(4)
        ]

    def make_metric(self):
        return METRICS["accuracy"]()
