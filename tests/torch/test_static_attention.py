"""Queries, keys and values in fp8 with scales from calibration, against an attention that is written out here."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.fp8_cache import fp8_cache
from neural_compressor.torch.inspection import op_records
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    TuningConfig,
    autotune,
    convert,
    load,
    prepare,
    quantize,
    save,
)

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
llama_module = pytest.importorskip("transformers.models.llama.modeling_llama")

IDS = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))
NEAREST = {"bits": 8, "group_size": 32, "iters": 0, "disable_opt_rtn": True}


def llama(attention="sdpa"):
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    return transformers.LlamaForCausalLM._from_config(config, attn_implementation=attention).eval()


def opt():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "ffn_dim": 64, "num_hidden_layers": 2, "vocab_size": 64, "word_embed_proj_dim": 64}
    return transformers.OPTForCausalLM(transformers.OPTConfig(**sizes, num_attention_heads=2)).eval()


MODELS = {"sdpa": llama, "eager": lambda: llama("eager"), "opt": opt}


def quantized(model, **fields):
    return quantize(model, AutoRoundConfig(**{**NEAREST, **fields}), run_fn=lambda m: m(IDS), quiet=True)


def attentions(model):
    return {name: module for name, module in model.named_modules() if name.endswith("self_attn")}


def logits(model, ids=IDS):
    with torch.no_grad():
        return model(ids).logits


class Rounding:
    """An attention of transformers that notes the largest query, key and value, or rounds them to fp8."""

    def __init__(self, kind, scales=None):
        self.largest, self.scales, self.kind = {}, scales, "eager" if kind == "eager" else "sdpa"

    def __call__(self, module, query, key, value, *args, **kwargs):
        three = (query, key, value)
        if self.scales is None:
            self.largest[module.layer_idx] = [x.abs().max() for x in three]
        else:
            scales = [largest / 448 for largest in self.scales[module.layer_idx]]
            three = [(x / s).to(torch.float8_e4m3fn).float() * s for x, s in zip(three, scales, strict=True)]
        sdpa = transformers.AttentionInterface()["sdpa"]
        function = llama_module.eager_attention_forward if self.kind == "eager" else sdpa
        return function(module, *three, *args, **kwargs)

    def on(self, model):
        transformers.AttentionInterface.register("written_out", self)
        masks = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
        masks.register("written_out", masks[self.kind])
        model.set_attn_implementation("written_out")
        return model


@pytest.mark.parametrize("kind", MODELS)
def test_queries_keys_and_values_are_rounded(kind):
    seen = Rounding(kind)
    logits(seen.on(MODELS[kind]()))
    weights_alone = quantized(MODELS[kind]())
    expected = logits(Rounding(kind, seen.largest).on(copy.deepcopy(weights_alone)))
    found = quantized(MODELS[kind](), static_attention_dtype="fp8")
    for index, module in enumerate(attentions(found).values()):
        scales = torch.stack([module.q_scale, module.k_scale, module.v_scale])
        torch.testing.assert_close(scales, torch.stack(seen.largest[index]) / 448, rtol=1e-5, atol=0)
    torch.testing.assert_close(logits(found), expected, rtol=1e-4, atol=1e-5)
    assert (logits(weights_alone) - expected).abs().max() > 1e-3


def test_records_say_that_it_is_simulated():
    records = {
        record.name: record for record in op_records(quantized(llama(), static_attention_dtype="fp8"), None, None, {})
    }
    found = records["model.layers.1.self_attn"]
    assert (found.op_type, found.activation, found.mode, found.simulated) == (
        "LlamaAttention",
        "fp8_e4m3",
        "static",
        True,
    )
    assert "queries, keys and values" in found.reason


def test_a_cache_of_bytes_has_the_same_keys():
    model = quantized(llama(), static_attention_dtype="fp8")
    cache = fp8_cache(model)
    parts = []
    with torch.no_grad():
        for piece in (IDS[:, :8], *IDS[:, 8:].split(1, 1)):
            parts.append(model(piece, past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(parts, 1), logits(model), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_is_the_same(tmp_path, kind):
    model = quantized(MODELS[kind](), static_attention_dtype="fp8")
    save(model, tmp_path / "m")
    again = load(tmp_path / "m", MODELS[kind]())
    assert torch.equal(logits(again), logits(model))


def test_files_have_the_scales(tmp_path):
    pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
    fields = {"scheme": "FP8_STATIC", "static_attention_dtype": "fp8", "export_format": "llm_compressor"}
    config = AutoRoundConfig(iters=0, disable_opt_rtn=True, **fields, output_dir=str(tmp_path / "m"), dataset=[IDS])
    model = convert(prepare(llama(), config), quiet=True)
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    for name, module in attentions(model).items():
        for part in ("q_scale", "k_scale", "v_scale"):
            assert torch.equal(tensors[f"{name}.{part}"], getattr(module, part).reshape(1))
    block = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert block["kv_cache_scheme"]["num_bits"] == 8
    assert block["config_groups"]["group_1"]["weights"] is None
    assert block["config_groups"]["group_1"]["targets"] == [
        "LlamaAttention"
    ]  # the one way in which vLLM passes over it
    assert torch.equal(logits(load(tmp_path / "m", format="huggingface")), logits(model))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    assert hasattr(theirs.model.layers[0].self_attn, "q_scale")
    torch.testing.assert_close(logits(theirs), logits(model), rtol=1e-4, atol=1e-5)


def test_training_is_beside_it():
    fields = {"bits": 4, "iters": 2, "nsamples": 2, "static_kv_dtype": "fp8", "dataset": [IDS]}
    config = AutoRoundConfig(**{**NEAREST, **fields}, static_attention_dtype=torch.float8_e4m3fn)
    model = convert(prepare(llama(), config), quiet=True)
    assert model.model.layers[1].self_attn.q_scale > 0
    assert model.model.layers[1].mlp.down_proj.weight_packed.numel()


def test_what_cannot_be_had_is_said(tmp_path):
    with pytest.raises(ConfigError, match=r"static_attention_dtype.*expected 'fp8'"):
        AutoRoundConfig(static_attention_dtype="int8")
    with pytest.raises(CalibrationError, match="no attention"):
        prepare(nn.Sequential(nn.Linear(32, 32)), AutoRoundConfig(group_size=32, static_attention_dtype="fp8"))
    with pytest.raises(CalibrationError, match="no key or value"):
        quantize(llama(), AutoRoundConfig(**NEAREST, static_attention_dtype="fp8"), quiet=True)
    for layout in ("gptq", "gguf"):
        files = {"export_format": layout, "output_dir": str(tmp_path / "m")}
        with pytest.raises(ConfigError, match="no scales of a cache"):
            prepare(llama(), AutoRoundConfig(**NEAREST, static_attention_dtype="fp8", **files))
    both = AutoRoundConfig(**NEAREST, static_attention_dtype="fp8", hadamard="folded")
    with pytest.raises(ConfigError, match="after their scales were taken"):
        prepare(llama(), both, example_inputs=IDS)
    asked = TuningConfig(config_set=[AutoRoundConfig(**NEAREST, static_attention_dtype="fp8")], workspace=tmp_path)
    with pytest.raises(ConfigError, match="autotune has no scales of attentions"):
        autotune(llama(), asked, lambda _: 1.0, run_fn=lambda m: m(IDS), quiet=True)
    with pytest.raises(ConfigError, match="over the whole model"):
        prepare(llama(), AutoRoundConfig().set_local("lm_head", AutoRoundConfig(static_attention_dtype="fp8")))


def test_queries_that_cannot_be_seen_are_an_error():
    model = llama()
    function = transformers.AttentionInterface()["sdpa"]

    def elsewhere(module, query, key, value, *args, **kwargs):
        return function(module, query, torch.from_numpy(key.detach().numpy()), value, *args, **kwargs)

    transformers.AttentionInterface.register("elsewhere", elsewhere)
    masks = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    masks.register("elsewhere", masks["sdpa"])
    model.set_attn_implementation("elsewhere")
    with pytest.raises(CalibrationError, match="attn_implementation='sdpa'"):
        quantized(model, static_attention_dtype="fp8")


def test_the_device_of_the_environment_is_for_fp8_configurations(monkeypatch):
    monkeypatch.setenv("INC_TARGET_DEVICE", "hpu")  # which is not there
    model = quantized(llama(), static_attention_dtype="fp8")
    assert model.model.layers[0].self_attn.q_scale.device.type == "cpu"
