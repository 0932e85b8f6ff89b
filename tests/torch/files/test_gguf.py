"""A quantized Llama as a GGUF file: the same codes, and the same logits where transformers reads it."""

import copy

import numpy as np
import pytest
import torch

from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.quantization import AWQConfig, GPTQConfig, HQQConfig, RTNConfig, load, quantize, save

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
gguf = pytest.importorskip("gguf", reason="the writer is not installed: pip install gguf")

NAMES = {
    "mlp.down_proj": "ffn_down",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "self_attn.v_proj": "attn_v",
}


@pytest.fixture
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def ids():
    return torch.randint(0, 96, (2, 12), generator=torch.Generator().manual_seed(0))


def exact(model):
    for module in model.modules():
        if isinstance(module, WeightOnlyLinear):
            module.exact = True
    return model


def read(file):
    tensors = gguf.GGUFReader(file).tensors
    return {t.name: (gguf.quants.dequantize(np.asarray(t.data), t.tensor_type), t.tensor_type.name) for t in tensors}


KEPT = {
    "Q4_0-rtn": (RTNConfig(group_size=32), "Q4_0"),
    "Q4_0-gptq": (GPTQConfig(group_size=64), "Q4_0"),
    "Q4_0-full-range": (RTNConfig(group_size=32, use_full_range=True), "Q4_0"),
    "Q4_0-int3": (RTNConfig(bits=3, group_size=-1), "Q4_0"),
    "Q4_1-asym": (RTNConfig(group_size=32, use_sym=False), "Q4_1"),
    "Q8_0": (RTNConfig(bits=8, group_size=-1), "Q8_0"),
}


@pytest.mark.parametrize("name", KEPT)
def test_codes_are_taken_as_they_are_and_scales_are_rounded_to_float16(llama, ids, tmp_path, caplog, name):
    config, kind = KEPT[name]
    model = quantize(llama, config, run_fn=lambda m: [m(ids) for _ in range(6)])  # enough for GPTQ not to warn
    save(model, tmp_path / "out.gguf", format="gguf")
    tensors = read(tmp_path / "out.gguf")
    assert caplog.text == ""
    for ours, theirs in NAMES.items():
        layer = model.get_submodule(f"model.layers.1.{ours}")
        values, stored = tensors[f"blk.1.{theirs}.weight"]
        assert stored == kind
        expected = layer.dequantized_weight().numpy()
        # Half a step of float16 at the scale, and at the offset that Q4_1 has beside it.
        bound = np.abs(expected).max() * 2.0**-11 * (2 if kind == "Q4_1" else 1)
        assert np.abs(values - expected).max() <= bound
        assert len(np.unique(values)) > 10


ROUNDED = {
    "gptq-order": (GPTQConfig(group_size=32, act_order=True), "activation order"),
    "awq": (AWQConfig(group_size=32), "a scale of its inputs"),
    "hqq": (HQQConfig(group_size=32), "float zero-points"),
    "nf4": (RTNConfig(dtype="nf4"), "integers, not nf4"),
    "group-16": (RTNConfig(group_size=16), "blocks have 32 values"),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_no_block_holds_is_rounded_once_more_and_said(llama, ids, tmp_path, caplog, name):
    config, reason = ROUNDED[name]
    model = quantize(llama, config, run_fn=lambda m: m(ids))
    save(model, tmp_path, format="gguf")
    assert reason in caplog.text
    assert "model.layers.1.mlp.down_proj" in caplog.text
    tensors = read(tmp_path / "model.gguf")
    layer = model.model.layers[0].mlp.down_proj
    values, stored = tensors["blk.0.ffn_down.weight"]
    assert stored == "Q8_0"
    expected = layer.dequantized_weight().numpy()
    blocks = np.abs(expected).reshape(64, -1, 32).max(-1)
    assert np.all(np.abs(values - expected) <= np.repeat(blocks, 32, axis=1) * (0.55 / 127))


@pytest.mark.parametrize("name", ["Q4_0-rtn", "Q4_0-gptq", "Q4_1-asym", "Q8_0"])
def test_transformers_reads_the_same_model(llama, ids, tmp_path, name):
    pytest.importorskip("accelerate", reason="transformers reads GGUF through it: pip install accelerate")
    model = exact(quantize(copy.deepcopy(llama), KEPT[name][0], run_fn=lambda m: m(ids)))
    save(model, tmp_path, format="gguf", float_as="F32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    with torch.no_grad():
        ours, found, before = model(ids).logits, theirs.eval()(ids).logits, llama(ids).logits
    distance = (found - ours).norm() / ours.norm()
    assert float(distance) < 2e-3
    assert float(distance) < 0.2 * float((before - ours).norm() / ours.norm())


def test_a_tokenizer_gives_the_vocabulary(llama, tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [chr(97 + i) for i in range(26)]
    model = models.BPE({letter: i for i, letter in enumerate([*letters, "ab"])}, [("a", "b")])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="z")
    fast.save_pretrained(tmp_path / "tokenizer")
    quantized = quantize(llama, RTNConfig(group_size=32))
    for number, given in enumerate((fast, tmp_path / "tokenizer")):
        save(quantized, tmp_path / f"{number}.gguf", format="gguf", tokenizer=given)
        fields = gguf.GGUFReader(tmp_path / f"{number}.gguf").fields
        assert fields["tokenizer.ggml.tokens"].contents()[:3] == ["a", "b", "c"]
        assert fields["tokenizer.ggml.merges"].contents() == ["a b"]
        assert fields["tokenizer.ggml.eos_token_id"].contents() == 25


def test_bad_input(llama, tmp_path):
    with pytest.raises(ConfigError, match="quantize it first"):
        save(llama, tmp_path, format="gguf")
    with pytest.raises(ConfigError, match="no transformers config"):
        save(quantize(torch.nn.Sequential(torch.nn.Linear(32, 4)), RTNConfig()), tmp_path, format="gguf")
    with pytest.raises(ConfigError, match="gguf_file="):
        load(tmp_path, format="gguf")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=32, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    other = quantize(transformers.GPT2LMHeadModel(config).eval(), RTNConfig(group_size=32))
    with pytest.raises(FormatError, match="not 'gpt2'"):
        save(other, tmp_path, format="gguf")
    assert not list(tmp_path.glob("*.gguf"))
