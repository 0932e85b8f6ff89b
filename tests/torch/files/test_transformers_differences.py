"""Where transformers reads a checkpoint otherwise than engines do, that is said when it is written."""

import logging

import pytest
import torch

from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.quantization import (
    DynamicQuantConfig,
    MXQuantConfig,
    RTNConfig,
    convert,
    load,
    prepare,
    save,
)

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
FLOAT = RTNConfig(dtype="fp32")
BY_TOKEN = {"w_granularity": "per_channel", "act_sym": True, "act_granularity": "per_token"}


def t5():
    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    config = transformers.T5Config(vocab_size=64, decoder_start_token_id=0, **sizes)
    return transformers.T5ForConditionalGeneration(config).eval()


TOKENS = {"input_ids": torch.arange(1, 21).reshape(2, 10), "decoder_input_ids": torch.arange(5, 13).reshape(2, 4)}


def written(model, config, folder):
    new = convert(prepare(model, config, inplace=False), quiet=True)
    save(new, folder, format="huggingface")
    return new


@pytest.mark.parametrize("head", [False, True], ids=["head in float", "head in fp8"])
def test_transformers_ties_the_head_of_t5(tmp_path, caplog, head):
    config = DynamicQuantConfig(w_dtype="fp8_e4m3", act_dtype="fp8_e4m3", **BY_TOKEN)
    kept = ["shared", ".*embed_tokens", ".*relative_attention_bias", *([] if head else ["lm_head"])]
    with caplog.at_level(logging.WARNING):
        new = written(t5(), config.set_local(kept, FLOAT), tmp_path / "model")
    assert ("ties the output head" in caplog.text) is head
    if head:
        with pytest.raises(RuntimeError):  # once this loads, the message is to go
            transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "model")
        with torch.no_grad():
            ours = load(tmp_path / "model", format="huggingface")(**TOKENS).logits
            assert torch.equal(ours, new(**TOKENS).logits)
        return
    with torch.no_grad():
        theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "model").eval()(**TOKENS).logits
        torch.testing.assert_close(theirs, new(**TOKENS).logits, rtol=1e-4, atol=1e-4)


def test_embeddings_that_are_tied_beside_a_quantized_head_are_all_stored(tmp_path):
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": 0, "pad_token_id": 0}
    config = transformers.PegasusConfig(vocab_size=64, **sizes, **heads)
    model = transformers.PegasusForConditionalGeneration(config).eval()
    new = written(model, RTNConfig(bits=8, group_size=32, quant_lm_head=True), tmp_path / "model")
    theirs = transformers.PegasusForConditionalGeneration.from_pretrained(tmp_path / "model").eval()
    ours = load(tmp_path / "model", format="huggingface")
    for layer in (*new.modules(), *ours.modules()):
        if isinstance(layer, WeightOnlyLinear):
            layer.exact = True
    with torch.no_grad():
        expected = new(**TOKENS).logits
        torch.testing.assert_close(theirs(**TOKENS).logits, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours(**TOKENS).logits, expected, rtol=1e-4, atol=1e-4)


def test_a_configuration_need_not_speak_of_ties(tmp_path, caplog, monkeypatch):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2)).eval()
    monkeypatch.setattr(transformers.LlamaConfig, "from_dict", lambda settings: object())
    written(model, RTNConfig(group_size=32, quant_lm_head=True), tmp_path / "model")
    assert "ties the output head" not in caplog.text


def test_int8_by_token_has_another_scale_in_compressed_tensors(tmp_path, caplog):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes)).eval()
    config = DynamicQuantConfig(act_dtype="int8", **BY_TOKEN).set_local(["lm_head", "model.embed_tokens"], FLOAT)
    with caplog.at_level(logging.WARNING):
        new = written(model, config, tmp_path / "model")
    assert "127.5" in caplog.text
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "model").eval()
    theirs(torch.ones(1, 2, dtype=torch.long))  # it decodes at the first call
    layer, x = "model.layers.0.mlp.up_proj", torch.randn(1, 5, 32)
    weight = new.get_submodule(layer).dequantized_weight()
    for reader, steps in ((new, 127.0), (theirs, 127.5)):
        scale = x.abs().amax(-1, keepdim=True) / steps
        expected = ((x / scale).round().clamp(-128, 127) * scale) @ weight.T
        with torch.no_grad():
            torch.testing.assert_close(reader.get_submodule(layer)(x), expected, rtol=1e-4, atol=1e-5)


def test_scales_of_mx_inputs_are_said_to_differ(tmp_path, caplog):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **sizes)).eval()
    config = MXQuantConfig(w_dtype="fp8_e4m3", act_dtype="fp8_e4m3", out_dtype="float32", round_method="even")
    with caplog.at_level(logging.WARNING):
        written(model, config.set_local(["lm_head", "model.embed_tokens"], FLOAT), tmp_path / "model")
    assert "OCP MX" in caplog.text
    from compressed_tensors.quantization.utils.mxfp_utils import generate_mx_scales

    # 1.9 is nearer to 2 than to 1: by OCP its exponent is 0, less the 8 of 448.
    assert [int(generate_mx_scales(torch.tensor(x), 8)) - 127 for x in (1.5, 1.9)] == [-8, -7]
