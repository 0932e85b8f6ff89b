"""Checkpoints rewritten file to file: what comes out, what it costs, and what is left when it fails."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from neural_compressor.errors import FormatError, WorkspaceError
from neural_compressor.formats import SafetensorsCheckpoint, new_folder, quantize_checkpoint


def keep(name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
    return {name: tensor}


def test_a_transform_that_keeps_everything_copies_the_checkpoint(
    tmp_path: Path, llama_folder: Path, llama_tensors: dict[str, np.ndarray]
) -> None:
    done = quantize_checkpoint(llama_folder, tmp_path / "new", keep, framework="np")
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert found.keys() == llama_tensors.keys()
    assert all(np.array_equal(found[name], array) for name, array in llama_tensors.items())
    assert done.path == tmp_path / "new"
    assert (done.tensors_read, done.tensors_written) == (len(llama_tensors),) * 2
    assert done.weight_bytes == sum(array.nbytes for array in llama_tensors.values())
    assert done.copied == ("generation_config.json", "tokenizer_config.json")
    assert (tmp_path / "new" / "config.json").read_text() != ""


def test_one_tensor_may_become_none_or_several(tmp_path: Path, llama_folder: Path) -> None:
    def transform(name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
        if "norm" in name:
            return {}
        return {f"{name}.low": tensor.astype(np.float16), f"{name}.shape": np.asarray(tensor.shape)}

    done = quantize_checkpoint(
        llama_folder,
        tmp_path / "new",
        transform,
        config=lambda settings: {**settings, "added": True},
        files=lambda settings: {"extra.json": {"type": settings["model_type"]}},
        shard_bytes=20_000,
        framework="np",
    )
    checkpoint = SafetensorsCheckpoint(tmp_path / "new", "np")
    assert len(set(checkpoint.files.values())) > 1
    assert len(checkpoint) == done.tensors_written == 2 * (done.tensors_read - 5)
    assert checkpoint["lm_head.weight.shape"].tolist() == [40, 64]
    assert json.loads((tmp_path / "new" / "config.json").read_text())["added"] is True
    assert json.loads((tmp_path / "new" / "extra.json").read_text()) == {"type": "llama"}


def test_weights_and_old_settings_are_not_copied(tmp_path: Path, llama_folder: Path) -> None:
    for name in ("pytorch_model.bin", "model.gguf", "quantize_config.json", ".hidden", "merges.txt"):
        (llama_folder / name).write_text("x")
    (llama_folder / "onnx").mkdir()
    done = quantize_checkpoint(llama_folder, tmp_path / "new", keep, framework="np")
    assert done.copied == ("generation_config.json", "merges.txt", "tokenizer_config.json")


def test_a_failure_leaves_nothing_behind(tmp_path: Path, llama_folder: Path) -> None:
    def fail(name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
        if "layers.1" in name:
            raise ZeroDivisionError("in the middle")
        return {name: tensor}

    before = sorted(tmp_path.iterdir())
    with pytest.raises(ZeroDivisionError):
        quantize_checkpoint(llama_folder, tmp_path / "new", fail, framework="np")
    assert sorted(tmp_path.iterdir()) == before


def test_a_damaged_source_is_named_and_leaves_nothing_behind(tmp_path: Path, llama_folder: Path) -> None:
    file = llama_folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"llama/model\.safetensors"):
        quantize_checkpoint(llama_folder, tmp_path / "new", keep, framework="np")
    assert not (tmp_path / "new").exists()


def test_an_existing_folder_is_replaced_only_when_asked_and_only_by_a_whole_one(
    tmp_path: Path, llama_folder: Path
) -> None:
    target = tmp_path / "new"
    target.mkdir()
    quantize_checkpoint(llama_folder, target, keep, framework="np")
    (target / "mine.txt").write_text("precious")
    with pytest.raises(WorkspaceError, match="overwrite=True"):
        quantize_checkpoint(llama_folder, target, keep, framework="np")

    def fail(name: str, tensor: np.ndarray) -> dict[str, np.ndarray]:
        raise OSError("disk full")

    with pytest.raises(WorkspaceError, match="disk full; nothing that was there has been changed"):
        quantize_checkpoint(llama_folder, target, fail, framework="np", overwrite=True)
    assert (target / "mine.txt").read_text() == "precious"
    quantize_checkpoint(llama_folder, target, keep, framework="np", overwrite=True)
    assert (target / "mine.txt").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama", "new"]


def test_a_file_in_the_way_is_not_replaced(tmp_path: Path, llama_folder: Path) -> None:
    (tmp_path / "new").write_text("mine")
    with pytest.raises(WorkspaceError, match="is no folder"):
        quantize_checkpoint(llama_folder, tmp_path / "new", keep, framework="np", overwrite=True)
    assert (tmp_path / "new").read_text() == "mine"


@pytest.mark.parametrize("target", [".", ".."])
def test_a_checkpoint_is_not_written_over_itself(llama_folder: Path, target: str) -> None:
    before = sorted(llama_folder.iterdir())
    with pytest.raises(FormatError, match="another folder"):
        quantize_checkpoint(llama_folder, llama_folder / target, keep, framework="np", overwrite=True)
    assert sorted(llama_folder.iterdir()) == before


def test_a_new_folder_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "new") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "deep" / "new").exists()
    assert (tmp_path / "deep" / "new" / "file").read_text() == "x"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["new"]


def test_memory_holds_about_one_tensor(tmp_path: Path) -> None:
    """Sixteen tensors of 16 MB pass through a process that may not hold a third of them."""
    script = """
        import resource, sys
        from pathlib import Path
        import numpy as np
        from neural_compressor.formats import ShardWriter, quantize_checkpoint

        folder = Path(sys.argv[1])
        (folder / "big").mkdir()
        writer = ShardWriter(folder / "big", shard_bytes=100_000_000)
        for i in range(16):
            writer.add(f"t{i}", np.full((2048, 2048), i, np.float32))
        writer.close()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        quantize_checkpoint(folder / "big", folder / "new", lambda n, t: {n: t + np.float32(1)}, framework="np")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True, check=True
    )
    grown = int(run.stdout) * (1 if sys.platform == "darwin" else 1024)
    assert grown < 80_000_000, f"{grown / 1e6:.0f} MB for tensors of 17 MB"
    with SafetensorsCheckpoint(tmp_path / "new", "np") as checkpoint:
        assert len(checkpoint) == 16
        assert float(checkpoint["t7"][5, 5]) == 8.0


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "old").write_text("old")
    (tmp_path / "link").symlink_to("target")
    with new_folder(tmp_path / "link", overwrite=True) as folder:
        (folder / "new").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert [file.name for file in (tmp_path / "target").iterdir() if file.name != "old"] == ["new"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "target"]


def test_what_a_user_put_beside_a_checkpoint_stays(tmp_path: Path, llama_folder: Path) -> None:
    target = tmp_path / "out"
    quantize_checkpoint(llama_folder, target, keep, framework="np", shard_bytes=20_000)
    assert len(list(target.glob("*.safetensors"))) > 1
    (target / "notes").mkdir()
    (target / "notes" / "why.txt").write_text("mine")
    (target / "adapter.safetensors").write_bytes(b"mine too")
    (target / "link").symlink_to("notes/why.txt")
    quantize_checkpoint(llama_folder, target, keep, framework="np", overwrite=True)
    assert (target / "notes" / "why.txt").read_text() == "mine"
    assert (target / "adapter.safetensors").read_bytes() == b"mine too"
    assert (target / "link").is_symlink()
    assert sorted(file.name for file in target.glob("*.safetensors")) == ["adapter.safetensors", "model.safetensors"]
    assert not (target / "model.safetensors.index.json").exists()
