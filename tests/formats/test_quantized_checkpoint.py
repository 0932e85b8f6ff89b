"""Checkpoints quantized file to file in each format, read again layer by layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError
from neural_compressor.formats import (
    FORMATS,
    LayerCompression,
    LinearWeight,
    QuantizedCheckpoint,
    quantization_config,
    quantize_checkpoint,
)
from neural_compressor.schemes import PerGroup, TensorScheme, quantize

INT4 = TensorScheme(dtype("int4"), True, PerGroup(32))


def rtn(layer: str, weight: np.ndarray) -> LinearWeight | None:
    return LinearWeight.from_quantized(quantize(weight, INT4)) if "_proj" in layer else None


def rewritten(folder: Path, target: Path, name: str, framework: str = "np") -> LayerCompression:
    layers = LayerCompression(FORMATS[name], rtn)
    quantize_checkpoint(
        folder, target, layers, config=layers.config, files=layers.files, shard_bytes=9_000, framework=framework
    )
    return layers


@pytest.mark.parametrize("name", ["gptq", "gptq_v2", "awq", "pack-quantized", "int-quantized"])
@pytest.mark.parametrize("framework", ["np", "pt"])
def test_layers_come_back_as_they_were_quantized(
    tmp_path: Path, llama_folder: Path, llama_tensors: dict[str, np.ndarray], name: str, framework: str
) -> None:
    layers = rewritten(llama_folder, tmp_path / "new", name, framework)
    assert len(layers.specs) == 14
    assert layers.kept == ["lm_head", "model.embed_tokens"]
    assert layers.refused == {}
    with QuantizedCheckpoint(tmp_path / "new", framework) as checkpoint:
        assert checkpoint.format is FORMATS[name]
        assert sorted(checkpoint.layers) == sorted(layers.specs)
        seen = {}
        for item, value in checkpoint.items():
            assert item not in seen
            seen[item] = value
        assert set(seen) == {*checkpoint.layers, *checkpoint.others}
        assert set(checkpoint.others) == {n for n in llama_tensors if "_proj" not in n}
        for layer in checkpoint.layers:
            expected = rtn(layer, llama_tensors[f"{layer}.weight"])
            assert np.array_equal(np.asarray(seen[layer].codes), expected.codes)
            assert np.allclose(np.asarray(seen[layer].scale), expected.scale, rtol=2**-11)
        for other in checkpoint.others:
            assert np.array_equal(np.asarray(seen[other]), llama_tensors[other])


@pytest.mark.parametrize("name", ["gptq", "awq", "pack-quantized"])
def test_the_checkpoint_is_smaller(tmp_path: Path, llama_folder: Path, name: str) -> None:
    rewritten(llama_folder, tmp_path / "new", name)
    with QuantizedCheckpoint(tmp_path / "new", "np") as checkpoint:
        names = [n for n in checkpoint.tensors if "_proj" in n]
        stored = sum(checkpoint.tensors[n].nbytes for n in names)
    values = 2 * (64 * 64 * 2 + 32 * 64 * 2 + 96 * 64 * 3)
    assert stored < values * 6.5 / 8


def test_what_a_format_cannot_store_stays_in_float_and_says_why(tmp_path: Path, llama_folder: Path) -> None:
    eights = TensorScheme(dtype("int4"), True, PerGroup(40))
    layers = LayerCompression(FORMATS["awq"], lambda _, w: LinearWeight.from_quantized(quantize(w, eights)))
    kept = layers("a.fc.weight", np.ones((8, 64), np.float32))
    assert list(kept) == ["a.fc.weight"]
    assert layers.refused == {"a.fc": "its groups must divide the inputs, and 40 does not divide 64"}
    assert layers.kept == ["a.fc"]
    assert list(layers("a.conv.weight", np.ones((2, 2, 3), np.float32))) == ["a.conv.weight"]
    assert list(layers("a.fc.bias", np.ones(8, np.float32))) == ["a.fc.bias"]


def test_a_damaged_layer_is_named_with_its_file(tmp_path: Path, llama_folder: Path) -> None:
    rewritten(llama_folder, tmp_path / "new", "gptq")
    settings = json.loads((tmp_path / "new" / "config.json").read_text())
    settings["quantization_config"]["bits"] = 8
    (tmp_path / "new" / "config.json").write_text(json.dumps(settings))
    with QuantizedCheckpoint(tmp_path / "new", "np") as checkpoint:
        name = checkpoint.layers[0]
        with pytest.raises(FormatError, match=rf"model-\d+-of-\d+\.safetensors: layer '{name}'"):
            checkpoint.layer(name)
        with pytest.raises(FormatError, match="no quantized layer 'lm_head'"):
            checkpoint.layer("lm_head")


def test_a_float_checkpoint_is_told_from_a_quantized_one(tmp_path: Path, llama_folder: Path) -> None:
    with pytest.raises(FormatError, match="has no 'quantization_config'"):
        QuantizedCheckpoint(llama_folder)
    (llama_folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "gptq", "bits": 4}}))
    with pytest.raises(FormatError, match="said to be a gptq checkpoint and holds no layer"):
        QuantizedCheckpoint(llama_folder)
    (llama_folder / "config.json").write_text(json.dumps({"quantization_config": 4}))
    with pytest.raises(FormatError, match="is not a JSON object"):
        QuantizedCheckpoint(llama_folder)


def test_older_awq_checkpoints_have_settings_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "quant_config.json").write_text(json.dumps({"w_bit": 4, "q_group_size": 128, "version": "GEMM"}))
    assert quantization_config(tmp_path)["quant_method"] == "awq"


def test_bfloat16_models_keep_their_other_tensors(tmp_path: Path, llama_folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = llama_folder / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    rewritten(llama_folder, tmp_path / "new", "pack-quantized", "pt")
    with QuantizedCheckpoint(tmp_path / "new") as checkpoint:
        assert checkpoint.tensors["model.norm.weight"].dtype == torch.bfloat16
        assert checkpoint.layer("model.layers.0.mlp.up_proj").codes.dtype == torch.uint8
