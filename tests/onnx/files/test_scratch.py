"""A temporary folder that is full is said to be full; the model is not blamed for it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.errors import FormatError, WorkspaceError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.files.scratch import scratch_folder
from neural_compressor.onnx.passes.simplify import optimise
from neural_compressor.onnx.quantization import RTNConfig, StaticQuantConfig, TuningConfig, autotune, quantize
from neural_compressor.onnx.runtime.kernels import computes


def product(width: int) -> onnx.ModelProto:
    weight = np.random.default_rng(0).normal(size=(width, width)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class Reader:
    def __init__(self, width: int) -> None:
        self.sample = {"x": np.ones((2, width), np.float32)}
        self.rewind()

    def rewind(self) -> None:
        self._rest = iter([self.sample])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._rest, None)


@pytest.fixture
def tiny_tmp(tiny_disk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder is a file system of 96 kB."""
    monkeypatch.setattr(tempfile, "tempdir", str(tiny_disk))
    return tiny_disk


@pytest.mark.parametrize("width", [200, 600], ids=["in the graph", "beside it"])
def test_static_quantization(tiny_tmp: Path, tmp_path: Path, width: int) -> None:
    with pytest.raises(WorkspaceError, match=rf"the temporary folder {tiny_tmp} is full: the model takes .*TMPDIR"):
        quantize(product(width), tmp_path / "q.onnx", StaticQuantConfig(Reader(width)))
    assert not list(tiny_tmp.iterdir())
    assert not (tmp_path / "q.onnx").exists()


def test_an_evaluation_on_a_file_stops_the_run_and_is_not_the_trial_s_fault(tiny_tmp: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkspaceError, match=f"the temporary folder {tiny_tmp} is full"):
        autotune(product(300), TuningConfig(RTNConfig(weight_bits=8), workspace=tmp_path), lambda path: 1.0)


def test_a_probe_of_kernels_does_not_take_a_full_disk_for_a_missing_kernel(tiny_tmp: Path) -> None:
    model = read_model(product(8))
    node = model.graph[0]
    provider = "CPUExecutionProvider"
    kind = node.inputs[0].dtype
    assert computes(node, model.opset_imports, provider, ["T"], kind)
    fill = os.open(tiny_tmp / "fill", os.O_CREAT | os.O_WRONLY)
    os.posix_fallocate(fill, 0, os.statvfs(tiny_tmp).f_bavail * os.statvfs(tiny_tmp).f_frsize)
    os.close(fill)
    with pytest.raises(WorkspaceError, match="the temporary folder"):
        computes(node, model.opset_imports, provider, ["T"], kind)


def test_a_model_that_the_runtime_does_not_take_is_still_that() -> None:
    model = product(8)
    model.graph.node[0].op_type = "NoSuchOp"
    with pytest.raises(FormatError, match="does not take the model"):
        optimise(read_model(model))


def test_what_the_runtime_says_of_a_full_folder_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says only that something cannot be serialized."""
    model = product(8)
    model.graph.node[0].op_type = "NoSuchOp"
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(WorkspaceError, match=r"is full: the model takes \d+ bytes there and 100 are free") as caught:
        optimise(read_model(model))
    assert caught.value.__suppress_context__


def test_no_temporary_folder_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(WorkspaceError, match=r"temporary folder /nowhere.*TMPDIR"), scratch_folder():
        pass


def test_errors_of_other_files_are_left_alone() -> None:
    with pytest.raises(FileNotFoundError), scratch_folder():
        Path("/nowhere/of/the/user").read_text()
    with pytest.raises(WorkspaceError, match="temporary folder"), scratch_folder() as folder:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "model.onnx"))
