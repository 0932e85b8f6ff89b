"""What the quantizer does with the layers of a model beyond what the algorithms do."""

import torch
from torch import nn

from neural_compressor.torch.quantization import GPTQConfig, quantize


class Skipping(nn.Module):
    """Three blocks, of which the second is never called."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3))

    def forward(self, x):
        return self.blocks[2](self.blocks[0](x))


def test_a_block_that_calibration_never_reached_is_listed():
    torch.manual_seed(0)
    model = quantize(Skipping(), GPTQConfig(bits=4, group_size=32), run_fn=lambda m: m(torch.randn(8, 32)))
    assert model.quantization.reasons["blocks.1.0", "Linear"] == "calibration never reached it"
    assert [name for name, _ in model.quantization.plan] == ["blocks.0.0", "blocks.2.0"]
    assert type(model.blocks[1][0]) is nn.Linear
