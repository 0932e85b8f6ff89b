"""Quantized networks on disk: one file of plain arrays, weights as int8 codes."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError

from neural_compressor.errors import FormatError, NeuralCompressorError
from neural_compressor.schemes import OpScheme, PackedArray, Plan, QuantizedArray
from neural_compressor_mxnet.graph import Graph, Op
from neural_compressor_mxnet.quantized import QuantizedBlock, build_block

FILE = "network.npz"
Stored = dict[str, np.ndarray]
_DAMAGED = (zlib.error, zipfile.BadZipFile, MXNetError, NeuralCompressorError)


def save_block(block: QuantizedBlock, folder: Path) -> None:
    """Write ``block`` into ``folder``: a reader sees the old file or the new one, never half of one."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{FILE}.{os.getpid()}"
    try:
        with unfinished.open("wb") as file:
            np.savez(file, **stored_arrays(block))
        unfinished.replace(folder / FILE)
    finally:
        unfinished.unlink(missing_ok=True)


def load_block(folder: Path, graph: Graph) -> QuantizedBlock:
    """Read what :func:`save_block` wrote of a network whose graph is ``graph``."""
    file = folder / FILE
    try:
        with np.load(file, allow_pickle=False) as found:
            stored = {name: found[name] for name in found.files}
        about = json.loads(_text(stored["about"]))
        plan, symbol = Plan.from_json(about["plan"]), mx.sym.load_json(_text(stored["symbol"]))
        known = {op.key for op in graph.ops.values()}
        strangers = [name for name, op_type in plan if (name, op_type) not in known]
        if strangers or tuple(about["inputs"]) != graph.inputs:
            raise FormatError(f"it is of another network, with {', '.join(strangers) or about['inputs']}")
        known_shapes = {name: array.shape for name, array in {**graph.arguments, **graph.auxiliary}.items()}
        floats = {name.removeprefix("float/"): mx.nd.array(array) for name, array in stored.items() if "float/" in name}
        for name, array in floats.items():
            if array.shape != known_shapes.get(name):
                raise FormatError(f"parameter {name!r} has shape {array.shape}, not {known_shapes.get(name)}")
        weighted = {op.weight: plan[op.key] for op in graph.ops.values() if _is_stored_as_codes(stored, op)}
        codes = {name: _codes(stored, name, scheme, graph) for name, scheme in weighted.items()}
        return build_block(symbol, graph.inputs, floats, codes, plan, graph.ops.values())
    except (OSError, KeyError, TypeError, ValueError, AssertionError, EOFError, *_DAMAGED) as error:
        raise FormatError(f"{file} is not a network saved from one like this: {error}") from error


def stored_arrays(block: QuantizedBlock) -> dict[str, np.ndarray]:
    """Everything of a quantized network that goes to disk, by name."""
    about = json.dumps({"plan": block.plan.to_json(), "inputs": block.graph_inputs})
    found = {"about": _bytes(about), "symbol": _bytes(block.symbol.tojson())}
    found |= {f"float/{name}": array.asnumpy() for name, array in block.floats.items()}
    for name, array in block.codes.items():
        found |= {f"codes/{name}/{part}": np.asarray(value) for part, value in array.pack().arrays().items()}
    return found


def float_arrays(graph: Graph) -> dict[str, np.ndarray]:
    """What the float network would take in the same form."""
    found = {f"float/{name}": array.asnumpy() for name, array in {**graph.arguments, **graph.auxiliary}.items()}
    return {**found, "symbol": _bytes(graph.source)}


def file_size(arrays: Mapping[str, np.ndarray]) -> int:
    """Bytes of a file that holds ``arrays``."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getbuffer().nbytes


def _is_stored_as_codes(stored: Stored, op: Op) -> bool:
    return op.weight is not None and f"codes/{op.weight}/data" in stored


def _codes(stored: Stored, weight: str, scheme: OpScheme, graph: Graph) -> QuantizedArray:
    prefix = f"codes/{weight}/"
    fields = {name.removeprefix(prefix): array for name, array in stored.items() if name.startswith(prefix)}
    return PackedArray.from_arrays(fields, scheme.weight, graph.arguments[weight].shape).unpack()


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(zlib.compress(text.encode()), dtype=np.uint8)


def _text(array: np.ndarray) -> str:
    return zlib.decompress(array.tobytes()).decode()
