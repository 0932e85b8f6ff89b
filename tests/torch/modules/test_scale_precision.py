"""Scales in 16 bits."""

import pytest
import torch
from torch import nn

from neural_compressor.errors import QuantizationError
from neural_compressor.torch.modules.weight_only import hold_scales_in
from neural_compressor.torch.quantization import RTNConfig, load, quantize


def made(config, scale=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    model[0].weight.data *= scale
    return model, quantize(model, config, inplace=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_follow_the_rounded_scales_and_survive_saving(dtype, tmp_path):
    model, new = made(RTNConfig(group_size=32))
    before = {n: new.get_submodule(n).weight_scale.clone() for n in ("0", "2")}
    hold_scales_in(new, dtype)
    for name, scale in before.items():
        layer = new.get_submodule(name)
        assert layer.weight_scale.dtype == dtype
        assert torch.equal(layer.weight_scale, scale.to(dtype))
        codes = layer.weight_array().codes.float()
        expected = codes * scale.to(dtype).float().repeat_interleave(32, 1)
        assert torch.equal(layer.dequantized_weight(), expected)
    new.save(tmp_path / "m")
    x = torch.randn(3, 64)
    with torch.no_grad():
        assert torch.equal(load(tmp_path / "m", original_model=model)(x), new(x))


def test_scales_that_do_not_fit_are_refused():
    new = made(RTNConfig(group_size=32), scale=1e-8)[1]
    with pytest.raises(QuantizationError, match=r"layer '0'.*cannot hold"):
        hold_scales_in(new, torch.float16)
    with pytest.raises(QuantizationError, match="of a small type already"):
        hold_scales_in(made(RTNConfig(dtype="mxfp4"))[1], torch.bfloat16)
