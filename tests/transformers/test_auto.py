"""The from_pretrained way."""

import pytest
import torch

from neural_compressor.errors import CalibrationError

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "float")
    return tmp_path / "float"


def test_quantize_save_and_load(folder, tmp_path):
    from neural_compressor.transformers import AutoModelForCausalLM, GPTQConfig, RtnConfig

    ids = torch.randint(0, 64, (2, 10))
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=RtnConfig(bits=4, group_size=32))
    model.save_pretrained(tmp_path / "int4")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "int4")
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=0.02, atol=0.02)
    with pytest.raises(CalibrationError, match="calibration"):
        AutoModelForCausalLM.from_pretrained(folder, quantization_config=GPTQConfig(bits=4, group_size=32))
    calibrated = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=GPTQConfig(bits=4, group_size=32), calibration=[ids]
    )
    assert calibrated.quantization.plan
