"""Keys and values in fp8: scales from calibration, what is rounded, and a cache that holds bytes."""

import copy

import pytest
import torch

from neural_compressor.errors import CalibrationError, FormatError, QuantizationError
from neural_compressor.formats.kv_cache import KVScales
from neural_compressor.torch.fp8_cache import fp8_cache
from neural_compressor.torch.modules.kv_cache import attach_kv_scales
from neural_compressor.torch.quantization import FP8Config, convert, finalize_calibration, prepare, quantize

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config).eval()


IDS = torch.arange(24).reshape(2, 12) % 64
CONFIG = {"kv_cache": True, "allowlist": {"names": ["down_proj"]}}


def kept(model, ids):
    """The keys and values that a cache of the model gets, by layer."""
    cache = transformers.DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=cache)
    return [(layer.keys, layer.values) for layer in cache.layers]


def quantized(llama, **more):
    model = prepare(copy.deepcopy(llama), FP8Config(**CONFIG, **more))
    with torch.no_grad():
        model(IDS)
    return convert(model, quiet=True)


@torch.no_grad()
def test_scales_are_those_of_the_largest_key_and_value(llama):
    model = quantized(llama)
    floats = kept(llama, IDS)
    for layer, (keys, values) in zip(model.model.layers, floats, strict=True):
        torch.testing.assert_close(layer.self_attn.k_scale, keys.abs().amax() / 448, rtol=0.05, atol=0)
        torch.testing.assert_close(layer.self_attn.v_scale, values.abs().amax() / 448, rtol=0.05, atol=0)
    first = model.model.layers[0].self_attn
    torch.testing.assert_close(first.k_scale, floats[0][0].abs().amax() / 448)
    for held, whole, scale in zip(kept(model, IDS)[0], floats[0], (first.k_scale, first.v_scale), strict=True):
        codes = held / scale
        torch.testing.assert_close(codes.to(torch.float8_e4m3fn).float(), codes, rtol=1e-5, atol=1e-6)
        assert not torch.equal(held, whole)
        assert (held - whole).norm() / whole.norm() < 0.05


@torch.no_grad()
def test_a_cache_of_bytes_gives_what_rounding_gives(llama):
    model = quantized(llama)
    cache = fp8_cache(model)
    whole = model(IDS).logits
    pieces = [IDS[:, :8], *IDS[:, 8:].split(1, 1)]
    parts = [model(piece, past_key_values=cache).logits for piece in pieces]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-3, atol=1e-3)
    assert cache.layers[0].keys.dtype == torch.uint8
    assert cache.get_seq_length() == 12
    one, other = (
        model.generate(IDS[:1], max_new_tokens=6, do_sample=False, past_key_values=held)
        for held in (fp8_cache(model), transformers.DynamicCache())
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["GPTNeoX", "GPTJ", "Falcon", "Bloom"])
@torch.no_grad()
def test_attentions_that_call_their_cache_the_past_of_a_layer(name):
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "rotary_dim": 8}
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes)).eval()
    floats, expected = kept(model, IDS), model(IDS).logits
    model = quantize(model, FP8Config(kv_cache=True), run_fn=lambda model: model(IDS), quiet=True)
    attention = next(m for _, m in model.named_modules() if "k_scale" in m._buffers)
    torch.testing.assert_close(attention.k_scale, floats[0][0].abs().amax() / 448, rtol=0.1, atol=0)
    held = kept(model, IDS)[0][0] / attention.k_scale
    torch.testing.assert_close(held.to(torch.float8_e4m3fn).float(), held, rtol=1e-5, atol=1e-6)
    assert not torch.equal(model(IDS).logits, expected)


def test_two_runs_give_what_one_gives(llama, tmp_path):
    path = {"dump_stats_path": str(tmp_path / "m")}
    model = prepare(copy.deepcopy(llama), FP8Config(**CONFIG, **path, mode="MEASURE"))
    with torch.no_grad():
        model(IDS)
    finalize_calibration(model)
    two = convert(copy.deepcopy(llama), FP8Config(**CONFIG, **path, mode="QUANTIZE"), quiet=True)
    with torch.no_grad():
        torch.testing.assert_close(two(IDS).logits, quantized(llama)(IDS).logits, rtol=0, atol=0)


def test_statistics_without_keys_and_values_are_refused(llama, tmp_path):
    path = {"allowlist": CONFIG["allowlist"], "dump_stats_path": str(tmp_path / "m")}
    model = prepare(copy.deepcopy(llama), FP8Config(**path, mode="MEASURE"))
    model(IDS)
    finalize_calibration(model)
    with pytest.raises(FormatError, match=r"m_hooks_maxabs\.json has no statistics of keys and values.*kv_cache=True"):
        convert(copy.deepcopy(llama), FP8Config(**path, kv_cache=True, mode="QUANTIZE"))


def test_keys_that_were_zero_get_a_scale_of_one(llama, caplog):
    model = copy.deepcopy(llama)
    torch.nn.init.zeros_(model.model.layers[1].self_attn.k_proj.weight)
    model = quantized(model)
    assert "keys of 'model.layers.1.self_attn' were 0 in every sample" in caplog.text
    assert float(model.model.layers[1].self_attn.k_scale) == 1.0
    assert float(model.model.layers[1].self_attn.v_scale) < 1.0


def test_a_cache_has_data_run_where_ops_need_none(llama):
    config = FP8Config(**CONFIG, dynamic_quantization=True)
    assert config.needs_calibration
    model = quantize(copy.deepcopy(llama), config, run_fn=lambda model: model(IDS), quiet=True)
    keys = kept(llama, IDS)[0][0]
    torch.testing.assert_close(model.model.layers[0].self_attn.k_scale, keys.abs().amax() / 448)
    with pytest.raises(CalibrationError, match="no key or value"):
        quantize(copy.deepcopy(llama), config)


def test_without_scales_or_attentions_it_is_refused(llama):
    with pytest.raises(QuantizationError, match="kv_cache=True"):
        fp8_cache(llama)
    with pytest.raises(CalibrationError, match="no attention"):
        prepare(torch.nn.Sequential(torch.nn.Linear(4, 4)), FP8Config(kv_cache=True))


@torch.no_grad()
def test_layers_without_scales_keep_floats_in_their_places(llama):
    model = copy.deepcopy(llama)
    one = KVScales(torch.tensor(0.05), torch.tensor(0.05))
    attach_kv_scales(model, {"model.layers.1.self_attn": one})
    cache = fp8_cache(model)
    held = model(IDS, past_key_values=cache).logits
    assert [layer.keys.dtype for layer in cache.layers] == [torch.float32, torch.uint8]
    torch.testing.assert_close(held, model(IDS).logits)


def test_caches_of_an_encoder_and_a_decoder_are_refused_before_data_runs():
    sizes = {"vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    model = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes, **heads)).eval()
    with pytest.raises(QuantizationError, match=r"BartForConditionalGeneration.*leave out kv_cache"):
        prepare(model, FP8Config(kv_cache=True))
    assert not any(module._forward_pre_hooks for module in model.modules())
