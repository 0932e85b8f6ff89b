"""Sharded checkpoints read lazily, and files that are not what they seem."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from neural_compressor.errors import FormatError
from neural_compressor.formats import SafetensorsCheckpoint

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    first = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(4, np.int32)}
    second = {"c": np.ones((3, 1), np.float16)}
    save_file(first, tmp_path / SHARDS[0])
    save_file(second, tmp_path / SHARDS[1])
    write_index(tmp_path, {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]})
    return tmp_path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


class Boom:
    """Unpickling this would leave a file behind."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.trace,)  # type: ignore[return-value]


def test_tensors_are_read_one_at_a_time_from_their_shards(sharded: Path) -> None:
    with SafetensorsCheckpoint(sharded, "np") as checkpoint:
        assert sorted(checkpoint) == ["a", "b", "c"]
        assert len(checkpoint) == 3
        assert "a" in checkpoint
        assert checkpoint.shape("c") == (3, 1)
        assert checkpoint["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert {name: array.dtype.name for name, array in checkpoint.items()} == {
            "a": "float32",
            "b": "int32",
            "c": "float16",
        }
        assert checkpoint.files["c"] == sharded / SHARDS[1]


def test_torch_tensors_of_every_kind_are_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file as save_torch

    save_torch({"w": torch.ones(2, 2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    assert SafetensorsCheckpoint(tmp_path)["w"].dtype == torch.bfloat16


def test_a_single_file_needs_no_index(tmp_path: Path) -> None:
    save_file({"w": np.ones(3)}, tmp_path / "model.safetensors")
    assert list(SafetensorsCheckpoint(tmp_path, "np")) == ["w"]


def test_files_that_are_links_are_followed(sharded: Path, tmp_path: Path) -> None:
    """The cache of the Hugging Face hub is made of links to files elsewhere."""
    blob = tmp_path / "blobs" / "0123"
    blob.parent.mkdir()
    (sharded / SHARDS[1]).rename(blob)
    (sharded / SHARDS[1]).symlink_to(blob)
    assert SafetensorsCheckpoint(sharded, "np")["c"].shape == (3, 1)


def test_a_tensor_that_is_not_there_is_named(sharded: Path) -> None:
    with pytest.raises(FormatError, match="holds no tensor 'd'"):
        SafetensorsCheckpoint(sharded, "np")["d"]


# -- hostile and damaged files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "sub/../../x.safetensors",
        "..",
        ".",
        "",
        "C:\\x",
        "a\\..\\b",
        "\0",
        5,
        None,
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(sharded: Path, path: object) -> None:
    save_file({"c": np.ones(1)}, sharded.parent / "outside.safetensors")
    write_index(sharded, {"a": SHARDS[0], "c": path})
    with pytest.raises(FormatError, match=r"index\.json points to .*bare name"):
        SafetensorsCheckpoint(sharded, "np")


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {}}', "{}", "[" * 100_000])
def test_an_index_that_is_none_is_refused(sharded: Path, content: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(FormatError, match=r"model\.safetensors\.index\.json"):
        SafetensorsCheckpoint(sharded, "np")


def test_an_index_that_contradicts_the_files_is_refused(sharded: Path) -> None:
    write_index(sharded, {"a": SHARDS[0], "c": SHARDS[0]})
    with pytest.raises(FormatError, match=r"says that .*00001-of-00002.safetensors holds 'c', and it does not"):
        SafetensorsCheckpoint(sharded, "np")
    write_index(sharded, {"a": SHARDS[0], "c": "model-00009-of-00002.safetensors"})
    with pytest.raises(FormatError, match=r"00009-of-00002.safetensors does not exist"):
        SafetensorsCheckpoint(sharded, "np")


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    save_file({"a": np.ones(1), "c": np.ones(1)}, sharded / SHARDS[1])
    with pytest.raises(FormatError, match=r"tensor 'a' is in .*00001.* and again in .*00002"):
        SafetensorsCheckpoint(sharded, "np")


@pytest.mark.parametrize("keep", [0, 4, 8, 40, 0.5, 0.99])
def test_a_truncated_shard_is_named_before_anything_is_read(sharded: Path, keep: float) -> None:
    file = sharded / SHARDS[1]
    whole = file.read_bytes()
    file.write_bytes(whole[: keep if isinstance(keep, int) else int(len(whole) * keep)])
    with pytest.raises(FormatError, match=r"00002-of-00002.safetensors is not a complete safetensors file"):
        SafetensorsCheckpoint(sharded, "np")


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}},
        {"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"w": 5},
        [],
    ],
)
def test_a_tampered_header_is_refused(tmp_path: Path, header: object) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(FormatError, match=r"model\.safetensors is not a complete safetensors file"):
        SafetensorsCheckpoint(tmp_path, "np")


def test_a_header_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(FormatError, match="not a complete safetensors file"):
        SafetensorsCheckpoint(tmp_path, "np")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.PTH", "last.ckpt"])
def test_pickled_weights_are_refused_by_name(tmp_path: Path, name: str) -> None:
    trace = tmp_path / "trace"
    (tmp_path / name).write_bytes(pickle.dumps(Boom(trace)))
    with pytest.raises(FormatError, match=f"pickles \\({name}\\).*convert them to safetensors"):
        SafetensorsCheckpoint(tmp_path, "np")
    write_index(tmp_path, {"w": name})
    with pytest.raises(FormatError, match=f"{name} is a pickle"):
        SafetensorsCheckpoint(tmp_path, "np")
    assert not trace.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_under_another_name_is_not_unpickled(tmp_path: Path, zipped: bool) -> None:
    trace = tmp_path / "trace"
    file = tmp_path / "model.safetensors"
    if zipped:
        torch.save({"w": torch.ones(2)}, file)
    else:
        file.write_bytes(pickle.dumps(Boom(trace)))
    with pytest.raises(FormatError, match=r"model\.safetensors is a pickle under another name"):
        SafetensorsCheckpoint(tmp_path, "np")
    assert not trace.exists()


@pytest.mark.parametrize("length", [0x0280, 0x0380, 0x0480, 0x0580])
def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path, length: int) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(length)
    (tmp_path / "model.safetensors").write_bytes(length.to_bytes(8, "little") + header + bytes(4))
    assert SafetensorsCheckpoint(tmp_path, "np")["w"].tolist() == [0.0]


def test_a_git_lfs_pointer_is_told_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    with pytest.raises(FormatError, match="git lfs pull"):
        SafetensorsCheckpoint(tmp_path, "np")


def test_a_folder_without_a_checkpoint_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"holds neither model\.safetensors nor"):
        SafetensorsCheckpoint(tmp_path)
    (tmp_path / "other.safetensors").write_bytes(b"")
    with pytest.raises(FormatError, match=r"found other\.safetensors"):
        SafetensorsCheckpoint(tmp_path)
    with pytest.raises(FormatError, match="is not a folder"):
        SafetensorsCheckpoint(tmp_path / "nowhere")
