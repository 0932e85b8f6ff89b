"""The executor of LiteRT models: a float file quantized by one plan after another.

It serves SavedModels and any graph that has no Keras layers: ops are those of the converted file, ranges come from runs of
the float file, and the result is the integer file itself, so that nothing is simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from neural_compressor.adaptor.capability import check_no_method, check_weight_range
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.observers import Observer, make_observer
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, OpScheme, Plan, QParams, TensorScheme, choose_qparams, quantize
from neural_compressor.tensorflow.litert.flatbuffer import MOVING, LiteGraph, LiteOp
from neural_compressor.tensorflow.litert.model import LiteModel, as_array
from neural_compressor.tensorflow.litert.quantizer import LiteScheme, activation_range, lite_scheme, quantize_file
from neural_compressor.tensorflow.litert.runner import batches_of, interpreter_for

TYPES = {
    "CONV_2D": "Conv2D",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2dNative",
    "TRANSPOSE_CONV": "Conv2DBackpropInput",
    "FULLY_CONNECTED": "MatMul",
    "BATCH_MATMUL": "BatchMatMulV2",
    "ADD": "AddV2",
    "MUL": "Mul",
    "SUB": "Sub",
    "CONCATENATION": "ConcatV2",
    "MAX_POOL_2D": "MaxPool",
    "AVERAGE_POOL_2D": "AvgPool",
    "MEAN": "Mean",
}
"""Ops of a file by TensorFlow's names, which rules and the framework YAML use."""
WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED")
_ONE_SCALE = ("CONCATENATION", "AVERAGE_POOL_2D", *MOVING)
_PARTS = ("QUANTIZE", "DEQUANTIZE", "CAST", "SHAPE", "FILL", *MOVING)


def ops_of(graph: LiteGraph) -> dict[OpKey, LiteOp]:
    """The ops that can be quantized, by a name that no other has and their type."""
    found: dict[OpKey, LiteOp] = {}
    for name, op in _named(graph):
        if op.kind in TYPES and reason_for_float(graph, op) is None:
            found[name, TYPES[op.kind]] = op
    return found


def skipped_ops(graph: LiteGraph) -> dict[OpKey, str]:
    """Why other ops cannot be quantized; those that only move values are left out."""
    found: dict[OpKey, str] = {}
    for name, op in _named(graph):
        why = reason_for_float(graph, op)
        if why is not None and op.kind not in _PARTS:
            found[name, TYPES.get(op.kind, op.kind)] = why
    return found


def reason_for_float(graph: LiteGraph, op: LiteOp) -> str | None:
    """Why an op cannot be quantized; None where it can."""
    if op.kind not in TYPES:
        return f"LiteRT's {op.kind} is not quantized here"
    if any(not graph.is_float(tensor) for tensor in (*op.inputs, *op.outputs)):
        if op.kind == "TRANSPOSE_CONV" and graph.is_float(op.outputs[0]):
            return "the shape of its output is computed"
        return "it does not compute in float32"
    if op.kind in WEIGHTED and graph.weight(op) is None:
        return "its weight is computed, and no constant"
    if op.kind not in WEIGHTED and any(graph.is_float(tensor) for tensor in op.constants):
        return "one of its operands is a constant"
    return None


def _named(graph: LiteGraph) -> Iterable[tuple[str, LiteOp]]:
    taken: set[str] = set()
    for op in graph.ops:
        name = graph.names[op.outputs[0]].split(";")[0] if op.outputs else op.kind
        while name in taken:
            name = f"{name}'"
        taken.add(name)
        yield name, op


@dataclass
class LiteExecutor:
    """Runs plans on a float LiteRT model, which is left as it is."""

    model: LiteModel
    _seen: dict[Any, dict[Any, Observer]] = field(default_factory=dict, init=False)
    _sources: dict[int, object] = field(default_factory=dict, init=False)  # while they are there no other has their id

    def __post_init__(self) -> None:
        self.graph = self.model.graph
        self.ops = ops_of(self.graph)

    def check(self, plan: Plan) -> dict[int, LiteScheme]:
        """What the ops of the file do for ``plan``; what cannot be run is an error before any work."""
        found: dict[int, LiteScheme] = {}
        for key, scheme in plan.items():
            if key not in self.ops:
                if scheme.is_float and scheme.precision == "fp32" and key in skipped_ops(self.graph):
                    continue
                names = [name for name, kind in self.ops if kind == key[1]] or [name for name, _ in self.ops]
                raise ConfigError(
                    f"the plan names {key[0]!r} ({key[1]}), which the model does not have; {close_matches(key[0], names)}"
                )
            check_weight_range(scheme)
            check_no_method(key, scheme)
            if scheme.is_float and scheme.precision == "fp32":
                continue
            told = lite_scheme(self.ops[key].kind, scheme)
            if isinstance(told, str):
                raise ConfigError(f"op {key[0]!r}: {told}")
            found[self.ops[key].index] = told
        for step in plan.passes:
            raise ConfigError(f"no pass over LiteRT models is called {step.name!r}")
        return found

    def run(self, plan: Plan, data: Iterable[Any] | None = None, source: object = None) -> LiteModel:
        """The model quantized as ``plan`` says; ``data`` are the inputs of batches."""
        schemes = self.check(plan)
        ranges = self._ranges(plan, schemes, data, source)
        weights: dict[int, QParams] = {}
        for key, scheme in plan.items():
            op = self.ops.get(key)
            if op is not None and op.index in schemes and scheme.weight is not None and scheme.weight.dtype.is_integer:
                weights[op.index] = quantize(_matrix(self.graph, op), scheme.weight).qparams
        content = quantize_file(self.graph, schemes, ranges, weights)
        return LiteModel(content, self.model.name, self.model.outputs, plan)

    def _ranges(
        self, plan: Plan, schemes: dict[int, LiteScheme], data: Iterable[Any] | None, source: object
    ) -> dict[int, tuple[float, float]]:
        static = {self.ops[key].index: s.activation for key, s in plan.items() if s.mode == "static" and s.activation}
        if not static:
            return {}
        groups = _groups(self.graph, static)
        wanted: dict[int, TensorScheme] = {}
        for index, scheme in static.items():
            op = self.graph.ops[index]
            for tensor in (*op.inputs, *op.outputs):
                wanted.setdefault(groups.get(tensor, tensor), scheme)
        members: dict[int, list[int]] = {}
        for tensor in range(len(self.graph.names)):
            group = groups.get(tensor, tensor)
            op_of = self.graph.producers.get(tensor)
            if group in wanted and not (op_of is not None and op_of.kind in _ONE_SCALE and tensor in groups):
                members.setdefault(group, []).append(tensor)
        self._sources[id(source)] = source
        seen = self._seen.setdefault((id(source), plan.calib_sampling_size), {})
        keys = {group: (group, scheme, tuple(members[group])) for group, scheme in wanted.items()}
        fresh = {group: make_observer(wanted[group]) for group in wanted if keys[group] not in seen}
        if fresh:
            if data is None:
                raise CalibrationError("static quantization takes ranges from data: give a calibration data loader")
            self._observe({tensor: fresh[group] for group in fresh for tensor in members[group]}, data)
            seen |= {keys[group]: observer for group, observer in fresh.items()}
        pairs = {}
        for group, scheme in wanted.items():
            qparams = choose_qparams(*seen[keys[group]].range(scheme), scheme)
            pairs[group] = activation_range(qparams, scheme)
        tensors = [t for t in range(len(self.graph.names)) if groups.get(t, t) in wanted and self.graph.is_float(t)]
        ranges = {tensor: pairs[groups.get(tensor, tensor)] for tensor in tensors}
        self._add_moving(schemes, ranges, static)
        return ranges

    def _add_moving(self, schemes: dict[int, LiteScheme], ranges: Mapping[int, Any], static: Mapping[int, Any]) -> None:
        """What only moves integers does so in integers."""
        integer = {self.graph.ops[index].outputs[0]: scheme for index, scheme in static.items()}
        for op in self.graph.ops:
            if op.kind in MOVING and op.index not in schemes and op.inputs and op.inputs[0] in integer:
                told = lite_scheme(op.kind, OpScheme(None, integer[op.inputs[0]], "static"))
                if not isinstance(told, str) and all(tensor in ranges for tensor in op.outputs):
                    schemes[op.index] = told
                    integer[op.outputs[0]] = integer[op.inputs[0]]

    def _observe(self, observers: Mapping[int, Observer], data: Iterable[Any]) -> None:
        interpreter: Interpreter = interpreter_for(self.model.content, keep_tensors=True)
        for sample in batches_of(interpreter, self.model.runner.inputs, data):
            interpreter.invoke()
            for tensor, observer in observers.items():
                observer.update(interpreter.get_tensor(tensor).astype(np.float32, copy=False))
            del sample


def _groups(graph: LiteGraph, static: Mapping[int, Any]) -> dict[int, int]:
    """The first of the tensors that share a scale with each: those moved, and those that kernels want alike."""
    parent: dict[int, int] = {}

    def root(tensor: int) -> int:
        while tensor in parent:
            tensor = parent[tensor]
        return tensor

    for op in graph.ops:
        joins = op.kind in MOVING or (op.kind in _ONE_SCALE and op.index in static)
        for given in op.inputs if joins else ():
            for made in op.outputs:
                if graph.is_float(given) and graph.is_float(made) and root(given) != root(made):
                    parent[root(made)] = root(given)
    return {tensor: root(tensor) for tensor in range(len(graph.names)) if root(tensor) != tensor}


def _matrix(graph: LiteGraph, op: LiteOp) -> np.ndarray[Any, Any]:
    """The weight of an op, one row an output."""
    tensor = graph.weight(op)
    assert tensor is not None
    array = graph.constant(tensor)
    assert array is not None
    if op.kind == "DEPTHWISE_CONV_2D":
        array = np.moveaxis(array, -1, 0)
    return np.ascontiguousarray(array.reshape(array.shape[0], -1))


def feeds_of(batches: Iterable[Any], samples: int) -> Iterable[Any]:
    """The inputs of as many batches as hold ``samples`` samples, labels left out."""
    seen = 0
    for batch in batches:
        inputs = batch[0] if isinstance(batch, (tuple, list)) and len(batch) in (2, 3) else batch
        yield inputs
        first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
        first = first[0] if isinstance(first, (list, tuple)) else first
        seen += len(as_array(first)) if as_array(first).ndim else 1
        if seen >= samples:
            break
    if seen == 0:
        raise CalibrationError(
            "the calibration data gave no sample; give a loader of batches that can be gone over again"
        )
