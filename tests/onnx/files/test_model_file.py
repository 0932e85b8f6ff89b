"""Reading says what is wrong with a file; writing never leaves half a model."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.errors import ConfigError, FormatError, WorkspaceError
from neural_compressor.onnx.files import model_file
from neural_compressor.onnx.files.model_file import read_model, weight_bytes, write_model


def proto(width: int = 8) -> onnx.ModelProto:
    weight = np.arange(width * width, dtype=np.float32).reshape(width, width)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def split_file(tmp_path: Path) -> Path:
    """A model whose weight lies in a file of its own."""
    path = tmp_path / "model.onnx"
    onnx.save(proto(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_a_proto_and_a_path_give_the_same(tmp_path: Path) -> None:
    onnx.save(proto(), tmp_path / "m.onnx")
    from_file, given = read_model(tmp_path / "m.onnx"), read_model(proto())
    for model in (from_file, given):
        weight = model.graph.initializers["w"].const_value
        assert weight is not None
        np.testing.assert_array_equal(weight.numpy(), numpy_helper.to_array(proto().graph.initializer[0]))
        assert weight_bytes(model) == 8 * 8 * 4


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x00" * 64])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(FormatError, match=r"m\.onnx.*not an ONNX model"):
        read_model(tmp_path / "m.onnx")


def test_a_truncated_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(proto().SerializeToString()[:-40])
    with pytest.raises(FormatError, match="not an ONNX model, or is truncated"):
        read_model(tmp_path / "m.onnx")


def test_a_missing_file_a_folder_and_a_number(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="does not exist"):
        read_model(tmp_path / "none.onnx")
    with pytest.raises(FormatError, match="is a folder"):
        read_model(tmp_path)
    with pytest.raises(ConfigError, match="int"):
        read_model(3)  # type: ignore[arg-type]


def test_external_data_is_read_when_used(split_file: Path) -> None:
    weight = read_model(split_file).graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), numpy_helper.to_array(proto().graph.initializer[0]))


def test_missing_external_data(split_file: Path) -> None:
    split_file.with_name("weights.bin").unlink()
    with pytest.raises(FormatError, match=r"'w' lies in 'weights\.bin', which does not exist"):
        read_model(split_file)


def test_truncated_external_data(split_file: Path) -> None:
    split_file.with_name("weights.bin").write_bytes(b"\x00" * 100)
    with pytest.raises(FormatError, match="truncated: 100 bytes"):
        read_model(split_file)


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "outside.bin").write_bytes(b"\x00" * 1000)
    folder = tmp_path / "model"
    folder.mkdir()
    model = proto()
    weight = model.graph.initializer[0]
    onnx.external_data_helper.set_external_data(weight, location, 0, 256)
    weight.ClearField("raw_data")
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FormatError, match="outside of the model's folder"):
        read_model(folder / "m.onnx")


def test_a_small_model_is_one_file(split_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out.onnx"
    write_model(read_model(split_file), out)
    assert [p.name for p in out.parent.iterdir()] == ["out.onnx"]
    onnx.checker.check_model(onnx.load(out), full_check=True)


def test_a_large_model_has_one_data_file_however_often_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file, "ONE_FILE_BYTES", 100)
    out = tmp_path / "out.onnx"
    write_model(read_model(proto(16)), out)
    first = {p.name for p in tmp_path.iterdir()}
    write_model(read_model(out), out)  # onto the file that its weights are mapped from
    second = {p.name for p in tmp_path.iterdir()}
    assert len(first) == len(second) == 2
    assert len(first & second) == 1
    weight = read_model(out).graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), np.arange(256, dtype=np.float32).reshape(16, 16))


def test_a_failed_write_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.onnx"
    write_model(read_model(proto()), out)
    before = out.read_bytes()

    def fail(*args: object, **kwargs: object) -> None:
        Path(str(args[1])).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(model_file, "write_one_file", fail)
    with pytest.raises(WorkspaceError, match="No space left"):
        write_model(read_model(proto(4)), out)
    assert out.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out.onnx"]


def test_a_full_disk_says_how_much_is_needed_and_leaves_the_old_model(tiny_disk: Path) -> None:
    write_model(read_model(proto()), tiny_disk / "m.onnx")
    before = (tiny_disk / "m.onnx").read_bytes()
    with pytest.raises(
        WorkspaceError, match=r"m\.onnx cannot be written: No space left.*where 160,000 bytes.*has been changed"
    ) as caught:
        write_model(read_model(proto(200)), tiny_disk / "m.onnx")
    assert caught.value.__suppress_context__
    assert (tiny_disk / "m.onnx").read_bytes() == before
    assert [path.name for path in tiny_disk.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("step", ["open", "replace"])
def test_a_disk_that_is_full_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    out = tmp_path / "m.onnx"
    write_model(read_model(proto()), out)
    before = out.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path if step == "open" else os, step, full)
        with pytest.raises(WorkspaceError, match=r"m\.onnx cannot be written: No space left"):
            write_model(read_model(proto(4)), out)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WorkspaceError, match="cannot be written"):
        write_model(read_model(proto()), tmp_path / "file" / "out.onnx")


def test_what_a_reader_infers_is_not_written(tmp_path: Path) -> None:
    """Types of constants and standard ops; those of other ops nobody else knows. The model in memory keeps all."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("FastGelu", ["h"], ["g"], domain="com.microsoft"),
        helper.make_node("Relu", ["g"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    small = proto()
    del small.graph.node[:]
    small.graph.node.extend(nodes)
    small.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    small.graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "hgr")
    model = read_model(small)
    before = model.graph.node(0).outputs[0].shape
    written = onnx.load(write_model(model, tmp_path / "m.onnx"))
    assert [value.name for value in written.graph.value_info] == ["g"]
    assert model.graph.node(0).outputs[0].shape == before
    assert model.graph.initializers["w"].dtype == TensorProto.FLOAT
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    inferred = onnx.shape_inference.infer_shapes(written, strict_mode=False)
    assert {value.name for value in inferred.graph.value_info} >= {"h", "g", "r"}


@pytest.fixture
def split_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that was written in two files."""
    monkeypatch.setattr(model_file, "ONE_FILE_BYTES", 100)
    return write_model(read_model(proto(16)), tmp_path / "model.onnx")


def data_file(path: Path) -> Path:
    tensor = onnx.load(path, load_external_data=False).graph.initializer[0]
    return path.with_name(next(entry.value for entry in tensor.external_data if entry.key == "location"))


def test_files_of_the_user_stay(split_output: Path) -> None:
    names = ("model.training.data", "model.external.data", "model.12345678.data", "model.deadbeef.data")
    for name in names:
        split_output.with_name(name).write_text(name)
    old = data_file(split_output)
    write_model(read_model(split_output), split_output)
    assert [split_output.with_name(name).read_text() for name in names] == list(names)
    assert not old.exists()


def test_files_of_the_user_stay_beside_a_model_that_was_not_written_here(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto(), path, save_as_external_data=True, location="model.12345678.data", size_threshold=0)
    write_model(read_model(proto(4)), path)
    assert (tmp_path / "model.12345678.data").exists()


def test_a_copy_of_the_model_keeps_its_weights(split_output: Path) -> None:
    copy = split_output.with_name("copy.onnx")
    copy.write_bytes(split_output.read_bytes())
    write_model(read_model(proto(4)), split_output)
    assert weight_bytes(read_model(copy)) == 16 * 16 * 4


def test_a_name_with_wildcards(split_output: Path) -> None:
    """``m?del[l].onnx`` is a name, no pattern."""
    out = split_output.with_name("m?del[l].onnx")
    for _ in range(2):
        write_model(read_model(proto(16)), out)
    assert sum(file.name.startswith("m?del[l].") for file in out.parent.iterdir()) == 2
    assert data_file(split_output).exists()


def test_one_file_in_the_place_of_two_names_no_data_file(split_output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "ONE_FILE_BYTES", 1 << 30)
    model = read_model(split_output)
    write_model(model, split_output)
    assert [file.name for file in split_output.parent.iterdir()] == ["model.onnx"]
    assert model_file.DATA_FILE not in {entry.key for entry in onnx.load(split_output).metadata_props}


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target.onnx"
    target.parent.mkdir()
    link = tmp_path / "link.onnx"
    link.symlink_to(target)
    for width in (4, 8):
        write_model(read_model(proto(width)), link)
        assert link.is_symlink()
        assert weight_bytes(read_model(target)) == width * width * 4


def test_a_linked_model_has_its_weights_beside_what_it_leads_to(split_output: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.onnx"
    link.symlink_to(split_output)
    weight = read_model(link).graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), np.arange(256, dtype=np.float32).reshape(16, 16))


def test_weights_beside_what_a_link_leads_to_are_told_of(split_output: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime does not find them from the link."""
    for folder, told in ((split_output.parent, 0), (split_output.parent / "elsewhere", 1)):
        folder.mkdir(exist_ok=True)
        link = folder / "link.onnx"
        link.symlink_to(split_output)
        caplog.clear()
        write_model(read_model(proto(16)), link)
        assert caplog.text.count("ONNX Runtime opens") == told
        assert list(split_output.parent.glob("model.*.data")) == [data_file(split_output)]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(WorkspaceError, match="no regular file"):
        write_model(read_model(proto()), tmp_path / "pipe.onnx")
    assert (tmp_path / "pipe.onnx").is_fifo()


def test_a_download_cache_of_links(tmp_path: Path) -> None:
    """``snapshots/revision`` has links to ``blobs``, where files are called by their hashes."""
    made = tmp_path / "made"
    made.mkdir()
    onnx.save(proto(), made / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0a1b"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, name in enumerate(("model.onnx", "model.onnx_data")):
        (made / name).rename(blobs / f"hash{number}")
        (snapshot / name).symlink_to(Path("..", "..", "blobs", f"hash{number}"))
    weight = read_model(snapshot / "model.onnx").graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), numpy_helper.to_array(proto().graph.initializer[0]))
    # What does not come from where the model does stays refused.
    (snapshot / "model.onnx_data").unlink()
    (tmp_path / "secret").write_bytes(b"\x00" * 1000)
    (snapshot / "model.onnx_data").symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match="a link to outside of the model's folder"):
        read_model(snapshot / "model.onnx")


def test_external_data_with_several_hard_links(split_file: Path, tmp_path: Path) -> None:
    """As installers leave them, which share files with their cache."""
    os.link(tmp_path / "weights.bin", tmp_path / "same.bin")
    weight = read_model(split_file).graph.initializers["w"].const_value
    assert weight is not None
    np.testing.assert_array_equal(weight.numpy(), numpy_helper.to_array(proto().graph.initializer[0]))


@pytest.mark.parametrize("location", ["w.bin", "../w.bin"])
def test_external_data_of_a_constant_node(tmp_path: Path, location: str) -> None:
    model = proto()
    value = model.graph.initializer.pop()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / location).write_bytes(value.raw_data)
    onnx.external_data_helper.set_external_data(value, location, 0, 256)
    value.ClearField("raw_data")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=value))
    (tmp_path / "in" / "m.onnx").write_bytes(model.SerializeToString())
    if location == "../w.bin":
        with pytest.raises(FormatError, match="outside of the model's folder"):
            read_model(tmp_path / "in" / "m.onnx")
        return
    tensor = read_model(tmp_path / "in" / "m.onnx").graph.node(0).attributes["value"].as_tensor()
    np.testing.assert_array_equal(tensor.numpy(), numpy_helper.to_array(proto().graph.initializer[0]))
