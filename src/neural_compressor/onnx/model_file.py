"""ONNX models read from files and written to them: large weights stay in their file until they are used."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from neural_compressor.disk_errors import write_errors
from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.onnx.mapped_file import can_map, read_mapped
from neural_compressor.onnx.one_file import write_one_file

Early = Callable[[onnx.ModelProto], onnx.ModelProto]
ONE_FILE_BYTES = 1 << 30
"""Up to here a model with its weights is one file; protobuf ends at twice that."""


def read_model(source: str | Path | onnx.ModelProto | ir.Model, early: Early | None = None) -> ir.Model:
    """The model in a file, or the one given. Large weights of a file are read when they are used.

    External data is checked here. ``early`` may change the protobuf of a file, whose large weights are left out of it.
    """
    if isinstance(source, ir.Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return _with_files(_checked(ir.from_proto(source), "the model given"), Path("the model given"))
    if not isinstance(source, str | Path):
        raise ConfigError(f"got a model of type {type(source).__name__}, expected a path or an onnx.ModelProto")
    path = Path(source)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise FormatError(f"{path} {what}; give the path of an ONNX file")
    try:
        model = read_mapped(path, early) if can_map() and path.suffix == ".onnx" else ir.load(path)
    except (DecodeError, ValueError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is not an ONNX model, or is truncated: {error}") from error
    return _with_files(_checked(model, str(path)), path)


def write_model(model: ir.Model, path: str | Path) -> Path:
    """Write ``model`` as ``path``; what was there is replaced when the new model is complete, and kept otherwise.

    Weights of over a gibibyte go to a file beside it, whose name no other model has used: so the old model stays whole
    until the new one takes its place.
    """
    path = Path(path)
    stale = _data_files(path)
    mark = secrets.token_hex(4)
    draft = path.with_name(f".{path.name}.{mark}")
    size = weight_bytes(model)
    data = f"{path.stem}.{mark}.data" if size > ONE_FILE_BYTES else None
    with write_errors(path, size):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with without_inferable(model):
                if data is None:
                    write_one_file(model, draft)
                else:
                    ir.save(model, draft, format="protobuf", external_data=data)
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            if data is not None:
                path.with_name(data).unlink(missing_ok=True)
            raise
    for file in stale:
        file.unlink(missing_ok=True)
    return path


@contextmanager
def without_inferable(model: ir.Model) -> Iterator[None]:
    """Types and shapes that a reader finds by itself are left out meanwhile: those of constants and of standard ops."""
    values = [value for value, _ in initializers(model) if not value.is_graph_input()]
    for node in model.graph.all_nodes():
        if node.domain in ("", "ai.onnx"):
            values += [value for value in node.outputs if not value.is_graph_output()]
    held = [(value, value.type, value.shape) for value in values]
    for value in values:
        value.type = value.shape = None
    try:
        yield
    finally:
        for value, kind, shape in held:
            value.type, value.shape = kind, shape


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers, those of subgraphs included."""
    return sum(tensor.nbytes for _, tensor in initializers(model))


def initializers(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Every initializer of the model and its subgraphs, with its tensor; the graph may be a view."""
    graphs: dict[Any, None] = {}
    for _ in ir.traversal.RecursiveGraphIterator(model.graph, enter_graph=graphs.setdefault):
        pass
    for graph in graphs:
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value, value.const_value


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """The tensors that lie in files of their own."""
    return (tensor for _, tensor in initializers(model) if isinstance(tensor, ir.ExternalTensor))


def _checked(model: ir.Model, name: str) -> ir.Model:
    if not model.graph.outputs:
        raise FormatError(f"{name} is not an ONNX model: its graph has no outputs")
    return model


def _with_files(model: ir.Model, path: Path) -> ir.Model:
    for tensor in external_tensors(model):
        _check_external(tensor, path)
    return model


def _check_external(tensor: ir.ExternalTensor, path: Path) -> None:
    folder, file = path.parent.resolve(), Path(tensor.path)
    where = f"{path}: the weight {tensor.name!r} lies in {str(tensor.location)!r}"
    if not file.resolve().is_relative_to(folder):
        raise FormatError(f"{where}, outside of the model's folder; put the file beside the model")
    if not file.is_file():
        raise FormatError(f"{where}, which does not exist; put the file beside the model")
    end = (tensor.offset or 0) + tensor.nbytes
    if tensor.length is not None and tensor.length != tensor.nbytes:
        raise FormatError(f"{where} with {tensor.length} bytes where its shape needs {tensor.nbytes}")
    if file.stat().st_size < end:
        raise FormatError(f"{where}, which is truncated: {file.stat().st_size} bytes, and the weight ends at {end}")


def _data_files(path: Path) -> list[Path]:
    """The files beside ``path`` that an earlier :func:`write_model` put there for the model it now replaces."""
    if not path.is_file():
        return []
    names = {p.name for p in path.parent.glob(f"{path.stem}.????????.data")}
    return [path.with_name(name) for name in names] if names and _is_model(path) else []


def _is_model(path: Path) -> Any:
    try:
        return bool(onnx.load(path, load_external_data=False).graph.output)
    except DecodeError:
        return False
