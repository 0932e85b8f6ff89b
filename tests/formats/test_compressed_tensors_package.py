"""What we write is read by the compressed-tensors package and by transformers, and the other way round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from neural_compressor.dtypes import IntType, dtype
from neural_compressor.formats import (
    FORMATS,
    LayerCompression,
    LinearWeight,
    PackQuantized,
    QuantizedCheckpoint,
    QuantizedLinear,
    quantize_checkpoint,
)
from neural_compressor.schemes import PER_CHANNEL, PER_TOKEN, PerBlock, PerGroup, TensorScheme, quantize

compressed_tensors = pytest.importorskip(
    "compressed_tensors", reason="the reference reader is not installed: pip install compressed-tensors"
)


def reference(spec: dict[str, Any]) -> Any:
    from compressed_tensors.quantization import QuantizationScheme

    return QuantizationScheme.model_validate(spec)


def packer() -> Any:
    from compressed_tensors.compressors import BaseCompressor

    return BaseCompressor.get_value_from_registry("pack-quantized")


def quantized(bits: int, symmetric: bool, part: Any) -> LinearWeight:
    x = torch.randn(24, 96, generator=torch.Generator().manual_seed(bits))
    return LinearWeight.from_quantized(quantize(x, TensorScheme(IntType(bits), symmetric, part)))


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("part", [PerGroup(32), PER_CHANNEL])
def test_the_package_reads_what_we_write(bits: int, symmetric: bool, part: Any) -> None:
    weight = quantized(bits, symmetric, part)
    group = PackQuantized().config({"fc": weight.spec})["config_groups"]["group_0"]
    theirs = packer().decompress(PackQuantized().compress(weight), reference(group))
    assert torch.equal(theirs["weight"], weight.dequantize())


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("part", [PerGroup(32), PER_CHANNEL])
def test_we_read_what_the_package_writes(bits: int, symmetric: bool, part: Any) -> None:
    weight = quantized(bits, symmetric, part)
    config = PackQuantized().config({"fc": weight.spec})
    state = {
        "weight": weight.dequantize(),
        "weight_scale": weight.scale,
        "weight_zero_point": (weight.zero_points - (1 << (bits - 1))).to(torch.int8),
    }
    theirs = packer().compress(state, reference(config["config_groups"]["group_0"]))
    back = PackQuantized().decompress(theirs, config, "fc")
    assert torch.equal(back.codes, weight.codes)
    assert torch.equal(back.zero_points, weight.zero_points)
    ours = PackQuantized().compress(weight)
    assert {part: array.tolist() for part, array in ours.items()} == {part: a.tolist() for part, a in theirs.items()}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers", reason="not installed: pip install transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        dtype="float32",
    )
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("layout", ["pack-quantized", "int-quantized"])
@pytest.mark.parametrize(
    ("bits", "symmetric", "part"), [(4, True, PerGroup(32)), (4, False, PerGroup(16)), (8, True, PER_CHANNEL)]
)
def test_transformers_computes_the_same_logits(
    tmp_path: Path, llama: Path, layout: str, bits: int, symmetric: bool, part: Any
) -> None:
    import transformers

    scheme = TensorScheme(IntType(bits), symmetric, part)
    rtn = LayerCompression(
        FORMATS[layout],
        lambda layer, w: LinearWeight.from_quantized(quantize(w, scheme)) if "_proj" in layer else None,
    )
    done = quantize_checkpoint(llama, tmp_path / "q", rtn, config=rtn.config, files=rtn.files)
    assert len(rtn.specs) == 14
    assert done.weight_bytes < sum(f.stat().st_size for f in llama.glob("*.safetensors"))
    assert json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]["format"] == layout

    expected = transformers.LlamaForCausalLM.from_pretrained(llama, dtype=torch.float32)
    with QuantizedCheckpoint(tmp_path / "q") as checkpoint, torch.no_grad():
        assert len(checkpoint.layers) == 14
        for name in checkpoint.layers:
            expected.get_submodule(name).weight.copy_(checkpoint.layer(name).dequantize())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32)
    tokens = torch.arange(40).reshape(2, 20) % 96
    with torch.no_grad():
        ours, theirs = expected(tokens).logits, loaded(tokens).logits
    assert np.array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.parametrize(
    ("layout", "weight", "inputs"),
    [
        ("float-quantized", TensorScheme(dtype("fp8_e4m3"), granularity=PER_CHANNEL), PER_TOKEN),
        ("float-quantized", TensorScheme(dtype("fp8_e4m3"), granularity=PerBlock(32, 32)), PerGroup(32)),
        ("int-quantized", TensorScheme(dtype("int8"), granularity=PER_CHANNEL), PER_TOKEN),
    ],
    ids=["channels", "blocks", "int8"],
)
def test_inputs_are_quantized_file_to_file(
    tmp_path: Path, llama: Path, layout: str, weight: TensorScheme, inputs: Any
) -> None:
    """In shards of a few tensors, without a model; read by transformers."""
    import transformers

    activation = TensorScheme(weight.dtype, granularity=inputs)
    rtn = LayerCompression(
        FORMATS[layout],
        lambda layer, w: QuantizedLinear(quantize(w, weight), activation) if "_proj" in layer else None,
    )
    quantize_checkpoint(llama, tmp_path / "q", rtn, config=rtn.config, files=rtn.files, shard_bytes=20_000)
    assert len(list((tmp_path / "q").glob("model-*.safetensors"))) > 2
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32).eval()
    tokens = torch.arange(40).reshape(2, 20) % 96
    with torch.no_grad():
        loaded(tokens)  # it decodes at the first call
    with QuantizedCheckpoint(tmp_path / "q") as checkpoint:
        assert len(checkpoint.layers) == 14
        for name in checkpoint.layers:
            layer = checkpoint.layer(name)
            assert isinstance(layer, QuantizedLinear)
            assert layer.activation == activation
            assert torch.equal(loaded.get_submodule(name).weight, layer.dequantize())
