"""Checkpoints with int8 inputs as others write them: biases in the float type of the model; and damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from neural_compressor.errors import FormatError
from neural_compressor.torch.quantization import DynamicQuantConfig, RTNConfig, StaticQuantConfig, load, quantize, save

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
IDS = torch.randint(0, 96, (2, 12), generator=torch.Generator().manual_seed(0))
CONFIGS = {
    "static": lambda: StaticQuantConfig(act_dtype="int8", act_sym=True),
    "by token": lambda: DynamicQuantConfig(
        w_granularity="per_channel", act_dtype="int8", act_sym=True, act_granularity="per_token"
    ),
}
Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("proj.bias"):
                parameter.copy_(torch.randn_like(parameter).bfloat16())
    rules = CONFIGS[request.param]().set_local(["lm_head", "model.embed_tokens"], RTNConfig(dtype="fp32"))
    save(quantize(model, rules, run_fn=lambda m: m(IDS), quiet=True), tmp_path / "m", format="huggingface")
    return tmp_path / "m"


def logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return load(folder, format="huggingface", cache=False)(IDS).logits


def rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_biases_of_16_bits_are_added_in_float32(folder: Path) -> None:
    expected = logits(folder)

    def narrowed(tensors: dict[str, torch.Tensor]) -> None:
        tensors |= {name: tensor.bfloat16() for name, tensor in tensors.items() if name.endswith("proj.bias")}

    rewrite(folder, narrowed)
    assert torch.equal(logits(folder), expected)


DAMAGED = {
    "codes without a scale": (lambda t: t.pop(f"{Q}.weight_scale"), [f"{Q}.weight", "torch.int8", "no scale"]),
    "a bias of codes": (lambda t: t.update({f"{Q}.bias": torch.ones(64, dtype=torch.int8)}), [Q, "bias", "torch.int8"]),
    "a norm of another width": (
        lambda t: t.update({"model.norm.weight": torch.ones(63)}),
        ["model.norm.weight", "(63,)", "(64,)"],
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_refused_by_name(folder: Path, name: str) -> None:
    damage, words = DAMAGED[name]
    rewrite(folder, damage)
    with pytest.raises(FormatError) as caught:
        logits(folder)
    assert all(word in str(caught.value) for word in [str(folder), *words])
