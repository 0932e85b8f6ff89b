"""Saving and loading weight-only models: our format, bit for bit, and Hugging Face checkpoints."""

import copy
import json

import pytest
import torch

from neural_compressor.errors import ConfigError, FormatError, WorkspaceError
from neural_compressor.formats import FORMATS
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    AWQConfig,
    FP8Config,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    load,
    quantize,
    save,
)

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")


@pytest.fixture
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def ids():
    return torch.randint(0, 96, (2, 12), generator=torch.Generator().manual_seed(0))


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize(
    "config",
    [
        RTNConfig(bits=4, group_size=32),
        RTNConfig(dtype="nf4", group_size=32),
        RTNConfig(bits=3, group_size=-1, use_sym=False),
        RTNConfig(bits=2, group_size=32, hadamard=True),
        HQQConfig(bits=4, group_size=32),
        GPTQConfig(bits=4, group_size=32, act_order=True),
        AWQConfig(bits=4, group_size=32),
        AutoRoundConfig(bits=4, group_size=32, iters=2),
    ],
    ids=["rtn", "nf4", "channel-asym", "hadamard", "hqq", "gptq-order", "awq", "autoround"],
)
def test_the_default_format_is_bit_exact(llama, ids, tmp_path, config):
    import copy

    model = quantize(copy.deepcopy(llama), config, run_fn=lambda m: m(ids))
    model.save(tmp_path / "m")
    again = load(tmp_path / "m", original_model=llama)
    assert torch.equal(logits(model, ids), logits(again, ids))
    floats = sum(p.numel() * 4 for p in llama.parameters())
    assert (tmp_path / "m" / "model.safetensors").stat().st_size < 0.62 * floats


@pytest.mark.parametrize(
    ("layout", "config"),
    [
        ("compressed-tensors", RTNConfig(bits=4, group_size=32)),
        ("compressed-tensors", RTNConfig(bits=8, group_size=-1)),
        ("gptq", RTNConfig(bits=4, group_size=32)),
        ("gptq_v2", RTNConfig(bits=4, group_size=32, use_sym=False)),
        ("gptq_v2", GPTQConfig(bits=4, group_size=32, act_order=True)),
        ("gptq_v2", RTNConfig(bits=2, group_size=32)),
        ("gptq_v2", RTNConfig(bits=3, group_size=32)),
        ("gptq_v2", RTNConfig(bits=8, group_size=32)),
        ("awq", RTNConfig(bits=4, group_size=32, use_sym=False)),
        *((layout, RTNConfig(bits=4, group_size=32, use_full_range=True)) for layout in ("gptq", "gptq_v2")),
        ("compressed-tensors", RTNConfig(bits=8, group_size=-1, use_full_range=True)),
    ],
    ids=lambda v: v if isinstance(v, str) else f"{v.name}{v.bits}{'-full' if v.use_full_range else ''}",
)
def test_hugging_face_layouts_round_trip(llama, ids, tmp_path, layout, config):
    model = quantize(llama, config, run_fn=lambda m: m(ids))
    save(model, tmp_path / "m", format="huggingface", layout=layout)
    again = load(tmp_path / "m", format="huggingface")
    torch.testing.assert_close(logits(again, ids), logits(model, ids), rtol=0.02, atol=0.02)
    assert sum(isinstance(m, WeightOnlyLinear) for m in again.modules()) == 14
    cached = load(tmp_path / "m", format="huggingface")
    assert torch.equal(logits(cached, ids), logits(again, ids)), "the second load takes the converted copy"
    assert any((tmp_path / "m" / "neural_compressor_cache").iterdir())


@pytest.mark.parametrize("full_range", [False, True], ids=["even", "negative scales"])
def test_transformers_reads_our_compressed_tensors(llama, ids, tmp_path, full_range):
    pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
    model = quantize(llama, RTNConfig(bits=4, group_size=32, use_full_range=full_range))
    for module in model.modules():
        if isinstance(module, WeightOnlyLinear):
            module.exact = True
    save(model, tmp_path / "m", format="huggingface")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    torch.testing.assert_close(logits(theirs, ids), logits(model, ids), rtol=1e-4, atol=1e-5)


def test_a_gptq_checkpoint_assembled_by_hand(llama, ids, tmp_path):
    """Each packed word is written by a plain loop from the published layout."""
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(1)
    tensors, expected = {}, {}
    for name, module in llama.named_modules():
        if type(module) is not torch.nn.Linear or name == "lm_head":
            continue
        out, width = module.weight.shape
        codes = torch.randint(0, 16, (out, width), generator=generator)
        scales = (torch.rand(width // 32, out, generator=generator) * 0.01 + 0.005).half()
        words = torch.zeros(width // 8, out, dtype=torch.int64)
        for column in range(width):
            words[column // 8] |= codes[:, column] << (4 * (column % 8))
        zeros = torch.zeros(width // 32, out // 8, dtype=torch.int64)
        for row in range(out):
            zeros[:, row // 8] |= 7 << (4 * (row % 8))  # version 1 stores the zero point less one
        signed = [torch.where(w >= 2**31, w - 2**32, w).to(torch.int32) for w in (words, zeros)]
        tensors |= {f"{name}.qweight": signed[0], f"{name}.qzeros": signed[1], f"{name}.scales": scales}
        tensors[f"{name}.g_idx"] = (torch.arange(width) // 32).to(torch.int32)
        weight = (codes - 8) * scales.float().repeat_interleave(32, 0).T
        expected[name] = weight
        module.weight.data = weight
    rest = {n: t.clone() for n, t in llama.state_dict().items() if n.removesuffix(".weight") not in expected}
    rest.pop("lm_head.weight")
    save_file(tensors | rest, tmp_path / "model.safetensors", metadata={"format": "pt"})
    settings = {**llama.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    settings["quantization_config"] = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "sym": True,
        "desc_act": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(settings, default=str))
    model = load(tmp_path, format="huggingface", device="cpu", torch_dtype=torch.float32)
    for module in model.modules():
        if isinstance(module, WeightOnlyLinear):
            module.exact = True
    torch.testing.assert_close(logits(model, ids), logits(llama, ids), rtol=1e-4, atol=1e-4)


def test_bad_input(llama, ids, tmp_path):
    model = quantize(llama, RTNConfig(bits=4, group_size=32))
    with pytest.raises(ConfigError, match="original_model"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="huggingface"):
        load(tmp_path, format="hugingface")
    with pytest.raises(ConfigError, match="not a folder"):
        load("somebody/some-model-GPTQ", format="huggingface")
    with pytest.raises(ConfigError, match="gptq"):
        save(model, tmp_path / "m", format="huggingface", layout="gptk")
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "config.json").write_text(
        json.dumps({"quantization_config": {"quant_method": "gptq", "bits": 4}})
    )
    (tmp_path / "p" / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(FormatError):
        load(tmp_path / "p", original_model=llama, format="huggingface")


def test_the_weights_of_a_float_model_are_not_replaced(llama, ids, tmp_path):
    llama.save_pretrained(tmp_path / "m")
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    model = quantize(llama, RTNConfig(group_size=16))
    with pytest.raises(WorkspaceError, match="not quantized: choose another folder"):
        save(model, tmp_path / "m", format="huggingface")
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before
    for _ in range(2):  # onto one of its own
        save(model, tmp_path / "new", format="huggingface")


def test_layouts_are_known_to_the_formats_room():
    from neural_compressor.torch.files.huggingface_writer import LAYOUTS

    assert set(LAYOUTS.values()) <= set(FORMATS)


def test_a_folder_that_is_not_there_or_holds_a_package_is_said_to_be_so(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "model.pt2").write_bytes(b"")
    with pytest.raises(ConfigError, match="format='aoti'"):
        load(tmp_path / "package")


def test_fp8_settings_read_from_a_file_equal_those_written(tmp_path):
    config = FP8Config(fp8_config="E5M2").set_local("fc", FP8Config(fp8_config="E4M3"))
    config.to_json_file(tmp_path / "fp8.json")
    assert FP8Config.from_json_file(tmp_path / "fp8.json") == config
    assert FP8Config(fp8_config="E4M3") != config


def test_a_model_that_is_given_for_a_checkpoint_stays_as_it_is(llama, tmp_path):
    quantize(copy.deepcopy(llama), RTNConfig(group_size=32), quiet=True).save(tmp_path / "m", format="huggingface")
    given, tokens = copy.deepcopy(llama), torch.arange(8)[None]
    wanted = given(tokens).logits
    first, second = (load(tmp_path / "m", given, format="huggingface") for _ in range(2))
    assert not any(isinstance(module, WeightOnlyLinear) for module in given.modules())
    assert torch.equal(given(tokens).logits, wanted)
    assert first is not given
    assert torch.equal(first(tokens).logits, second(tokens).logits)


def test_a_type_that_the_default_format_would_not_heed_is_refused(llama, tmp_path):
    quantize(copy.deepcopy(llama), RTNConfig(group_size=32), quiet=True).save(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"torch_dtype is torch\.bfloat16.*\.to\("):
        load(tmp_path / "m", llama, torch_dtype=torch.bfloat16)


def test_an_unknown_option_names_what_is_close(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(32, 8)).eval()
    quantize(copy.deepcopy(net), RTNConfig(), quiet=True).save(tmp_path)
    with pytest.raises(ConfigError, match=r"does not know 'model' .* did you mean 'original_model'"):
        load(tmp_path, model=net)
