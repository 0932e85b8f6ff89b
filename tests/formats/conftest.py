"""A small Llama of random numbers: its configuration, its tensors, and a folder that holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file


@pytest.fixture
def llama_config() -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 40,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


@pytest.fixture
def llama_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    shapes = {"model.embed_tokens.weight": (40, 64), "model.norm.weight": (64,), "lm_head.weight": (40, 64)}
    for block in range(2):
        for name, shape in (
            ("self_attn.q_proj", (64, 64)),
            ("self_attn.k_proj", (32, 64)),
            ("self_attn.v_proj", (32, 64)),
            ("self_attn.o_proj", (64, 64)),
            ("mlp.gate_proj", (96, 64)),
            ("mlp.up_proj", (96, 64)),
            ("mlp.down_proj", (64, 96)),
            ("input_layernorm", (64,)),
            ("post_attention_layernorm", (64,)),
        ):
            shapes[f"model.layers.{block}.{name}.weight"] = shape
    return {name: (rng.standard_normal(shape) * 0.1).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def llama_folder(tmp_path: Path, llama_config: dict[str, Any], llama_tensors: dict[str, np.ndarray]) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    save_file(llama_tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(llama_config))
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    (folder / "tokenizer_config.json").write_text("{}")
    return folder
