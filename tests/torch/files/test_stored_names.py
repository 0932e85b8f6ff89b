"""Checkpoints of models whose modules transformers calls otherwise than checkpoints do."""

import json

import pytest
import torch

from neural_compressor.torch.quantization import FP8Config, RTNConfig, load, quantize, save

transformers = pytest.importorskip("transformers")
pytest.importorskip("compressed_tensors")
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}


@pytest.mark.parametrize(
    ("kind", "more"),
    [("hrm_text", {"head_dim": 16}), ("kimi_linear", {}), ("phimoe", {"num_local_experts": 4}), ("llama", {})],
)
def test_layers_and_their_tensors_have_one_name(kind, more, tmp_path):
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this release of transformers has no {kind}")
    config = transformers.AutoConfig.for_model(kind, **SIZES, **more, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    q_model = quantize(model, RTNConfig(group_size=-1), quiet=True)
    save(q_model, tmp_path / "saved", format="huggingface")
    expected, found = q_model.state_dict(), load(tmp_path / "saved", format="huggingface").state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_scales_of_a_cache_are_read_by_the_names_of_the_file(tmp_path):
    text, vision = transformers.LlamaConfig(**SIZES), {**SIZES, "hidden_size": 32, "image_size": 28, "patch_size": 14}
    del vision["vocab_size"], vision["num_key_value_heads"]
    config = transformers.LlavaConfig(
        text_config=text, vision_config=transformers.CLIPVisionConfig(**vision), image_token_index=127
    )
    torch.manual_seed(0)
    model, ids = transformers.LlavaForConditionalGeneration(config).eval(), torch.randint(3, 120, (2, 8))
    q_model = quantize(model, FP8Config(), lambda each: each(input_ids=ids), quiet=True)
    save(q_model, tmp_path / "saved", format="huggingface", kv_cache=[{"input_ids": ids}])
    assert "kv_cache_scheme" in json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    same = load(tmp_path / "saved", format="huggingface")
    assert (same(input_ids=ids).logits - q_model(input_ids=ids).logits).abs().max() < 0.2
