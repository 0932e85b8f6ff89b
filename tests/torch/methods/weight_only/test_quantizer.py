"""What the quantizer does with the layers of a model beyond what the algorithms do."""

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError
from neural_compressor.torch.quantization import AWQConfig, GPTQConfig, TEQConfig, quantize


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


@pytest.mark.parametrize("config", [GPTQConfig(group_size=32), AWQConfig(group_size=32)], ids=["gptq", "awq"])
def test_too_few_rows_are_told_of(config, caplog):
    quantize(nn.Linear(128, 32), config, run_fn=lambda m: m(torch.randn(3, 128)))
    assert f"{config.name} saw 3 vectors of the 128 inputs of layer ''" in caplog.text
    assert "128 vectors would do" in caplog.text


def test_scales_that_no_normalisation_takes_up_are_told_of(caplog):
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    quantize(model, TEQConfig(group_size=32), run_fn=lambda m: m(torch.randn(64, 32)))
    assert "no normalisation can take up a scale of the inputs of 2 layers (0, 2)" in caplog.text
    assert "folding=False scales them at run time" in caplog.text


def test_bad_data_names_the_input():
    bad = torch.full((4, 32), torch.nan)
    with pytest.raises(CalibrationError, match="input 'input' holds NaN"):
        quantize(nn.Linear(32, 8), GPTQConfig(group_size=32), run_fn=lambda m: m(bad))
