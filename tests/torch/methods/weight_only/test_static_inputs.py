"""Weights that AutoRound trains beside inputs with one scale, known beforehand (``act_dynamic=False``)."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from neural_compressor.errors import ConfigError, NeuralCompressorError
from neural_compressor.torch.modules.linear import QuantLinear
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    FP8Config,
    StaticQuantConfig,
    load,
    prepare,
    quantize,
    save,
)

FIELDS = {
    "int8": {"bits": 8, "act_bits": 8, "act_dynamic": False},
    "fp8": {"dtype": "fp8_e4m3", "act_dtype": "fp8_e4m3", "act_dynamic": False},
    "FP8_STATIC": {"scheme": "FP8_STATIC"},
}
NEAREST = {
    "int8": StaticQuantConfig(act_dtype="int8", act_sym=True),
    "fp8": FP8Config(scale_method="maxabs_arbitrary", scale_params={"input_backoff": 1.0, "weight_backoff": 1.0}),
}
NEAREST["FP8_STATIC"] = NEAREST["fp8"]
PEAK = {"int8": 127.0, "fp8": 448.0, "FP8_STATIC": 448.0}


def inputs(rows: int = 96) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    mix = torch.randn(8, 64, generator=generator)
    return 0.7 * torch.randn(rows, 8, generator=generator) @ mix + 0.1 * torch.randn(rows, 64, generator=generator)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64, bias=False)) for _ in range(2)]
    return nn.Sequential(*layers).requires_grad_(False).eval()


def done(model: nn.Module, config: object) -> nn.Module:
    return quantize(copy.deepcopy(model), config, run_fn=lambda prepared: prepared(inputs()), quiet=True)


def layers(model: nn.Module) -> dict[str, QuantLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantLinear)}


def by_hand(layer: QuantLinear, x: torch.Tensor, peak: float) -> torch.Tensor:
    steps = x / layer.input_scale
    rounded = (
        steps.clamp(-448, 448).to(torch.float8_e4m3fn).float() if peak == 448.0 else steps.round().clamp(-128, 127)
    )
    return nn.functional.linear(rounded * layer.input_scale, layer.dequantized_weight(), layer.bias)


@pytest.mark.parametrize("name", FIELDS)
def test_inputs_have_the_scale_of_static_quantization(model, name):
    found = layers(done(model, AutoRoundConfig(**FIELDS[name], iters=3)))
    expected = layers(done(model, NEAREST[name]))
    assert found.keys() == expected.keys()
    assert len(found) == 4
    for place, layer in found.items():
        assert torch.equal(layer.input_scale, expected[place].input_scale)
        assert layer.kernel == expected[place].kernel
        assert layer.weight_scale.numel() == 64
    if name != "int8":
        first = inputs().abs().max() / PEAK[name]
        assert torch.allclose(found["0.0"].input_scale, first)


@pytest.mark.parametrize("name", FIELDS)
def test_a_layer_computes_on_rounded_inputs(model, name):
    layer = layers(done(model, AutoRoundConfig(**FIELDS[name], iters=3)))["0.0"]
    x = inputs() * 1.2
    with torch.no_grad():
        assert torch.allclose(layer(x), by_hand(layer, x, PEAK[name]), atol=1e-5)


@pytest.mark.parametrize("name", FIELDS)
def test_training_is_better_than_nearest_rounding(model, name):
    trained = done(model, AutoRoundConfig(**FIELDS[name], iters=60))
    nearest = done(model, NEAREST[name])
    # Of weights alone: what rounding inputs costs is the same in both.
    errors = []
    for each in (trained, nearest):
        weights = copy.deepcopy(model)
        for place, layer in layers(each).items():
            weights.get_submodule(place).weight.copy_(layer.dequantized_weight())
        errors.append(float((weights(inputs()) - model(inputs())).square().mean()))
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_saved_is_what_is_loaded(model, name, tmp_path):
    found = done(model, AutoRoundConfig(**FIELDS[name], iters=3))
    save(found, tmp_path)
    again = load(tmp_path, original_model=copy.deepcopy(model))
    assert torch.equal(again(inputs()), found(inputs()))


@pytest.mark.parametrize(("name", "layout"), [("int8", "int-quantized"), ("FP8_STATIC", "float-quantized")])
def test_checkpoints_have_scales_of_inputs(name, layout, tmp_path):
    transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    llama = transformers.LlamaForCausalLM(config).eval()
    ids = torch.arange(64).reshape(4, 16)
    named = {"dataset": [ids], "output_dir": str(tmp_path / "out"), "iters": 2}
    found = quantize(llama, AutoRoundConfig(**FIELDS[name], **named), quiet=True)
    block = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    group = next(iter(block["config_groups"].values()))
    assert layout in (block["format"], group.get("format"))
    assert group["input_activations"]["dynamic"] is False
    assert group["input_activations"]["strategy"] == "tensor"
    place = "model.layers.1.mlp.down_proj"
    assert isinstance(found.model.embed_tokens, nn.Embedding), "AutoRound trains linear layers alone"
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(tensors[f"{place}.input_scale"].reshape(()), found.get_submodule(place).input_scale)
    assert tensors[f"{place}.weight_scale"].shape == (64, 1)
    with torch.no_grad():
        again = load(str(tmp_path / "out"), format="huggingface")
        assert torch.allclose(again(ids).logits, found(ids).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({**FIELDS["int8"], "group_size": 32}, "group_size: got 32.*one a channel"),
        ({**FIELDS["int8"], "act_group_size": 32}, "act_group_size: got 32.*one scale"),
        ({**FIELDS["int8"], "use_sym": False}, "asym"),
        ({**FIELDS["int8"], "bits": 4}, "int8"),
    ],
)
def test_what_has_no_static_form_is_refused(model, fields, said):
    with pytest.raises(NeuralCompressorError, match=said):
        prepare(copy.deepcopy(model), AutoRoundConfig(**fields))


def test_schemes_stand_for_fields():
    static, dynamic = AutoRoundConfig(scheme="fp8_static"), AutoRoundConfig(scheme="INT8")
    assert (static.dtype, static.act_dtype, static.group_size, static.act_dynamic) == ("fp8_e4m3",) * 2 + (-1, False)
    assert (dynamic.bits, dynamic.act_bits, dynamic.group_size, dynamic.act_dynamic) == (8, 8, -1, True)
    assert AutoRoundConfig.from_dict(static.to_dict()).wanted == static.wanted
    assert AutoRoundConfig(**FIELDS["fp8"]).wanted == static.wanted
    with pytest.raises(ConfigError, match="FP8_STATIC"):
        AutoRoundConfig(scheme="FP8_STATICS")
