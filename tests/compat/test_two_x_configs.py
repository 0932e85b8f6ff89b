"""Fields of 2.x configurations as existing programs read and write them."""

import pytest
import torch

from neural_compressor.config import MixedPrecisionConfig, PostTrainingQuantConfig
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization import RTNConfig, quantize


def test_recipes_that_nobody_asked_for():
    conf = PostTrainingQuantConfig(recipes={"layer_wise_quant": True})
    assert conf.recipes["smooth_quant"] is False
    assert conf.recipes["optypes_to_exclude_output_quant"] == []
    assert conf.to_dict()["recipes"] == {"layer_wise_quant": True}
    assert PostTrainingQuantConfig().recipes["smooth_quant"] is False
    assert PostTrainingQuantConfig().recipes == {}
    assert PostTrainingQuantConfig.from_dict(conf.to_dict()) == conf
    with pytest.raises(KeyError, match="smooth_qant"):
        conf.recipes["smooth_qant"]


def test_fields_can_be_assigned():
    conf = PostTrainingQuantConfig()
    conf.recipes = {"smooth_quant": True}
    assert conf.recipes["smooth_quant"] is True
    assert conf.recipes["weight_correction"] is False
    with pytest.raises(ConfigError, match="smooth_qant"):
        conf.recipes = {"smooth_qant": True}


def test_precision_is_another_word_for_precisions():
    assert MixedPrecisionConfig(precision="fp16") == MixedPrecisionConfig(precisions="fp16")
    with pytest.raises(ConfigError, match="twice"):
        MixedPrecisionConfig(precision="fp16", precisions="bf16")


def test_another_name_of_fp8():
    assert RTNConfig(dtype="fp8_e4m3fn").identity == RTNConfig(dtype="fp8_e4m3").identity


@pytest.mark.parametrize("name", ["fp8_e4m3fnuz", "fp8_e5m2fnuz"])
def test_eight_bit_floats_without_a_negative_zero(name):
    weight = torch.nn.Linear(64, 8)
    made = quantize(torch.nn.Sequential(weight).eval(), RTNConfig(dtype=name, group_size=-1), quiet=True)[0]
    kind = getattr(torch, f"float8_{name.removeprefix('fp8_')}")
    values = weight.weight.detach()
    scale = values.abs().amax(1, keepdim=True) / torch.finfo(kind).max
    expected = (values / scale).to(kind).float() * scale
    torch.testing.assert_close(made.dequantized_weight(), expected)
