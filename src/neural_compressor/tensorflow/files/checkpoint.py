"""A quantized Keras model in a folder: its plan and ranges as JSON, its arrays, weights packed to their bits.

The float model it was made from brings the structure; nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from neural_compressor.algorithms import LayerResult
from neural_compressor.errors import FormatError, NeuralCompressorError
from neural_compressor.paths import output_folder, write_errors
from neural_compressor.schemes import PackedArray, Plan, QuantizedArray
from neural_compressor.tensorflow.float_graph import QuantizedGraph
from neural_compressor.tensorflow.keras_graph import KerasGraph
from neural_compressor.tensorflow.layers import qparams_from, qparams_to
from neural_compressor.tensorflow.layout import lay_out
from neural_compressor.tensorflow.structure.ops import weights_of
from neural_compressor.tensorflow.structure.scales import scales_in

ARRAYS, PLAN, LITERT = "weights.npz", "quantization.json", "model.tflite"


def save_model(model: Any, folder: Path, litert: bytes | None = None) -> None:
    """Write a quantized model into ``folder``, with its file for LiteRT: each file is the old or the new one, never half."""
    folder = output_folder(folder)
    parts = _parts(model)
    about = {
        "plan": json.loads(parts.plan.to_json()),
        "ranges": {name: qparams_to(qparams) for name, qparams in parts.ranges.items()},
        "input_scales": scales_in(model),
    }
    arrays = stored_arrays(model)
    with write_errors(folder, sum(array.nbytes for array in arrays.values())):
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{ARRAYS}.{os.getpid()}"
        try:
            with unfinished.open("wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            unfinished.replace(folder / ARRAYS)
            unfinished.write_text(json.dumps(about), encoding="utf-8")
            unfinished.replace(folder / PLAN)
            (folder / LITERT).unlink(missing_ok=True)
            if litert is not None:
                unfinished.write_bytes(litert)
                unfinished.replace(folder / LITERT)
        finally:
            unfinished.unlink(missing_ok=True)


def load_model(folder: Path, graph: KerasGraph) -> Any:
    """Read what :func:`save_model` wrote of a model made from that of ``graph``."""
    try:
        about = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        with np.load(folder / ARRAYS, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        plan = Plan.from_json(json.dumps(about["plan"]))
        graph = graph.with_scales({name: np.asarray(each, np.float32) for name, each in about["input_scales"].items()})
        ranges = {name: qparams_from(each) for name, each in about["ranges"].items()}
        codes = {name: _codes(name, op, plan.get((name, kind)), arrays) for (name, kind), op in graph.ops().items()}
        codes = {name: each for name, each in codes.items() if each}
        shared = lay_out(graph, plan).shared
        model = graph.finish(QuantizedGraph(plan, codes, ranges, graph=graph, shared=shared))
        _restore(model, arrays)
    except NeuralCompressorError:
        raise
    except (OSError, KeyError, ValueError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise FormatError(f"{folder} holds no model saved from a Keras model like this one: {error}") from error
    return model


def stored_arrays(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Everything of a model that goes to disk, by name: weights, packed where they are quantized."""
    codes = getattr(getattr(model, "quantization", None), "codes", {})
    found: dict[str, np.ndarray[Any, Any]] = {}
    packed = set()
    for layer in model.layers:
        for tensor, array in codes.get(layer.name, {}).items():
            packed.add(id(weights_of(layer)[tensor].variable))
            for part, values in _arrays(array).items():
                found[f"{layer.name}/{tensor}/{part}"] = np.asarray(values)
    for layer in model.layers:
        for number, variable in enumerate(layer.weights):
            if id(variable) not in packed:
                found[f"{layer.name}/{number}"] = np.asarray(variable.numpy())
    return found


def _arrays(result: LayerResult) -> dict[str, Any]:
    """The arrays of a quantized weight: packed codes, scales, and what inputs are divided by."""
    assert isinstance(result.array, QuantizedArray)
    beside = {} if result.input_scale is None else {"input_scale": result.input_scale}
    return {**result.array.pack().arrays(), **beside}


def _parts(model: Any) -> QuantizedGraph:
    parts = getattr(model, "quantization", None)
    if not isinstance(parts, QuantizedGraph):
        raise FormatError(
            f"the model {model.name!r} is not one that was quantized here; save it with model.save('model.keras')"
        )
    return parts


def _codes(name: str, op: Any, scheme: Any, arrays: dict[str, Any]) -> dict[str, LayerResult]:
    found: dict[str, LayerResult] = {}
    for tensor, view in weights_of(op).items() if scheme is not None and scheme.weight is not None else ():
        prefix = f"{name}/{tensor}/"
        parts = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        if parts:
            factors = parts.pop("input_scale", None)
            array = PackedArray.from_arrays(parts, scheme.weight, view.shape).unpack()
            found[tensor] = LayerResult(array, input_scale=factors)
    return found


def _restore(model: Any, arrays: dict[str, Any]) -> None:
    """Put the weights that are not quantized into the layers; correction may have changed them."""
    for layer in model.layers:
        for number, variable in enumerate(layer.weights):
            name = f"{layer.name}/{number}"
            if name in arrays:
                variable.assign(arrays[name])
