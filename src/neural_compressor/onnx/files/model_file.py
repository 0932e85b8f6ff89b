"""ONNX models read from and written to files, with weights inside or in files beside them.

Files of weights are checked when a model is read, so that a hostile model reads no other files.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.onnx.files.mapped_file import can_map, read_mapped, write_one_file
from neural_compressor.onnx.files.message_check import checked_message
from neural_compressor.paths import output_file, write_errors

logger = logging.getLogger("neural_compressor")

_GIVEN = "the model given"
Early = Callable[[onnx.ModelProto], onnx.ModelProto]
ONE_FILE_BYTES = 1 << 30
"""Up to here a model with its weights is one file; protobuf ends at twice that."""
DATA_FILE = "neural_compressor.data_file"
"""Where a model has, among its metadata, the file that :func:`write_model` put its weights into."""


def read_model(source: str | Path | onnx.ModelProto | ir.Model, early: Early | None = None) -> ir.Model:
    """The model in a file, or the one given. Large weights of a file are read when they are used.

    External data is checked here. ``early`` may change the protobuf of a file, whose large weights are left out of it.
    """
    if isinstance(source, ir.Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return _with_files(_parsed(lambda: ir.from_proto(checked_message(source, _GIVEN)), _GIVEN), Path(_GIVEN))
    if not isinstance(source, str | Path):
        raise ConfigError(f"got a model of type {type(source).__name__}, expected a path or an onnx.ModelProto")
    path = Path(source)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is no regular file" if path.exists() else "does not exist"
        raise FormatError(f"{path} {what}; give the path of an ONNX file")
    return _with_files(_parsed(lambda: _from_file(path, early), str(path)), path)


def _from_file(path: Path, early: Early | None) -> ir.Model:
    if can_map() and path.suffix == ".onnx":
        return read_mapped(path, early)
    return ir.from_proto(checked_message(onnx.load(path, load_external_data=False), str(path)))


def _parsed(read: Callable[[], ir.Model], name: str) -> ir.Model:
    """What ``read`` gives, or an error that names the model."""
    try:
        model = read()
    except (DecodeError, ValueError, KeyError, TypeError, IndexError) as error:
        raise FormatError(f"{name} is not an ONNX model, or is truncated: {error}") from error
    except (OSError, RuntimeError) as error:  # the latter is what onnx_ir raises, one around the other
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise FormatError(f"{name} cannot be read: {cause}") from error
    if not model.graph.outputs:
        raise FormatError(f"{name} is not an ONNX model: its graph has no outputs")
    return model


def write_model(model: ir.Model, path: str | Path) -> Path:
    """Write ``model`` as ``path``; what was there is replaced when the new model is complete, and kept otherwise.

    Weights of over a gibibyte go to a file beside it, whose name no other model has used: so the old model stays whole
    until the new one takes its place. Where ``path`` is a link, it stays one, and what it leads to is replaced.
    """
    given, path = Path(path), output_file(path)
    stale = _replaced_data(path)
    mark = secrets.token_hex(4)
    draft = path.with_name(f".{path.name}.{mark}")
    size = weight_bytes(model)
    data = f"{path.stem}.{mark}.data" if size > ONE_FILE_BYTES else None
    with write_errors(path, size):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with without_inferable(model), _naming(model, data):
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
    if stale is not None:
        stale.unlink(missing_ok=True)
    if data is not None and given.parent.resolve() != path.parent.resolve():
        # It looks for weights beside the link, and admits them beside what that leads to.
        logger.warning("%s leads to another folder, and the weights are there: ONNX Runtime opens %s only", given, path)
    return path


@contextmanager
def _naming(model: ir.Model, data: str | None) -> Iterator[None]:
    """The file of the weights among the metadata meanwhile, by which :func:`_replaced_data` knows it."""
    own = model.metadata_props.pop(DATA_FILE, None)
    if data is not None:
        model.metadata_props[DATA_FILE] = data
    try:
        yield
    finally:
        model.metadata_props.pop(DATA_FILE, None)
        if own is not None:
            model.metadata_props[DATA_FILE] = own


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


def _with_files(model: ir.Model, path: Path) -> ir.Model:
    """``model`` with its external data found and checked."""
    for value, tensor in list(initializers(model)):
        if isinstance(tensor, ir.ExternalTensor):
            value.const_value = located(tensor, path)
    nodes = chain(model.graph.all_nodes(), *(function.all_nodes() for function in model.functions.values()))
    for node in nodes:
        for name, attribute in node.attributes.items():
            if isinstance(tensor := attribute.value, ir.ExternalTensor):
                # Nothing else looks for files here, and what a node holds is small.
                array = located(tensor, path).numpy()
                node.attributes[name] = ir.AttrTensor(name, ir.Tensor(array, tensor.dtype, name=tensor.name))
    return model


def _replaced_data(path: Path) -> Path | None:
    """The file that :func:`write_model` put beside ``path`` for the model there, if nothing else can be using it.

    Its name alone is no proof, as files of users may be called so: the model must read it, and its metadata name it as
    written here. A copy of the model in the same folder keeps it.
    """
    name = re.compile(rf"{re.escape(path.stem)}\.[0-9a-f]{{8}}\.data")
    if not path.is_file() or not any(name.fullmatch(file.name) for file in path.parent.iterdir()):
        return None
    try:
        old = onnx.load(path, format="protobuf", load_external_data=False)
    except (DecodeError, OSError):
        return None
    own = next((entry.value for entry in old.metadata_props if entry.key == DATA_FILE), "")
    read = {entry.value for each in old.graph.initializer for entry in each.external_data if entry.key == "location"}
    file = path.with_name(own) if name.fullmatch(own) and own in read else None
    real = path.resolve()
    others = (each for each in path.parent.glob("*.onnx") if each.is_file() and each.resolve() != real)
    return None if file is None or any(_mentions(each, own) for each in others) else file


def _mentions(path: Path, name: str) -> bool:
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0


def located(tensor: ir.ExternalTensor, path: Path) -> ir.ExternalTensor:
    """``tensor`` of the model read from ``path``, pointing to the file that it lies in; an error where that is none of its.

    Files lie in the folder of the model, or in that of what ``path`` leads to where it is a link: the caches that models
    are downloaded to have links to the model and to its data side by side, and both files in one folder elsewhere.
    """
    where = f"{path}: the weight {tensor.name!r} lies in {str(tensor.location)!r}"
    location = Path(tensor.location)
    if location.is_absolute() or ".." in location.parts:
        raise FormatError(f"{where}, outside of the model's folder; put the file beside the model")
    folders = [path.parent, path.resolve().parent]
    file = next((folder / location for folder in folders if (folder / location).is_file()), None)
    if file is None:
        raise FormatError(f"{where}, which does not exist; put the file beside the model")
    real = file.resolve()
    if not any(real.is_relative_to(folder.resolve()) for folder in folders):
        raise FormatError(f"{where}, a link to outside of the model's folder; put the file itself beside the model")
    offset, size = tensor.offset or 0, real.stat().st_size
    if tensor.length is not None and tensor.length != tensor.nbytes:
        raise FormatError(f"{where} with {tensor.length} bytes where its shape needs {tensor.nbytes}")
    if size < offset + tensor.nbytes:
        raise FormatError(f"{where}, which is truncated: {size} bytes, and the weight ends at {offset + tensor.nbytes}")
    # Without a folder to stay in, onnx_ir takes the file as it is, be it one of several hard links.
    return ir.ExternalTensor(
        str(real),
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=str(tensor.name),
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def fingerprint(model: ir.Model) -> str:
    """Sixteen hex digits that differ where nodes, inputs, outputs or weights do; metadata of the file does not count."""
    digest = hashlib.sha256(repr(sorted(model.opset_imports.items())).encode())
    for value in (*model.graph.inputs, *model.graph.outputs):
        digest.update(f"{value.name} {value.dtype} {value.shape}\n".encode())
    for node in model.graph:
        digest.update(node_bytes(node))
    for value, tensor in initializers(model):
        digest.update(f"{value.name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()[:16]


def node_bytes(node: ir.Node) -> bytes:
    """``node`` as a file stores it, subgraphs included."""
    return bytes(ir.serde.serialize_node(node).SerializeToString(deterministic=True))


def as_proto(model: ir.Model) -> onnx.ModelProto:
    """``model`` with all its weights inside, those from files of their own too."""
    return ir.to_proto(ir.external_data.load_to_model(model.clone()))


def stored_bytes(model: ir.Model) -> int:
    """Bytes of the file, or files; where there are several, of weights and nodes."""
    weights = weight_bytes(model)
    if weights <= ONE_FILE_BYTES:
        with without_inferable(model):
            return int(as_proto(model).ByteSize())
    return weights + sum(len(node_bytes(node)) for node in model.graph)
