"""The from_pretrained way."""

import json
import shutil

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch import quantization as torch_quantization
from neural_compressor.torch.modules import QuantModule

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


def test_however_a_model_came_it_decodes_with_the_bits_of_its_own_code(folder, tmp_path):
    from neural_compressor.torch.modules.direct_forward import DirectForward, run_as_written
    from neural_compressor.torch.modules.norm_forward import NormForward
    from neural_compressor.transformers import AutoModelForCausalLM, RtnConfig

    made = AutoModelForCausalLM.from_pretrained(folder, quantization_config=RtnConfig(bits=4, group_size=32))
    made.save_pretrained(tmp_path / "int4")
    converted, kept = (AutoModelForCausalLM.from_pretrained(tmp_path / "int4") for _ in range(2))
    for model in (made, converted, kept):
        steps = [_decoded(model) for _ in range(2)]
        forwards = [vars(module).get("forward") for module in model.modules()]
        assert [sum(isinstance(f, kind) and f.active for f in forwards) for kind in (DirectForward, NormForward)] == [
            2,
            5,
        ]
        run_as_written(model)
        steps += [_decoded(model) for _ in range(2)]
        assert all(torch.equal(step, steps[0]) for step in steps)


@torch.no_grad()
def _decoded(model):
    out = model(torch.arange(5)[None], use_cache=True)
    steps = []
    for _ in range(4):
        token = out.logits[:, -1:].argmax(-1)
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        steps.append(out.logits)
    return torch.stack(steps)


def test_the_data_of_the_config_serves_for_calibration(folder):
    from neural_compressor.transformers import AutoModelForCausalLM, GPTQConfig

    ids = torch.randint(0, 64, (6, 10), generator=torch.Generator().manual_seed(0))
    config = GPTQConfig(bits=4, group_size=32, dataset=[ids, ids], n_samples=4, seq_len=5)
    found = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    plain = GPTQConfig(bits=4, group_size=32)
    expected = AutoModelForCausalLM.from_pretrained(folder, quantization_config=plain, calibration=[ids[:4, :5]])
    other = AutoModelForCausalLM.from_pretrained(folder, quantization_config=plain, calibration=[ids])
    state = [m.model.layers[1].mlp.up_proj.weight_packed for m in (found, expected, other)]
    assert torch.equal(state[0], state[1])
    assert not torch.equal(state[0], state[2])


def test_autoround_sees_the_data_of_its_config(folder):
    from neural_compressor.transformers import AutoModelForCausalLM, AutoRoundConfig

    ids = torch.randint(0, 64, (6, 10), generator=torch.Generator().manual_seed(0))
    sizes = {"bits": 4, "group_size": 32, "iters": 2, "n_samples": 4, "seq_len": 5}
    found, expected = (
        AutoModelForCausalLM.from_pretrained(folder, quantization_config=AutoRoundConfig(**sizes, **data), **more)
        for data, more in (({"dataset": [ids]}, {}), ({}, {"calibration": [ids[:4, :5]]}))
    )
    state = [m.model.layers[1].mlp.up_proj.weight_packed for m in (found, expected)]
    assert torch.equal(state[0], state[1])


def test_data_is_given_once(folder):
    from neural_compressor.transformers import AutoModelForCausalLM, GPTQConfig

    ids = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ConfigError, match="pass one of them"):
        AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=GPTQConfig(bits=4, group_size=32, dataset=[ids]), calibration=[ids]
        )


def test_precisions_of_scales_and_of_the_rest(folder):
    from neural_compressor.transformers import AutoModelForCausalLM, RtnConfig

    ids = torch.randint(0, 64, (2, 10), generator=torch.Generator().manual_seed(0))
    plain = AutoModelForCausalLM.from_pretrained(folder, quantization_config=RtnConfig(group_size=32))
    config = RtnConfig(group_size=32, compute_dtype=torch.bfloat16, scale_dtype="fp16")
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    assert model.model.layers[0].mlp.up_proj.weight_scale.dtype == torch.float16
    assert model.lm_head.weight.dtype == model.model.norm.weight.dtype == torch.bfloat16
    with torch.no_grad():
        given = model(ids).logits
        assert given.dtype == torch.bfloat16
        torch.testing.assert_close(given.float(), plain(ids).logits, rtol=0.05, atol=0.05)


def test_autoround_reads_weights_when_their_turn_comes(folder):
    from neural_compressor.transformers import AutoModelForCausalLM, AutoRoundConfig

    ids = torch.randint(0, 64, (2, 10))
    found = []
    for layer_wise in (True, None):
        config = AutoRoundConfig(bits=4, group_size=32, iters=2, use_layer_wise=layer_wise)
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=config, calibration=[ids], trust_remote_code=False, _commit_hash=None
        )
        with torch.no_grad():
            found.append(model(ids).logits)
    assert torch.equal(*found)


def test_weights_are_read_when_their_turn_comes(folder, monkeypatch):
    from neural_compressor.transformers import AutoModelForCausalLM, RtnConfig

    ids = torch.randint(0, 64, (2, 10), generator=torch.Generator().manual_seed(0))
    whole = AutoModelForCausalLM.from_pretrained(folder, quantization_config=RtnConfig(group_size=32))
    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", None)
    config = RtnConfig(group_size=32, use_layer_wise=True)
    streamed = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config)
    with torch.no_grad():
        assert torch.equal(streamed(ids).logits, whole(ids).logits)
    with pytest.raises(ConfigError, match="attn_implementation"):
        AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, attn_implementation="eager")


def test_a_model_of_images_and_text(tmp_path, caplog):
    from neural_compressor.transformers import AutoModelForCausalLM, LlavaForConditionalGeneration, RtnConfig

    torch.manual_seed(0)
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2}
    text = transformers.LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=64, **layers)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "image_size": 16, "patch_size": 8, "projection_dim": 32}
    vision = transformers.CLIPVisionConfig(**sizes, **layers)
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=63)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(tmp_path / "float")
    quantized = RtnConfig(bits=4, group_size=32)
    model = LlavaForConditionalGeneration.from_pretrained(tmp_path / "float", quantization_config=quantized)
    assert isinstance(model, transformers.LlavaForConditionalGeneration)
    assert "layers stay in float, as they read images (model.multi_modal_projector, model.vision_tower)" in caplog.text
    assert type(model.model.language_model.layers[0].mlp.up_proj).__name__ == "WeightOnlyLinear"
    images = model.model.vision_tower, model.model.multi_modal_projector
    assert not any(isinstance(each, QuantModule) for part in images for each in part.modules())
    model.save_pretrained(tmp_path / "int4")
    again = LlavaForConditionalGeneration.from_pretrained(tmp_path / "int4")
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        torch.testing.assert_close(again(input_ids=ids).logits, model(input_ids=ids).logits, rtol=0.02, atol=0.02)
    every = RtnConfig(bits=4, group_size=32, quant_nontext_module=True)
    model = LlavaForConditionalGeneration.from_pretrained(tmp_path / "float", quantization_config=every)
    assert isinstance(model.model.multi_modal_projector.linear_1, QuantModule)
    own = torch_quantization.RTNConfig(group_size=32, use_layer_wise=False).set_local(
        "model.multi_modal_projector.linear_1", torch_quantization.RTNConfig(bits=8, group_size=32)
    )
    model = LlavaForConditionalGeneration.from_pretrained(tmp_path / "float", quantization_config=own)
    assert model.model.multi_modal_projector.linear_1.scheme.weight.dtype.name == "int8"
    assert isinstance(model.model.multi_modal_projector.linear_2, nn.Linear)
    with pytest.raises(ConfigError, match="read text alone"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "float", quantization_config=every)


def test_a_quantized_folder_stays_as_it_is_whatever_the_configuration(folder, tmp_path, caplog):
    from neural_compressor.transformers import AutoModelForCausalLM, RtnConfig

    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=RtnConfig(bits=4, group_size=32))
    model.save_pretrained(tmp_path / "int4", safe_serialization=True)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "int4", quantization_config=RtnConfig(bits=8))
    assert again.model.layers[0].mlp.up_proj.scheme.weight.dtype.name == "int4"
    assert "is quantized already" in caplog.text


@pytest.mark.parametrize("device_map", [None, "auto", {"": "cpu"}, torch.device("cpu")])
def test_ways_to_say_a_device(folder, device_map, monkeypatch):
    from neural_compressor.transformers import AutoModelForCausalLM

    monkeypatch.setenv("INC_TARGET_DEVICE", "cpu")
    assert AutoModelForCausalLM.from_pretrained(folder, device_map=device_map).device.type == "cpu"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device_map": {"model": "cpu", "lm_head": "meta"}}, "device_map: .* expected one"),
        ({"device_map": "banana"}, "device_map: .*'banana'"),
        ({"load_in_4bit": True}, r"RtnConfig\(bits=4\)"),
        ({"load_in_8bit": True}, r"RtnConfig\(bits=8\)"),
    ],
)
def test_what_from_pretrained_refuses(folder, options, said):
    from neural_compressor.transformers import AutoModelForCausalLM

    with pytest.raises(ConfigError, match=said):
        AutoModelForCausalLM.from_pretrained(folder, **options)


def test_pickles_are_not_written(folder, tmp_path):
    from neural_compressor.transformers import AutoModelForCausalLM, RtnConfig

    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=RtnConfig(bits=4, group_size=32))
    with pytest.raises(ConfigError, match="safetensors"):
        model.save_pretrained(tmp_path / "int4", safe_serialization=False)


def test_what_was_found_beside_a_float_model_is_given_too(folder):
    from neural_compressor.transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert model.device.type == "cpu"
    assert not found["missing_keys"]


def test_a_quantized_folder_takes_no_arguments_that_would_not_act(folder, tmp_path):
    from neural_compressor.transformers import AutoModelForCausalLM, RtnConfig

    AutoModelForCausalLM.from_pretrained(folder, quantization_config=RtnConfig()).save_pretrained(tmp_path / "q")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "q", trust_remote_code=True, torch_dtype=torch.bfloat16)
    assert model.lm_head.weight.dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="attn_implementation has no place there; attentions"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "q", attn_implementation="eager")
    with pytest.raises(ConfigError, match="only dtype can be given; output_loading_info"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "q", output_loading_info=True)


def test_code_of_a_model_is_not_run_where_it_is_built_from_its_config(folder, tmp_path):
    """Without a question on the terminal, too, which transformers asks."""
    from neural_compressor.transformers import AutoModelForCausalLM, RtnConfig

    own = {"model_type": "of_nobody", "auto_map": {"AutoConfig": "configuration_of_nobody.Config"}}
    for name, block in (("streamed", {}), ("quantized", {"quantization_config": {"quant_method": "gptq"}})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(own | block))
    for trusted in (True, False):
        with pytest.raises(ConfigError, match=r"code of its own.*trust_remote_code.*original_model="):
            AutoModelForCausalLM.from_pretrained(tmp_path / "quantized", trust_remote_code=trusted)
        with pytest.raises(ConfigError, match=r"streamed/config.json is of a model with code of its own"):
            AutoModelForCausalLM.from_pretrained(
                tmp_path / "streamed", quantization_config=RtnConfig(use_layer_wise=True), trust_remote_code=trusted
            )
    known = json.loads((folder / "config.json").read_text()) | {"auto_map": {"AutoConfig": "configuration.Config"}}
    copied = tmp_path / "known"
    shutil.copytree(folder, copied)
    (copied / "config.json").write_text(json.dumps(known))
    AutoModelForCausalLM.from_pretrained(
        copied, quantization_config=RtnConfig(use_layer_wise=True), trust_remote_code=True
    )
