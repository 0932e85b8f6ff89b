"""Mixtures of experts in checkpoints: each expert a layer of its own, or all of them in one tensor as gpt-oss has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from neural_compressor.errors import FormatError
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.matrix_stack import QuantMatrixStack
from neural_compressor.torch.quantization import DynamicQuantConfig, RTNConfig, load, quantize, save

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
pytest.importorskip("transformers.conversion_mapping", reason="this transformers has a module for each expert")
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(24).reshape(2, 12)).logits


def exact(model: Any) -> Any:
    for module in model.modules():
        if isinstance(module, WeightOnlyLinear):
            module.exact = True
    return model


def gpt_oss(inner: int) -> Any:
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        **SIZES, intermediate_size=inner, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2
    )
    return transformers.GptOssForCausalLM(config).eval()


def qwen() -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=96, num_key_value_heads=2, num_experts=3, num_experts_per_tok=2
    )
    return transformers.Qwen3MoeForCausalLM(config).eval()


def mixtral() -> Any:
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        **SIZES, intermediate_size=96, num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2
    )
    return transformers.MixtralForCausalLM(config).eval()


def write_gpt_oss(model: Any, folder: Path) -> None:
    """A checkpoint as it is published, from random codes and exponents; ``model`` gets the values these stand for."""
    tensors, generator = {}, torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            tensors[name] = parameter.detach().clone()
            continue
        experts, inputs, outputs = parameter.shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(119, 123, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        values = torch.empty(experts, outputs, inputs)
        for place in range(inputs):
            byte = blocks[:, :, place // 32, place % 32 // 2]
            code = byte % 16 if place % 2 == 0 else byte // 16
            values[:, :, place] = E2M1[code.long()] * 2.0 ** (scales[:, :, place // 32].float() - 127)
        parameter.data = values.transpose(1, 2).contiguous()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    settings = {**model.config.to_dict(), "architectures": ["GptOssForCausalLM"], "dtype": "float32"}
    settings["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("inner", [96, 64])
def test_gpt_oss_gives_what_its_layout_says(tmp_path: Path, inner: int) -> None:
    model = gpt_oss(inner)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_bias"):
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
    write_gpt_oss(model, tmp_path / "gpt")
    for _ in range(2):  # the second time from the converted copy
        read = load(tmp_path / "gpt", format="huggingface")
        stack = read.model.layers[0].mlp.experts.gate_up_proj
        assert isinstance(stack, QuantMatrixStack)
        assert torch.equal(stack[1], model.model.layers[0].mlp.experts.gate_up_proj[1])
        assert torch.allclose(logits(read), logits(model), atol=1e-5)


def test_gpt_oss_whose_scales_do_not_fit_is_refused(tmp_path: Path) -> None:
    write_gpt_oss(gpt_oss(96), tmp_path / "gpt")
    file = tmp_path / "gpt" / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.experts.down_proj_scales"
    save_file({**tensors, name: tensors[name][:, :-1].contiguous()}, file)
    with pytest.raises(FormatError, match=r"down_proj.*scales"):
        load(tmp_path / "gpt", format="huggingface")


@pytest.mark.parametrize(
    ("config", "part"),
    [
        (RTNConfig(bits=4, group_size=32), "weight_packed"),
        (RTNConfig(dtype="mxfp4"), "weight_packed"),
        (RTNConfig(dtype="nvfp4"), "weight_global_scale"),
        (RTNConfig(dtype="fp8_e4m3", group_size=-1), "weight_scale"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.dtype,
)
@pytest.mark.parametrize(
    ("make", "names"), [(qwen, ("gate_proj", "up_proj", "down_proj")), (mixtral, ("w1", "w3", "w2"))]
)
def test_experts_are_written_as_layers_and_read_again(
    tmp_path: Path, make: Any, names: tuple[str, ...], config: Any, part: str
) -> None:
    new = quantize(make(), config)
    save(new, tmp_path / "moe", format="huggingface", layout="compressed-tensors")
    tensors = load_file(tmp_path / "moe" / "model.safetensors")
    experts = new.model.layers[1].mlp.experts
    written = {tuple(name.split(".")[-3:-1]) for name in tensors if ".experts." in name and name.endswith(part)}
    assert written == {(str(number), name) for number in range(3) for name in names}
    read = load(tmp_path / "moe", format="huggingface")
    other = read.model.layers[1].mlp.experts
    assert torch.equal(other.gate_up_proj[2], experts.gate_up_proj[2])
    assert torch.equal(other.down_proj.values(), experts.down_proj.values())
    assert torch.allclose(logits(read), logits(new), atol=1e-5)


@pytest.mark.parametrize(
    ("others", "experts"),
    [
        (RTNConfig(bits=8, group_size=32), RTNConfig(bits=4, group_size=16)),
        (RTNConfig(dtype="fp8_e4m3", group_size=-1), RTNConfig(bits=4, group_size=32)),
        (RTNConfig(bits=4, group_size=32), RTNConfig(dtype="fp8_e4m3", group_size=-1)),
    ],
    ids=["int8, int4", "fp8, int4", "int4, fp8"],
)
def test_transformers_reads_experts_quantized_otherwise_than_attentions(
    tmp_path: Path, others: RTNConfig, experts: RTNConfig
) -> None:
    pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
    new = exact(quantize(qwen(), others.set_local(r".*experts\..*", experts)))
    save(new, tmp_path / "moe", format="huggingface")
    for read in (
        exact(load(tmp_path / "moe", format="huggingface")),
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "moe", dtype=torch.float32).eval(),
    ):
        torch.testing.assert_close(logits(read), logits(new), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("make", "block"), [(qwen, "mlp"), (mixtral, "block_sparse_moe")])
def test_experts_and_routers_in_float_are_written_as_engines_look_for_them(
    tmp_path: Path, make: Any, block: str
) -> None:
    """One matrix an expert, under the names of published checkpoints, and named as not quantized."""
    fp8 = {"w_dtype": "fp8_e4m3", "act_dtype": "fp8_e4m3", "w_granularity": "per_channel"}
    config = DynamicQuantConfig(**fp8, act_granularity="per_token")
    config.set_local(["lm_head", "model.embed_tokens"], RTNConfig(dtype="fp32"))
    new = quantize(make(), config)
    save(new, tmp_path / "moe", format="huggingface")
    make().save_pretrained(tmp_path / "float")
    tensors, published = (load_file(tmp_path / each / "model.safetensors") for each in ("moe", "float"))
    assert tensors.keys() - published.keys() == {f"{n}_scale" for n in published if "self_attn" in n and "_proj" in n}
    assert all(torch.equal(tensors[name], published[name]) for name in published if f".{block}." in name)
    ignored = json.loads((tmp_path / "moe" / "config.json").read_text())["quantization_config"]["ignore"]
    left = {name for name in published if f".{block}." in name or name == "lm_head.weight"}
    assert left <= {f"{name}.weight" for name in ignored}
    assert not [name for name in ignored if "self_attn" in name]
    for read in (
        load(tmp_path / "moe", format="huggingface"),
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "moe", dtype=torch.float32).eval(),
    ):
        torch.testing.assert_close(logits(read), logits(new), rtol=1e-4, atol=1e-5)


def test_an_expert_in_float_of_another_shape_is_named(tmp_path: Path) -> None:
    save(
        quantize(qwen(), RTNConfig().set_local(r".*experts\..*", RTNConfig(dtype="fp32"))),
        tmp_path / "m",
        "huggingface",
    )
    file = tmp_path / "m" / "model.safetensors"
    name = "model.layers.0.mlp.experts.1.up_proj.weight"
    tensors = load_file(file)
    save_file({**tensors, name: tensors[name][:-1].contiguous()}, file)
    with pytest.raises(
        FormatError, match=r"experts.0.gate_proj' and 5 others make up a parameter of shape \(3, 192, 64\)"
    ):
        load(tmp_path / "m", format="huggingface")


CHANNELS = RTNConfig(dtype="fp8_e4m3", group_size=-1)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (RTNConfig(dtype="nvfp4"), "drops the global scales of experts in NVFP4"),
        (RTNConfig(dtype="mxfp8_e4m3"), "does not load experts in MXFP8"),
        (RTNConfig(dtype="mxfp4").set_local(r".*\.down_proj", CHANNELS), "experts of all layers to be quantized alike"),
        (RTNConfig(dtype="mxfp4"), ""),
    ],
    ids=["nvfp4", "mxfp8", "mxfp4 and fp8", "mxfp4"],
)
def test_what_transformers_does_not_read_of_experts_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: RTNConfig, told: str
) -> None:
    save(quantize(mixtral(), config), tmp_path / "moe", format="huggingface")
    found = [record.getMessage() for record in caplog.records if record.getMessage().startswith("transformers ")]
    assert len(found) == bool(told)
    assert all(told in message for message in found)


def test_experts_that_checkpoints_have_no_names_for_are_refused(tmp_path: Path) -> None:
    new = quantize(gpt_oss(96), RTNConfig(bits=4, group_size=32))
    with pytest.raises(FormatError, match="by which names"):
        save(new, tmp_path / "gpt", format="huggingface", layout="compressed-tensors")
    save(new, tmp_path / "own")
    again = load(tmp_path / "own", original_model=gpt_oss(96))
    assert torch.equal(logits(again), logits(new))
