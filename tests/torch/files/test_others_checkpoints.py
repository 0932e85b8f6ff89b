"""Checkpoints of others, assembled value by value from the published layouts, run as the layout says; and damaged ones."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError, FormatError
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.quantization import RTNConfig, load, quantize, save

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
E4M3 = torch.float8_e4m3fn
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return torch.randint(0, 96, (2, 12), generator=torch.Generator().manual_seed(0))


def logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids).logits


def fp8_blocks(weight: torch.Tensor, size: int = 64) -> tuple[Tensors, torch.Tensor]:
    """Weights in blocks as DeepSeek publishes them, by a loop over the blocks."""
    rows, columns = (math.ceil(n / size) for n in weight.shape)
    stored, scale, values = torch.empty_like(weight).to(E4M3), torch.empty(rows, columns), torch.empty_like(weight)
    for i in range(rows):
        for j in range(columns):
            part = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
            scale[i, j] = weight[part].abs().max() / 448
            stored[part] = (weight[part] / scale[i, j]).to(E4M3)
            values[part] = stored[part].float() * scale[i, j]
    return {"weight": stored, "weight_scale_inv": scale}, values


def powers_of_two(weight: torch.Tensor, size: int = 64) -> tuple[Tensors, torch.Tensor]:
    """The same with the next powers of two as scales (``scale_fmt: ue8m0``), of blocks that fit."""
    blocks = weight.unflatten(1, (-1, size)).unflatten(0, (-1, size))
    scale = (blocks.abs().amax((1, 3), keepdim=True) / 448).log2().ceil().exp2()
    stored = (blocks / scale).to(E4M3)
    values = (stored.float() * scale).flatten(2).flatten(0, 1)
    return {"weight": stored.flatten(2).flatten(0, 1), "weight_scale_inv": scale[:, 0, :, 0]}, values


def fp8_static(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().max() / 448
    stored = (weight / scale).to(E4M3)
    return {"weight": stored, "weight_scale": scale, "input_scale": torch.tensor(0.01)}, stored.float() * scale


def nvfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    global_scale = torch.tensor(2688 / 0.2)  # above all weights, and that of all layers
    assert weight.abs().max() < 0.2
    blocks = weight.reshape(weight.shape[0], -1, 16)
    scale = (blocks.abs().amax(-1) / 6 * global_scale).to(E4M3)
    step = scale.float() / global_scale
    nearest = ((blocks / step[..., None]).abs()[..., None] - E2M1).abs().argmin(-1)
    values = E2M1[nearest] * blocks.sign() * step[..., None]
    codes = (nearest + 8 * (blocks < 0)).flatten(1).to(torch.uint8)
    tensors = {"weight_packed": codes[:, ::2] | (codes[:, 1::2] << 4), "weight_scale": scale}
    of_inputs = torch.tensor([2688 / 8.0])
    return {**tensors, "weight_global_scale": global_scale.reshape(1), "input_global_scale": of_inputs}, values.flatten(
        1
    )


def grouped_e4m3(x: torch.Tensor, size: int) -> torch.Tensor:
    groups = x.unflatten(-1, (-1, size))
    scale = groups.abs().amax(-1, keepdim=True) / 448
    return ((groups / scale).to(E4M3).float() * scale).flatten(-2)


def grouped_by_powers(x: torch.Tensor, size: int) -> torch.Tensor:
    groups = x.unflatten(-1, (-1, size))
    scale = (groups.abs().amax(-1, keepdim=True) / 448).log2().ceil().exp2()
    return ((groups / scale).to(E4M3).float() * scale).flatten(-2)


def static_e4m3(x: torch.Tensor) -> torch.Tensor:
    return (x / 0.01).clamp(-448, 448).to(E4M3).float() * 0.01


def nvfp4_inputs(x: torch.Tensor) -> torch.Tensor:
    """Blocks with scales of their own, divided by a global scale that is known beforehand."""
    blocks, global_scale = x.unflatten(-1, (-1, 16)), 2688 / 8.0
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 * global_scale).clamp(2**-9, 448).to(E4M3).float() / global_scale
    steps = (blocks / scale).abs().clamp(max=6)
    # Ties go to the even code.
    bounds = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    below = torch.bucketize(steps, bounds)
    tie = (below < 7) & (steps == bounds[below.clamp(max=6)]) & (below % 2 == 1)
    return (E2M1[below + tie] * blocks.sign() * scale).flatten(-2)


def modelopt_nvfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """The same numbers; scales of tensors multiply."""
    tensors, values = nvfp4(weight)
    stored = {"weight": tensors["weight_packed"], "weight_scale": tensors["weight_scale"]}
    of_tensors = {"weight_scale_2": 1 / tensors["weight_global_scale"][0], "input_scale": torch.tensor(8.0 / 2688)}
    return {**stored, **of_tensors}, values


NVFP4_ARGS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
FP8_BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [64, 64]}
KINDS: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, Any]]] = {
    "deepseek": (
        fp8_blocks,
        lambda x: grouped_e4m3(x, 64),
        FP8_BLOCKS,
    ),
    "deepseek, ue8m0": (
        powers_of_two,
        lambda x: grouped_by_powers(x, 64),
        {**FP8_BLOCKS, "scale_fmt": "ue8m0"},
    ),
    "fp8 static": (
        fp8_static,
        static_e4m3,
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    ),
    "modelopt fp8": (fp8_static, static_e4m3, {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}),
    "modelopt nvfp4": (
        modelopt_nvfp4,
        nvfp4_inputs,
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    ),
    "nvfp4": (
        nvfp4,
        nvfp4_inputs,
        {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {**NVFP4_ARGS, "dynamic": False},
                    "input_activations": {**NVFP4_ARGS, "dynamic": "local"},
                }
            },
        },
    ),
}


def assembled(llama: Any, folder: Path, kind: str, shards: int = 1) -> nn.Module:
    """Write the checkpoint of others; returns the float model that it stands for."""
    store, rounded, block = KINDS[kind]
    reference = copy.deepcopy(llama)
    tensors = {name: tensor.contiguous() for name, tensor in llama.state_dict().items()}
    for name, module in reference.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            stored, values = store(tensors.pop(f"{name}.weight"))
            tensors |= {f"{name}.{part}": tensor for part, tensor in stored.items()}
            module.weight.data = values
            module.register_forward_pre_hook(lambda _, args: (rounded(args[0]),))
    folder.mkdir(exist_ok=True)
    write(folder, tensors, shards)
    settings = {**llama.config.to_dict(), "architectures": [type(llama).__name__], "quantization_config": block}
    (folder / "config.json").write_text(json.dumps(settings, default=str))
    return reference


def write(folder: Path, tensors: Tensors, shards: int = 1) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    # One tensor after the other in turn, so that a weight and its scale are in different files.
    files = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(files.values()):
        save_file({name: tensor for name, tensor in tensors.items() if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_others_runs_as_its_layout_says(
    llama: Any, ids: torch.Tensor, tmp_path: Path, kind: str, shards: int
) -> None:
    reference = assembled(llama, tmp_path / "m", kind, shards)
    ours = load(tmp_path / "m", format="huggingface")
    torch.testing.assert_close(logits(ours, ids), logits(reference, ids), rtol=1e-4, atol=1e-5)
    assert torch.equal(logits(load(tmp_path / "m", format="huggingface"), ids), logits(ours, ids))


def test_what_transformers_has_no_use_for_is_left_out(ids: torch.Tensor, tmp_path: Path) -> None:
    """Layers of DeepSeek that guess further tokens, and a buffer that was once stored."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64}
    parts = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1}
    model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**sizes, **heads, **parts)).eval()
    reference = assembled(model, tmp_path / "m", "deepseek")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    guessing = {name.replace("layers.0", "layers.61"): t.clone() for name, t in tensors.items() if "layers.0" in name}
    guessing |= {"model.layers.61.embed_tokens.weight": torch.ones(96, 64), "model.rotary_emb.inv_freq": torch.ones(8)}
    save_file(tensors | guessing, tmp_path / "m" / "model.safetensors")
    ours = load(tmp_path / "m", format="huggingface")
    torch.testing.assert_close(logits(ours, ids), logits(reference, ids), rtol=1e-4, atol=1e-5)
    odd = {name.replace("layers.61", "layers.5"): tensor for name, tensor in guessing.items()}
    save_file(tensors | odd, tmp_path / "m" / "model.safetensors")
    with pytest.raises(FormatError, match=r"layers\.5\."):
        load(tmp_path / "m", format="huggingface")


def test_settings_in_a_file_of_their_own(llama: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    """``hf_quant_config.json``, with nothing said in ``config.json``."""
    reference = assembled(llama, tmp_path / "m", "modelopt fp8")
    settings = json.loads((tmp_path / "m" / "config.json").read_text())
    del settings["quantization_config"]
    (tmp_path / "m" / "config.json").write_text(json.dumps(settings))
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "m" / "hf_quant_config.json").write_text(json.dumps(told))
    ours = load(tmp_path / "m", format="huggingface")
    torch.testing.assert_close(logits(ours, ids), logits(reference, ids), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["modelopt fp8", "modelopt nvfp4"])
def test_the_modelopt_layout_is_written(llama: Any, ids: torch.Tensor, tmp_path: Path, kind: str) -> None:
    assembled(llama, tmp_path / "m", kind)
    model = load(tmp_path / "m", format="huggingface")
    save(model, tmp_path / "again", format="huggingface", layout="modelopt", kv_cache=[ids])
    old, new = (load_file(tmp_path / folder / "model.safetensors") for folder in ("m", "again"))
    assert old.keys() == {name for name in new if not name.endswith(("k_scale", "v_scale"))}
    for name, tensor in old.items():
        assert torch.equal(new[name].float(), tensor.float()), name
    told = json.loads((tmp_path / "again" / "hf_quant_config.json").read_text())["quantization"]
    assert told["quant_algo"] == ("FP8" if kind == "modelopt fp8" else "NVFP4")
    assert (told["exclude_modules"], told["kv_cache_quant_algo"]) == (["lm_head"], "FP8")


@pytest.mark.parametrize(
    ("kind", "layout", "told"),
    [
        ("fp8 static", "fp8", "(weight_scale, input_scale); transformers has other names"),
        ("modelopt fp8", "modelopt", "layout 'modelopt'; transformers does not"),
        ("deepseek", "fp8", ""),
        ("fp8 static", "compressed-tensors", ""),
    ],
)
def test_layouts_that_engines_alone_read_are_said(
    llama: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, layout: str, told: str
) -> None:
    assembled(llama, tmp_path / "m", kind)
    save(load(tmp_path / "m", format="huggingface"), tmp_path / "again", format="huggingface", layout=layout)
    found = [record.getMessage() for record in caplog.records if "engines and load() read" in record.getMessage()]
    assert len(found) == bool(told)
    assert all(told in message for message in found)


def test_powers_of_two_as_scales_of_inputs_are_written_again(
    llama: Any, ids: torch.Tensor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assembled(llama, tmp_path / "m", "deepseek, ue8m0")
    model = load(tmp_path / "m", format="huggingface")
    save(model, tmp_path / "again", format="huggingface", layout="fp8")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["quantization_config"]["scale_fmt"] == "ue8m0"
    assert torch.equal(logits(load(tmp_path / "again", format="huggingface"), ids), logits(model, ids))
    assert "engines divide" not in caplog.text


def test_scales_that_are_exponents_are_read(llama: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    """``scale_fmt: ue8m0``: the same numbers where scales are powers of two."""
    if not hasattr(torch, "float8_e8m0fnu"):
        pytest.skip("this torch has no float8_e8m0fnu")
    assembled(llama, tmp_path / "m", "deepseek")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("weight_scale_inv"):
            tensors[name] = torch.exp2(tensor.log2().round())
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    expected = logits(load(tmp_path / "m", format="huggingface", cache=False), ids)
    as_bytes = {n: t.to(torch.float8_e8m0fnu) if n.endswith("scale_inv") else t for n, t in tensors.items()}
    save_file(as_bytes, tmp_path / "m" / "model.safetensors")
    assert torch.equal(logits(load(tmp_path / "m", format="huggingface", cache=False), ids), expected)


# -- experts ----------------------------------------------------------------------------------------------------------


def mxfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    blocks = weight.reshape(weight.shape[0], -1, 32)
    exponent = blocks.abs().amax(-1).log2().floor() - 2
    step = torch.exp2(exponent)[..., None]
    nearest = ((blocks / step).abs()[..., None] - E2M1).abs().argmin(-1)
    codes = (nearest + 8 * (blocks < 0)).flatten(1).to(torch.uint8)
    packed = codes[:, ::2] | (codes[:, 1::2] << 4)
    scale = (exponent + 127).to(torch.uint8)
    return {"weight_packed": packed, "weight_scale": scale}, (E2M1[nearest] * blocks.sign() * step).flatten(1)


def own_nvfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Global scales that differ from layer to layer."""
    factor = 0.19 / weight.abs().max()
    tensors, values = nvfp4(weight * factor)
    tensors["weight_global_scale"] = tensors["weight_global_scale"] * factor
    return {name: tensor for name, tensor in tensors.items() if name != "input_global_scale"}, values / factor


def fp8_tensor(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    tensors, values = fp8_static(weight)
    return {"weight": tensors["weight"], "weight_scale": tensors["weight_scale"].reshape(1)}, values


EXPERTS = {
    "mxfp4": (mxfp4, "mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}),
    "nvfp4": (own_nvfp4, "nvfp4-pack-quantized", NVFP4_ARGS),
    "fp8": (fp8_tensor, "float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
}


@pytest.mark.parametrize("kind", EXPERTS)
def test_experts_that_are_stored_one_by_one(ids: torch.Tensor, tmp_path: Path, kind: str) -> None:
    store, layout, weights = EXPERTS[kind]
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "num_experts": 4,
    }
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, **heads, num_experts_per_tok=2))
    model.save_pretrained(tmp_path / "m")
    tensors, values = load_file(tmp_path / "m" / "model.safetensors"), {}
    if "model.layers.0.mlp.experts.0.up_proj.weight" not in tensors:
        pytest.skip("this transformers stores experts together")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        stored, values[name] = store(tensors[name])
        del tensors[name]
        tensors |= {name.removesuffix("weight") + part: tensor.contiguous() for part, tensor in stored.items()}
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    settings = json.loads((tmp_path / "m" / "config.json").read_text())
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    block = {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups, "ignore": ["lm_head"]}
    (tmp_path / "m" / "config.json").write_text(json.dumps({**settings, "quantization_config": block}))

    (tmp_path / "float").mkdir()
    (tmp_path / "float" / "config.json").write_text(json.dumps(settings))
    rest = {name: tensor for name, tensor in tensors.items() if name.rpartition(".")[0] + ".weight" not in values}
    save_file({**rest, **values}, tmp_path / "float" / "model.safetensors", metadata={"format": "pt"})
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "float", dtype=torch.float32).eval()
    for _ in range(2):  # the second time from the converted copy
        ours = load(tmp_path / "m", format="huggingface")
        for module in ours.modules():
            if isinstance(module, WeightOnlyLinear):
                module.exact = True
        torch.testing.assert_close(logits(ours, ids), logits(reference, ids), rtol=1e-4, atol=1e-5)
    held = ours.model.layers[0].mlp.experts.gate_up_proj
    assert held.weight_packed.nbytes <= 4 * 64 * 64
    # An expert less than the parameter has rows for.
    save_file({n: t for n, t in tensors.items() if ".experts.3." not in n}, tmp_path / "m" / "model.safetensors")
    with pytest.raises(FormatError, match=r"experts\.0\..*_proj.*make up a parameter of shape \(4, 64,"):
        load(tmp_path / "m", format="huggingface")


# -- the cache of keys and values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["compressed-tensors", "fp8"])
def test_scales_of_the_cache(llama: Any, ids: torch.Tensor, tmp_path: Path, layout: str) -> None:
    assembled(llama, tmp_path / "fp8", "fp8 static")
    model = load(tmp_path / "fp8", format="huggingface")
    with torch.no_grad():
        layers = model(ids, use_cache=True).past_key_values.layers[0]
    largest = float(layers.keys.abs().max()), float(layers.values.abs().max())
    save(model, tmp_path / "m", format="huggingface", layout=layout, kv_cache=[(ids[:1],), {"input_ids": ids[1:]}])
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    for part, size in zip(("k_scale", "v_scale"), largest, strict=True):
        scale = tensors[f"model.layers.0.self_attn.{part}"]
        assert scale.shape == (1,)
        assert float(scale) == pytest.approx(size / 448, rel=1e-5)
    scheme = json.loads((tmp_path / "m" / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]
    assert (scheme["num_bits"], scheme["type"], scheme["strategy"], scheme["dynamic"]) == (8, "float", "tensor", False)

    for _ in range(2):  # the second time from the converted copy
        again = load(tmp_path / "m", format="huggingface")
        with torch.no_grad():
            kept = again(ids, use_cache=True).past_key_values.layers[0]
        for found, exact, part in ((kept.keys, layers.keys, "k_scale"), (kept.values, layers.values, "v_scale")):
            scale = tensors[f"model.layers.0.self_attn.{part}"]
            torch.testing.assert_close(
                found, (exact / scale).clamp(-448, 448).to(E4M3).float() * scale, rtol=1e-5, atol=1e-6
            )
    assert (tmp_path / "m" / "neural_compressor_cache").is_dir()
    if layout == "compressed-tensors":
        pytest.importorskip("compressed_tensors", reason="the compressed-tensors package is not installed")
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m", dtype=torch.float32).eval()
        torch.testing.assert_close(logits(theirs, ids), logits(again, ids), rtol=1e-4, atol=1e-5)
    save(again, tmp_path / "default")
    assert torch.equal(logits(load(tmp_path / "default", llama), ids), logits(again, ids))
    save(again, tmp_path / "twice", format="huggingface", layout=layout)
    assert torch.equal(
        load_file(tmp_path / "twice" / "model.safetensors")["model.layers.0.self_attn.k_scale"],
        tensors["model.layers.0.self_attn.k_scale"],
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (True, "not iterable; give a list of batches"),
        (
            torch.zeros(1, 4, dtype=torch.long),
            r"kv_cache is a Tensor, expected a list of batches, as in kv_cache=\[inputs\]",
        ),
        ({"input_ids": None}, "kv_cache is a dict"),
        ([torch.zeros(1, 4)], "batch 0 of kv_cache does not fit the model"),
    ],
)
def test_batches_for_the_cache_that_are_none(llama: Any, tmp_path: Path, given: Any, said: str) -> None:
    model = quantize(copy.deepcopy(llama), RTNConfig(bits=4, group_size=32))
    with pytest.raises(CalibrationError, match=said):
        save(model, tmp_path / "m", format="huggingface", kv_cache=given)


def test_a_layout_without_a_place_for_the_cache(llama: Any, ids: torch.Tensor, tmp_path: Path) -> None:
    model = quantize(copy.deepcopy(llama), RTNConfig(bits=4, group_size=32))
    with pytest.raises(ConfigError, match="'gptq' has no scales of a cache"):
        save(model, tmp_path / "m", format="huggingface", layout="gptq", kv_cache=[ids])
    assert all(isinstance(m, WeightOnlyLinear) for m in [model.model.layers[0].self_attn.q_proj])


# -- damaged files ----------------------------------------------------------------------------------------------------

Q = "model.layers.0.self_attn.q_proj"


def changed(part: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Tensors], None]:
    def apply(tensors: Tensors) -> None:
        new = change(tensors.pop(f"{Q}.{part}"))
        if new is not None:
            tensors[f"{Q}.{part}"] = new.contiguous()

    return apply


def with_first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        new = tensor.float()
        new.reshape(-1)[0] = value
        return new.to(tensor.dtype)

    return change


def damaged(name: str, value: float) -> Any:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = with_first(value)(tensors[name])

    return change


DAMAGED = {
    "no scale": ("deepseek", changed("weight_scale_inv", lambda t: None), ["q_proj.weight", "no scale"]),
    "no weight": ("deepseek", changed("weight", lambda t: None), ["q_proj", "weight"]),
    "scale of another shape": (
        "deepseek",
        changed("weight_scale_inv", lambda t: t[:, :-1]),
        ["q_proj", "weight_scale_inv", "(2, 2)"],
    ),
    "scale of NaN": (
        "deepseek",
        changed("weight_scale_inv", with_first(math.nan)),
        ["q_proj", "weight_scale_inv", "NaN"],
    ),
    "scale of 0": ("deepseek", changed("weight_scale_inv", with_first(0)), ["q_proj", "weight_scale_inv", "0"]),
    "scale below 0": (
        "deepseek",
        changed("weight_scale_inv", with_first(-1)),
        ["q_proj", "weight_scale_inv", "below 0"],
    ),
    "weight of NaN": ("deepseek", changed("weight", with_first(math.nan)), ["q_proj", "weight", "NaN"]),
    "weight of floats": ("deepseek", changed("weight", lambda t: t.float()), ["q_proj", "float8_e4m3fn", "float32"]),
    "weight of another shape": ("deepseek", changed("weight", lambda t: t[:-64]), ["q_proj"]),
    "a row less": ("deepseek", changed("weight", lambda t: t[:-1]), ["self_attn.q_proj", "does not fit the model"]),
    "no input scale": ("fp8 static", changed("input_scale", lambda t: None), ["q_proj", "input_scale"]),
    "input scale of 0": ("fp8 static", changed("input_scale", lambda t: t * 0), ["q_proj", "input_scale", "above 0"]),
    "many input scales": (
        "fp8 static",
        changed("input_scale", lambda t: t.repeat(2)),
        ["q_proj", "input_scale", "(2,)"],
    ),
    "no global scale": ("nvfp4", changed("weight_global_scale", lambda t: None), ["q_proj", "weight_global_scale"]),
    "global scale of Inf": (
        "nvfp4",
        changed("weight_global_scale", with_first(math.inf)),
        ["q_proj", "weight_global_scale"],
    ),
    "block scale of NaN": ("nvfp4", changed("weight_scale", with_first(math.nan)), ["q_proj", "weight_scale", "NaN"]),
    "block scale of 0": ("nvfp4", changed("weight_scale", with_first(0)), ["q_proj", "weight_scale", "0"]),
    "packed in words": (
        "nvfp4",
        changed("weight_packed", lambda t: t.to(torch.int32)),
        ["q_proj", "weight_packed", "uint8"],
    ),
    "fewer scales": ("nvfp4", changed("weight_scale", lambda t: t[:, 1:]), ["q_proj", "weight_scale"]),
    "one cache scale": (
        "fp8 static",
        lambda tensors: tensors.update({"model.layers.0.self_attn.k_scale": torch.ones(1)}),
        ["self_attn", "v_scale"],
    ),
    "embedding of NaN": (
        "fp8 static",
        damaged("model.embed_tokens.weight", math.nan),
        ["model.embed_tokens.weight", "NaN"],
    ),
    "norm of Inf": (
        "fp8 static",
        damaged("model.norm.weight", -math.inf),
        ["model.safetensors", "model.norm.weight", "Inf"],
    ),
    "a cache of nobody": (
        "fp8 static",
        lambda tensors: tensors.update(
            {f"model.layers.7.self_attn.{p}": torch.ones(1) for p in ("k_scale", "v_scale")}
        ),
        ["model.layers.7.self_attn"],
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_refused_by_name(llama: Any, tmp_path: Path, name: str) -> None:
    kind, damage, words = DAMAGED[name]
    assembled(llama, tmp_path / "m", kind)
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    with pytest.raises(FormatError) as caught:
        load(tmp_path / "m", format="huggingface")
    assert all(
        word in str(caught.value) for word in [str(tmp_path / "m") if name != "a cache of nobody" else "", *words]
    )
    assert not (tmp_path / "m" / "neural_compressor_cache").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quant_method": "magic"}, ["magic", "fp8", "awq"]),
        ({"activation_scheme": "sometimes"}, ["activation_scheme", "sometimes"]),
        ({"weight_block_size": [64]}, ["weight_block_size"]),
        ({"weight_block_size": [64, 0]}, ["weight_block_size"]),
        ({"weight_block_size": [128, 64]}, ["weight_scale_inv", "has the shape"]),
        ({"activation_scheme": "static"}, ["dynamic"]),
        ({"fmt": "e5m2"}, ["e5m2"]),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, ["kv_cache_scheme", "k_scale"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_configuration_that_makes_no_sense_is_refused(
    llama: Any, tmp_path: Path, change: dict, words: list[str]
) -> None:
    assembled(llama, tmp_path / "m", "deepseek")
    settings = json.loads((tmp_path / "m" / "config.json").read_text())
    settings["quantization_config"] |= change
    (tmp_path / "m" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(FormatError) as caught:
        load(tmp_path / "m", format="huggingface")
    assert all(word in str(caught.value) for word in words)
