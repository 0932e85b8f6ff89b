"""Shards written one tensor at a time, as the safetensors package reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch

from neural_compressor.errors import FormatError
from neural_compressor.formats import SafetensorsCheckpoint, ShardWriter


def written(folder: Path, tensors: dict, shard_bytes: int = 10**9) -> list[Path]:
    writer = ShardWriter(folder, shard_bytes)
    for name, array in tensors.items():
        writer.add(name, array)
    return writer.close()


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"],
)
def test_arrays_of_every_type_come_back(tmp_path: Path, dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    (file,) = written(tmp_path, {"w": array, "t": array.T, "scalar": array[0, 1], "none": array[:0]})
    back = load_file(file)
    assert {name: a.dtype.name for name, a in back.items()} == dict.fromkeys(("w", "t", "scalar", "none"), dtype)
    assert np.array_equal(back["w"], array)
    assert np.array_equal(back["t"], array.T)
    assert back["scalar"].shape == ()
    assert back["none"].shape == (0, 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int32", "bool"])
def test_torch_tensors_come_back(tmp_path: Path, dtype: str) -> None:
    tensor = (torch.arange(12).reshape(3, 4) % 5).to(getattr(torch, dtype))
    (file,) = written(tmp_path, {"w": tensor, "t": tensor.T, "p": torch.nn.Parameter(torch.ones(2))})
    back = load_torch(file)
    assert torch.equal(back["w"].float(), tensor.float())
    assert torch.equal(back["t"].float(), tensor.T.float())
    assert back["w"].dtype == tensor.dtype
    with safe_open(file, framework="pt") as handle:
        assert handle.metadata() == {"format": "pt"}


@settings(max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 200))
def test_shards_keep_to_their_size_and_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    tensors = {f"t{i}": np.full(size, i, np.float32) for i, size in enumerate(sizes)}
    files = written(folder, tensors, limit)
    found = {name: array for file in files for name, array in load_file(file).items()}
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name], array) for name, array in tensors.items())
    for file in files:
        held = load_file(file)
        assert sum(a.nbytes for a in held.values()) <= limit or len(held) == 1
    assert [name for name, _ in SafetensorsCheckpoint(folder, "np").items()] == list(tensors)
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []


def test_several_shards_have_an_index(tmp_path: Path) -> None:
    files = written(tmp_path, {"a": np.ones(8), "b": np.ones(8), "c": np.ones(4)}, shard_bytes=64)
    assert [file.name for file in files] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index == {
        "metadata": {"total_size": 160},
        "weight_map": dict(zip("abc", (file.name for file in files), strict=True)),
    }


def test_a_single_shard_has_the_plain_name(tmp_path: Path) -> None:
    (file,) = written(tmp_path, {"a": np.ones(8)})
    assert file.name == "model.safetensors"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors"]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    writer.add("a", np.ones(2))
    with pytest.raises(FormatError, match="'a' is taken"):
        writer.add("a", np.ones(2))
    with pytest.raises(FormatError, match="'__metadata__' is taken"):
        writer.add("__metadata__", np.ones(2))
    with pytest.raises(FormatError, match="tensor 'c' has the type complex64"):
        writer.add("c", np.ones(2, np.complex64))
    with pytest.raises(FormatError, match="at least a byte"):
        ShardWriter(tmp_path, 0)
    with pytest.raises(FormatError, match="no tensor was written"):
        ShardWriter(tmp_path).close()
    writer.abandon()
