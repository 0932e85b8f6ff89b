"""Checkpoints that serving engines read: against compressed-tensors, transformers, and readers written from the layouts."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.linear import QuantLinear
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    DynamicQuantConfig,
    FP8Config,
    GPTQConfig,
    MXQuantConfig,
    RTNConfig,
    StaticQuantConfig,
    load,
    quantize,
    save,
)

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
FLOAT = RTNConfig(dtype="fp32")
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def activations(kind: type, **fields: Any) -> Any:
    """Linear layers of the blocks quantized, embeddings and the output head in float."""
    config = kind(**fields)
    for name in ("lm_head", "model.embed_tokens"):
        config.set_local(name, FLOAT)
    return config


FP8 = {"w_dtype": "fp8_e4m3", "act_dtype": "fp8_e4m3"}
CONFIGS = {
    "fp8 token": activations(DynamicQuantConfig, **FP8, w_granularity="per_channel", act_granularity="per_token"),
    "fp8 block": activations(DynamicQuantConfig, **FP8, w_granularity="per_block", act_granularity="per_group"),
    "fp8 static": activations(StaticQuantConfig, **FP8, w_granularity="per_tensor"),
    "int8 token": activations(
        DynamicQuantConfig, w_granularity="per_channel", act_dtype="int8", act_sym=True, act_granularity="per_token"
    ),
    "int8 static": activations(StaticQuantConfig, act_dtype="int8", act_sym=True),
    "int8 static asym": activations(StaticQuantConfig),
    "fp8 weights": RTNConfig(dtype="fp8_e4m3", group_size=-1),
    "nvfp4": RTNConfig(dtype="nvfp4"),
    "mxfp4": RTNConfig(dtype="mxfp4"),
    "mxfp8": RTNConfig(dtype="mxfp8_e4m3"),
    "mxfp4 both": activations(MXQuantConfig, w_dtype="fp4", act_dtype="fp4", out_dtype="float32", round_method="even"),
    "nvfp4 both": activations(StaticQuantConfig, w_dtype="nvfp4", act_dtype="nvfp4"),
    "autoround fp8 static": AutoRoundConfig(scheme="FP8_STATIC", iters=2),
    "autoround int8 static": AutoRoundConfig(scheme="INT8", act_dynamic=False, iters=2),
    "autoround int8 token": AutoRoundConfig(scheme="INT8", iters=2),
}
FORMATS = {
    **dict.fromkeys(("fp8 token", "fp8 block", "fp8 static", "fp8 weights", "autoround fp8 static"), "float-quantized"),
    **dict.fromkeys(("int8 token", "int8 static", "int8 static asym"), "int-quantized"),
    **dict.fromkeys(("autoround int8 static", "autoround int8 token"), "int-quantized"),
    **dict.fromkeys(("nvfp4", "nvfp4 both"), "nvfp4-pack-quantized"),
    "mxfp8": "mxfp8-quantized",
    **dict.fromkeys(("mxfp4", "mxfp4 both"), "mxfp4-pack-quantized"),
}


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        # Numbers of bfloat16, in which the reference reads some layouts.
        parameter.data = parameter.data.bfloat16().float()
    return model


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(0, 96, (2, 12), generator=torch.Generator().manual_seed(0))


def exact(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, WeightOnlyLinear):
            module.exact = True
    return model


def logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits


def quantized(llama: Any, ids: torch.Tensor, name: str) -> nn.Module:
    return exact(quantize(copy.deepcopy(llama), CONFIGS[name], run_fn=lambda m: m(ids)))


def layers(model: nn.Module) -> dict[str, Any]:
    return {n: m for n, m in model.named_modules() if isinstance(m, (WeightOnlyLinear, QuantLinear))}


def by_hand(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The weight of a layer, read from what the table of layouts says of its tensors."""
    part = {key.rpartition(".")[2]: tensor for key, tensor in tensors.items() if key.rpartition(".")[0] == name}
    if "weight_packed" in part:
        packed = part["weight_packed"].long()
        nibbles = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
        values = torch.tensor(E2M1)[nibbles & 7] * torch.where(nibbles >= 8, -1.0, 1.0)
    else:
        values = part["weight"].float()
    scale = part["weight_scale_inv"] if "weight_scale_inv" in part else part["weight_scale"]
    if scale.dtype == torch.uint8:
        scale = torch.tensor(2.0, dtype=torch.float64) ** (scale.double() - 127)
    scale = scale.float()
    if "weight_global_scale" in part:
        scale = scale / part["weight_global_scale"]
    if scale.dim() < 2:
        return values * scale
    rows, columns = (math.ceil(n / s) for n, s in zip(values.shape, scale.shape, strict=True))
    if scale.shape[0] == values.shape[0]:
        rows = 1
    elif rows != 1:
        rows = 128
    spread = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return values * spread[: values.shape[0], : values.shape[1]]


# -- what is written ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_ours_reads_what_it_wrote(llama: Any, ids: torch.Tensor, tmp_path: Path, name: str) -> None:
    model = quantized(llama, ids, name)
    save(model, tmp_path / "m", format="huggingface")
    block = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert block["format"] == FORMATS[name]
    assert block["ignore"] == ["lm_head"]
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    again = exact(load(tmp_path / "m", format="huggingface"))
    assert len(layers(again)) == 14
    for layer, module in layers(again).items():
        expected = model.get_submodule(layer).dequantized_weight()
        # Also without VNNI, where integer kernels run weights that are safe in pairs alone: files do not say which are.
        assert module.simulated == model.get_submodule(layer).simulated
        torch.testing.assert_close(module.dequantized_weight(), expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(by_hand(tensors, layer), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(logits(again, ids), logits(model, ids), rtol=1e-4, atol=3e-5)
    assert torch.equal(logits(exact(load(tmp_path / "m", format="huggingface")), ids), logits(again, ids))


@pytest.mark.parametrize(
    "name",
    [
        *("fp8 token", "fp8 block", "fp8 static", "int8 static", "int8 static asym", "fp8 weights"),
        *("autoround fp8 static", "autoround int8 static"),
    ],
)
def test_transformers_computes_the_same_logits(llama: Any, ids: torch.Tensor, tmp_path: Path, name: str) -> None:
    pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
    model = quantized(llama, ids, name)
    save(model, tmp_path / "m", format="huggingface")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
    if "int8" in name:
        # An integer kernel multiplies by the inverse of a scale: a value between two codes may get the other one.
        assert float((logits(theirs, ids) - logits(model, ids)).abs().mean()) < 1e-3
    else:
        torch.testing.assert_close(logits(theirs, ids), logits(model, ids), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "mxfp8", "mxfp4 both", "int8 token", "autoround int8 token"])
def test_transformers_reads_the_same_weights(llama: Any, ids: torch.Tensor, tmp_path: Path, name: str) -> None:
    """It decodes these to bfloat16; scales of inputs it chooses by other rules than the kernels of engines do."""
    pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
    model = quantized(llama, ids, name)
    save(model, tmp_path / "m", format="huggingface")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.bfloat16).eval()
    theirs(ids)  # it decodes at the first call
    for layer, module in layers(model).items():
        found = theirs.get_submodule(layer).weight.float()
        torch.testing.assert_close(
            found, module.dequantized_weight(), rtol=0.01 if name == "nvfp4" or "int8" in name else 0, atol=0
        )
    if name in ("mxfp4", "mxfp8"):
        torch.testing.assert_close(logits(nn.Module.float(theirs), ids), logits(model, ids), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("name", ["fp8 block", "fp8 static"])
def test_the_fp8_method(llama: Any, ids: torch.Tensor, tmp_path: Path, name: str) -> None:
    model = quantized(llama, ids, name)
    save(model, tmp_path / "m", format="huggingface", layout="fp8")
    block = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert block["quant_method"] == "fp8"
    assert block["ignored_layers"] == block["modules_to_not_convert"] == ["lm_head"]
    assert block["activation_scheme"] == ("static" if name == "fp8 static" else "dynamic")
    assert block["weight_block_size"] == (None if name == "fp8 static" else [128, 128])
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    for layer, module in layers(model).items():
        torch.testing.assert_close(by_hand(tensors, layer), module.dequantized_weight(), rtol=1e-6, atol=0)
    assert torch.equal(logits(load(tmp_path / "m", format="huggingface"), ids), logits(model, ids))
    if name == "fp8 block":  # without a GPU transformers decodes the weights, and leaves inputs as they are
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
        for layer, module in layers(model).items():
            torch.testing.assert_close(
                theirs.get_submodule(layer).weight, module.dequantized_weight(), rtol=1e-6, atol=0
            )


def test_layers_of_several_kinds_have_a_layout_each(llama: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    config = RTNConfig(bits=4, group_size=32)
    config.set_local(r".*\.mlp\..*", RTNConfig(dtype="mxfp4"))
    model = exact(quantize(copy.deepcopy(llama), config))
    save(model, tmp_path / "m", format="huggingface")
    block = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]
    assert block["format"] == "mixed-precision"
    found = {group["format"]: len(group["targets"]) for group in block["config_groups"].values()}
    assert found == {"pack-quantized": 8, "mxfp4-pack-quantized": 6}
    again = exact(load(tmp_path / "m", format="huggingface"))
    torch.testing.assert_close(logits(again, ids), logits(model, ids), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("layout", ["compressed-tensors", "gptq"])
def test_a_quantized_head_is_not_tied_to_the_embeddings(
    llama: Any, ids: torch.Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: str
) -> None:
    model = exact(quantize(copy.deepcopy(llama), RTNConfig(bits=8, quant_lm_head=True)))
    save(model, tmp_path / "m", format="huggingface", layout=layout)
    again = exact(load(tmp_path / "m", format="huggingface"))
    assert isinstance(again.lm_head, WeightOnlyLinear)
    torch.testing.assert_close(logits(again, ids), logits(model, ids), rtol=1e-4, atol=2e-3)
    # Engines have kernels for one in GPTQ files; of the others many releases look for a float one.
    assert ("the output head 'lm_head' is quantized" in caplog.text) == (layout == "compressed-tensors")


def test_tables_of_embeddings_are_stored_in_float(
    llama: Any, ids: torch.Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = quantize(copy.deepcopy(llama), StaticQuantConfig(), run_fn=lambda m: m(ids))
    save(model, tmp_path / "m", format="huggingface")
    assert "model.embed_tokens" in caplog.text
    again = load(tmp_path / "m", format="huggingface")
    torch.testing.assert_close(logits(again, ids), logits(model, ids), rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_fp8_configuration(
    llama: Any, ids: torch.Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture, dynamic: bool
) -> None:
    config = FP8Config(dynamic_quantization=dynamic, blocklist={"names": ["lm_head", "embed_tokens"]})
    model = quantize(copy.deepcopy(llama), config, run_fn=lambda m: m(ids))
    save(model, tmp_path / "m", format="huggingface")
    again = load(tmp_path / "m", format="huggingface")
    for layer, module in layers(again).items():
        assert torch.equal(module.dequantized_weight(), model.get_submodule(layer).dequantized_weight())
    # Of inputs whose scale is not in the file engines choose it by their own rule, and that is said.
    assert ("engines divide each input" in caplog.text) is dynamic
    if not dynamic:
        assert torch.equal(logits(again, ids), logits(model, ids))


@pytest.mark.parametrize(
    ("fields", "half", "messages"),
    [
        ({}, False, ["round_method='even'", "round theirs to bf16. out_dtype='float32'"]),
        ({}, True, ["round_method='even'"]),
        ({"round_method": "even"}, False, ["out_dtype='float32'"]),
        ({"round_method": "even"}, True, []),
        ({"round_method": "even", "out_dtype": "float16"}, True, ["round theirs to fp16. out_dtype='bfloat16'"]),
    ],
)
def test_the_mx_configuration(
    llama: Any,
    ids: torch.Tensor,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fields: dict[str, str],
    half: bool,
    messages: list[str],
) -> None:
    model = copy.deepcopy(llama)
    for parameter in model.parameters() if half else ():  # not the frequencies of positions, which are never stored
        parameter.data = parameter.data.bfloat16()
    model = quantize(model, activations(MXQuantConfig, w_dtype="fp4", act_dtype="fp4", **fields))
    caplog.clear()
    save(model, tmp_path / "m", format="huggingface")
    told = [record.getMessage() for record in caplog.records if "does not say otherwise" in record.getMessage()]
    assert len(told) == len(messages)
    assert all(message in each for message, each in zip(messages, told, strict=True))
    again = load(tmp_path / "m", format="huggingface")
    assert torch.equal(logits(again, ids), logits(model, ids)) == (not messages)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_float_type_of_the_model_is_kept(llama: Any, tmp_path: Path, dtype: str) -> None:
    model = copy.deepcopy(llama).to(getattr(torch, dtype))
    assert model.config.dtype is None
    save(quantize(model, RTNConfig(group_size=32)), tmp_path / "m", format="huggingface")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == dtype
    assert load(tmp_path / "m", format="huggingface").model.norm.weight.dtype == getattr(torch, dtype)


def test_global_scales_of_inputs_are_found_on_data(llama: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    config = activations(MXQuantConfig, w_dtype="nvfp4", act_dtype="nvfp4", out_dtype="float32", w_algo="gptq")
    model = quantize(copy.deepcopy(llama), config, run_fn=lambda m: m(ids))
    with pytest.raises(FormatError, match=r"cannot be stored as compressed-tensors: .*input_data=batches"):
        save(model, tmp_path / "m", format="huggingface")
    seen: dict[str, float] = {}
    for name, module in layers(model).items():
        module.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: float(args[0].abs().max())}))
    logits(model, ids)
    largest = dict(seen)
    save(model, tmp_path / "m", format="huggingface", input_data=[ids[:1], {"input_ids": ids[1:]}])
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    both = {name: float(tensors[f"{name}.input_global_scale"]) for name in layers(model)}
    assert both.keys() == largest.keys()
    # Inputs of the first layers do not depend on what other rows of a batch do to global scales.
    for name in ("q_proj", "k_proj", "v_proj"):
        first = f"model.layers.0.self_attn.{name}"
        assert both[first] == pytest.approx(2688 / largest[first], rel=1e-5)
    again = load(tmp_path / "m", format="huggingface")
    torch.testing.assert_close(logits(again, ids), logits(model, ids), rtol=0.2, atol=0.2)
    with pytest.raises(ConfigError, match="there is none"):
        save(again, tmp_path / "other", format="huggingface", input_data=[ids])


# -- layers that engines multiply as one ------------------------------------------------------------------------------


def test_layers_of_one_input_are_quantized_alike(llama: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    config = RTNConfig(dtype="mxfp4")
    config.set_local("model.layers.1.self_attn.k_proj", RTNConfig(dtype="fp32"))
    model = quantize(copy.deepcopy(llama), config)
    with pytest.raises(FormatError, match=r"k_proj.*quantized alike.*k_proj: float.*set_local"):
        save(model, tmp_path / "m", format="huggingface")
    assert not (tmp_path / "m").exists()
    config = RTNConfig(dtype="mxfp4")
    config.set_local(r".*\.(q|k|v)_proj", RTNConfig(dtype="fp32"))
    config.set_local(r".*\.(o|down)_proj", RTNConfig(dtype="mxfp8_e4m3"))
    save(quantize(copy.deepcopy(llama), config), tmp_path / "m", format="huggingface")


@pytest.mark.parametrize("config", [RTNConfig(dtype="nvfp4"), GPTQConfig(dtype="nvfp4")], ids=["rtn", "gptq"])
def test_layers_of_one_input_share_a_global_scale(llama: Any, ids: torch.Tensor, tmp_path: Path, config: Any) -> None:
    model = quantize(copy.deepcopy(llama), config, run_fn=lambda m: m(ids))
    save(model, tmp_path / "m", format="huggingface")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    for block in ("model.layers.0.", "model.layers.1."):
        for names in (["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], ["mlp.gate_proj", "mlp.up_proj"]):
            scales = {float(tensors[f"{block}{name}.weight_global_scale"]) for name in names}
            largest = max(float(llama.get_submodule(block + name).weight.detach().abs().max()) for name in names)
            assert len(scales) == 1
            if config.name == "rtn":
                assert scales.pop() == pytest.approx(2688 / largest, rel=1e-6)
    keys = model.model.layers[0].self_attn.k_proj
    keys.weight_tensor_scale = keys.weight_tensor_scale * 2
    with pytest.raises(FormatError, match=r"one global scale, and .*q_proj, .*k_proj, .*v_proj have"):
        save(model, tmp_path / "other", format="huggingface")


# -- what cannot be written -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "layout", "message"),
    [
        (RTNConfig(dtype="fp8_e4m3", group_size=32), "compressed-tensors", "use group_size=-1"),
        (RTNConfig(dtype="fp8_e5m2", group_size=-1), "compressed-tensors", "fp8_e5m2"),
        (RTNConfig(dtype="nf4"), "compressed-tensors", "nf4"),
        (RTNConfig(dtype="mxfp4"), "gptq", "integer weights alone.*'compressed-tensors'"),
        (RTNConfig(dtype="mxfp4"), "fp8", "fp8_e4m3, not mxfp4"),
        (CONFIGS["fp8 token"], "fp8", "a scale a tensor or block, not per_channel; the layout 'compressed-tensors'"),
        (activations(DynamicQuantConfig, **FP8), "fp8", "dynamic inputs have a scale a token; the layout 'compressed"),
        (DynamicQuantConfig(), "compressed-tensors", "act_granularity='per_token'"),
    ],
    ids=["groups", "e5m2", "nf4", "gptq", "fp8", "channels", "dynamic tensor", "asymmetric"],
)
def test_what_has_no_place_in_a_layout_is_said(
    llama: Any, tmp_path: Path, config: Any, layout: str, message: str
) -> None:
    model = quantize(copy.deepcopy(llama), config)
    with pytest.raises(FormatError, match=rf"layer '.*' .*cannot be stored as {layout}: .*{message}.*format='default'"):
        save(model, tmp_path / "m", format="huggingface", layout=layout)
    assert not (tmp_path / "m").exists()


# -- what is no checkpoint --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no config.json"),
        ("{}", "no 'model_type'"),
        ('{"model_type": "no_such_model"}', "not read by transformers.*no_such_model"),
        ("[", "cannot be read as JSON"),
    ],
    ids=["empty", "no type", "unknown type", "not JSON"],
)
def test_a_folder_that_is_no_checkpoint(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(FormatError, match=f"(?s){message}"):
        load(tmp_path, format="huggingface")


@pytest.mark.parametrize("given", [False, True])
def test_a_folder_in_the_default_format(llama: Any, tmp_path: Path, given: bool) -> None:
    save(quantize(copy.deepcopy(llama), RTNConfig(group_size=32)), tmp_path / "m")
    with pytest.raises(FormatError, match=r"qconfig\.json.*original_model.*format='default'"):
        load(tmp_path / "m", original_model=llama if given else None, format="huggingface")


# -- what cannot be written, by kind of layer -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("layout", ["compressed-tensors", "fp8", "modelopt"])
@pytest.mark.parametrize("config", [RTNConfig(group_size=32), RTNConfig(dtype="mxfp4")], ids=["int4", "mxfp4"])
def test_transposed_layers_are_not_stored_where_readers_leave_them_out(
    gpt2: Any, tmp_path: Path, config: Any, layout: str
) -> None:
    model = quantize(copy.deepcopy(gpt2), config)
    with pytest.raises(FormatError, match=r"'transformer\.h\.0\.attn\.c_attn' .*Conv1D.*in float.*format='default'"):
        save(model, tmp_path / "m", format="huggingface", layout=layout)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("layout", ["gptq", "gptq_v2", "awq"])
def test_transposed_layers_in_the_layouts_that_have_them(
    gpt2: Any, ids: torch.Tensor, tmp_path: Path, layout: str
) -> None:
    model = exact(quantize(copy.deepcopy(gpt2), RTNConfig(group_size=32)))
    save(model, tmp_path / "m", format="huggingface", layout=layout)
    again = exact(load(tmp_path / "m", format="huggingface"))
    torch.testing.assert_close(logits(again, ids), logits(model, ids), rtol=1e-2, atol=1e-3)  # scales are kept in fp16


def test_a_layer_with_its_relu(ids: torch.Tensor, tmp_path: Path) -> None:
    sizes = {"vocab_size": 96, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 1}
    config = transformers.OPTConfig(**sizes, num_attention_heads=2, max_position_embeddings=32)
    opt = transformers.OPTForCausalLM(config).eval()
    with_relu = StaticQuantConfig(act_dtype="int8", act_sym=True).set_local(["lm_head", ".*embed.*"], FLOAT)
    model = quantize(copy.deepcopy(opt), with_relu, run_fn=lambda m: m(ids))
    with pytest.raises(FormatError, match=r"fc1.*ReLU.*set_local.*RTNConfig\(bits=8, group_size=-1\).*dtype='fp32'"):
        save(model, tmp_path / "m", format="huggingface")
    for other in (RTNConfig(bits=8, group_size=-1), FLOAT):  # what the message says
        followed = copy.deepcopy(with_relu).set_local(".*fc1", other)
        model = exact(quantize(copy.deepcopy(opt), followed, run_fn=lambda m: m(ids)))
        save(model, tmp_path / "m", format="huggingface")
        again = exact(load(tmp_path / "m", format="huggingface"))
        torch.testing.assert_close(logits(again, ids), logits(model, ids), rtol=1e-4, atol=1e-5)


def test_a_float_model_is_not_saved_as_a_quantized_one(llama: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no quantized linear layer"):
        save(copy.deepcopy(llama), tmp_path / "m", format="huggingface")


@pytest.mark.parametrize(
    ("config", "layout", "told"),
    [
        (
            activations(DynamicQuantConfig, **FP8, w_granularity="per_channel"),
            "compressed-tensors",
            "a scale for each token",
        ),
        (CONFIGS["fp8 token"], "compressed-tensors", ""),
        (CONFIGS["fp8 static"], "modelopt", "round fp8 weights with a scale each anew"),
        (FP8Config(blocklist={"names": ["lm_head", "embed_tokens"]}), "compressed-tensors", ""),
        (RTNConfig(group_size=32, use_sym=False), "gptq_v2", "symmetric weights in 4 or 8 bits"),
        (RTNConfig(bits=3, group_size=32), "gptq", "symmetric weights in 4 or 8 bits"),
        (GPTQConfig(group_size=32, act_order=True), "gptq", "follow an activation order"),
        (GPTQConfig(group_size=32, act_order=True, static_groups=True), "gptq", ""),
        (RTNConfig(group_size=32).set_local(".*k_proj", RTNConfig(bits=8, group_size=32)), "gptq", "engines multiply"),
        (RTNConfig(group_size=32), "gptq", ""),
    ],
)
def test_what_engines_do_not_read_is_said(
    llama: Any,
    ids: torch.Tensor,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    config: Any,
    layout: str,
    told: str,
) -> None:
    model = quantize(copy.deepcopy(llama), config, run_fn=lambda m: m(ids))
    caplog.clear()
    save(model, tmp_path / "m", format="huggingface", layout=layout)
    others = ("serving engines and load() read", "stored in the float type")
    found = [text for text in caplog.messages if ("vLLM" in text or "engines" in text) and not text.startswith(others)]
    assert len(found) == bool(told)
    assert all(told in message for message in found)


@pytest.mark.parametrize("alike", [True, False])
def test_layers_that_transformers_calls_otherwise_have_the_names_of_published_checkpoints(
    tmp_path: Path, alike: bool
) -> None:
    """Engines look for these; transformers reads them too, and goes by its own names for what is quantized."""
    pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4}
    text = transformers.LlamaConfig(**sizes, vocab_size=96)
    images = transformers.CLIPVisionConfig(**sizes, image_size=16, patch_size=8, projection_dim=64)
    torch.manual_seed(0)
    config = transformers.LlavaConfig(vision_config=images, text_config=text, image_token_index=95)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "float")
    rules = RTNConfig(group_size=32).set_local([".*vision.*", ".*projector.*"], FLOAT)
    rules = rules if alike else rules.set_local(".*language.*mlp.*", RTNConfig(bits=8, group_size=32))
    new = exact(quantize(model, rules))
    save(new, tmp_path / "m", format="huggingface")
    published, ours = (load_file(tmp_path / each / "model.safetensors").keys() for each in ("float", "m"))
    quantized = {name.removesuffix("_packed") for name in ours if name.endswith("weight_packed")}
    assert len(quantized) == 7
    assert quantized == published - ours
    ids = torch.arange(8)[None]
    for read in (
        exact(load(tmp_path / "m", format="huggingface")),
        transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "m", dtype=torch.float32).eval(),
    ):
        with torch.no_grad():
            torch.testing.assert_close(read(input_ids=ids).logits, new(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
