"""A float LiteRT file as the executor sees it: its ops and tensors, observed, scaled, and quantized.

It serves SavedModels and any graph that has no Keras layers: ops are those of the converted file, ranges come from runs of
the float file, and the result is the integer file itself, so that nothing is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, OpScheme, QParams, QuantizedArray
from neural_compressor.tensorflow.float_graph import Array, Calibrate, Call, FloatGraph, QuantizedGraph, Watchers
from neural_compressor.tensorflow.layout import Layout, lay_out
from neural_compressor.tensorflow.litert.file_scales import makers_chain, with_multiplications
from neural_compressor.tensorflow.litert.flatbuffer import MOVING, LiteGraph, LiteOp
from neural_compressor.tensorflow.litert.model import LiteModel, ObservedModel
from neural_compressor.tensorflow.litert.quantizer import LiteScheme, activation_range, lite_scheme, quantize_file
from neural_compressor.tensorflow.litert.stored_weights import StoredWeight, layouts
from neural_compressor.tensorflow.statistics import patch_vectors, row_vectors

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
_MIXING = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
_ONE_SCALE = ("CONCATENATION", "AVERAGE_POOL_2D")
_PARTS = ("QUANTIZE", "DEQUANTIZE", "CAST", "SHAPE", "FILL", *MOVING)


@dataclass(frozen=True)
class FileWeight:
    """A weight in a file as the matrix that the core quantizes; outputs are its first axis, or its last."""

    lite: LiteGraph
    op: LiteOp
    tensor: int

    @property
    def _depthwise(self) -> bool:
        return self.op.kind == "DEPTHWISE_CONV_2D"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        shape = self.lite.shape(self.tensor)
        rows = shape[-1] if self._depthwise else shape[0]
        return rows, int(np.prod(shape)) // rows

    def matrix(self) -> Array:
        """The weight, one row an output."""
        array = self.lite.read(self.tensor)
        array = np.moveaxis(array, -1, 0) if self._depthwise else array
        return np.ascontiguousarray(array.reshape(self.shape))

    def assign(self, matrix: Array) -> None:
        """Put ``matrix`` into the file."""
        shape = self.lite.shape(self.tensor)
        if self._depthwise:
            self.lite.set_constant(self.tensor, np.moveaxis(matrix.reshape(shape[-1], *shape[:-1]), 0, -1))
        else:
            self.lite.set_constant(self.tensor, matrix.reshape(shape))


class FileGraph(FloatGraph):
    """The main graph of a float LiteRT model."""

    kind = "LiteRT files"
    scalable = tuple(TYPES[kind] for kind in _MIXING)
    smoothed = ("MatMul", "Conv2D")

    def __init__(self, model: LiteModel, lite: LiteGraph | None = None) -> None:
        self.model = model
        self.lite = lite if lite is not None else LiteGraph(model.content)
        self.lite.separate_vectors()

    @cached_property
    def named(self) -> dict[str, LiteOp]:
        """Every op, by a name that no other has."""
        found: dict[str, LiteOp] = {}
        for op in self.lite.ops:
            name = self.lite.names[op.outputs[0]].split(";")[0] if op.outputs else op.kind
            while name in found:
                name = f"{name}'"
            found[name] = op
        return found

    @cached_property
    def _names(self) -> dict[int, str]:
        return {op.index: name for name, op in self.named.items()}

    @cached_property
    def _readers(self) -> dict[int, list[LiteOp]]:
        """The ops that read each tensor, constants too."""
        found: dict[int, list[LiteOp]] = {}
        for op in self.lite.ops:
            for tensor in {*op.inputs, *op.constants}:
                found.setdefault(tensor, []).append(op)
        return found

    def ops(self) -> dict[OpKey, LiteOp]:
        """By the names of the tensors that they make, and TensorFlow's types."""
        return {
            (name, TYPES[op.kind]): op
            for name, op in self.named.items()
            if op.kind in TYPES and self._reason_for_float(op) is None
        }

    def skipped(self) -> dict[OpKey, str]:
        """Those that only move values are left out."""
        found: dict[OpKey, str] = {}
        for name, op in self.named.items():
            why = self._reason_for_float(op)
            if why is not None and op.kind not in _PARTS:
                found[name, TYPES.get(op.kind, op.kind)] = why
        return found

    def _reason_for_float(self, op: LiteOp) -> str | None:
        if op.kind not in TYPES:
            return f"LiteRT's {op.kind} is not quantized here"
        if any(not self.lite.is_float(tensor) for tensor in (*op.inputs, *op.outputs)):
            if op.kind == "TRANSPOSE_CONV" and self.lite.is_float(op.outputs[0]):
                return "the shape of its output is computed"
            return "it does not compute in float32"
        if op.kind in WEIGHTED and self.lite.weight(op) is None:
            return "its weight is computed, and no constant"
        if op.kind not in WEIGHTED and any(self.lite.is_float(tensor) for tensor in op.constants):
            return "one of its operands is a constant"
        return None

    def refusal(self, op: LiteOp, scheme: OpScheme) -> str:
        """What LiteRT has no kernel for; nothing is simulated in a file."""
        if scheme.is_float and scheme.precision == "fp32":
            return ""
        found = lite_scheme(op.kind, scheme)
        if isinstance(found, str):
            return found
        method = scheme.method.name if scheme.method is not None else "rtn"
        if method != "rtn" and not self._is_own(op):
            return f"its weight is that of other ops too, and {method} finds one for this alone; use rtn"
        if method == "awq" and op.kind != "FULLY_CONNECTED":
            return "awq scales each value of the patches of a convolution, which no op of a file does; use gptq"
        return ""

    def weights(self, op: LiteOp) -> Mapping[str, FileWeight]:
        """The constant that an op multiplies with."""
        tensor = self.lite.weight(op) if op.kind in WEIGHTED else None
        return {} if tensor is None else {"weight": FileWeight(self.lite, op, tensor)}

    def bias(self, op: LiteOp) -> Array | None:
        """Constants of ops that compute without one are zeros."""
        tensor = self._bias(op)
        return None if tensor is None else self.lite.constant(tensor)

    def _bias(self, op: LiteOp) -> int | None:
        vectors = [t for t in op.constants if self.lite.is_float(t) and len(self.lite.shape(t)) == 1]
        return vectors[0] if op.kind in WEIGHTED and vectors else None

    def _is_own(self, op: LiteOp) -> bool:
        """Whether no other op reads the weight of ``op``."""
        return all(len(self._readers[weight.tensor]) == 1 for weight in self.weights(op).values())

    def channels_mixed(self, op: LiteOp) -> int:
        """Channels of each group of a convolution."""
        if op.kind not in _MIXING:
            return 0
        (weight,) = self.weights(op).values()
        return 1 if op.kind == "DEPTHWISE_CONV_2D" else self.lite.shape(weight.tensor)[-1]

    def vectors(self, op: LiteOp) -> Callable[[Array], Array] | str:
        """Patches of images, for a convolution."""
        if op.kind == "FULLY_CONNECTED":
            return row_vectors
        if op.kind != "CONV_2D":
            return f"the inputs of a {TYPES[op.kind]} are no vectors of its matrix"
        (weight,) = self.weights(op).values()
        _, height, width, channels = self.lite.shape(weight.tensor)
        if self.lite.shape(op.inputs[0])[-1] != channels:
            return "it is grouped"
        how = self.lite.options(op)
        strides, rates = (how.strideH, how.strideW), (how.dilationHFactor, how.dilationWFactor)
        padding = "VALID" if how.padding else "SAME"
        return partial(patch_vectors, sizes=(height, width), strides=strides, rates=rates, padding=padding)

    def sequence(self) -> list[Call]:
        """The ops of the file, each called once."""
        return [call for op in self.lite.ops if op.outputs for call in self.calls_of(op)]

    def calls_of(self, op: LiteOp) -> list[Call]:
        """One."""
        inputs = tuple(tensor for tensor in op.inputs if self.lite.is_float(tensor))
        kinds = (op.kind in MOVING, op.kind in _ONE_SCALE)
        return [Call(op.index, self._names[op.index], inputs, op.outputs, op.outputs[0], *kinds)]

    def tensor_names(self) -> dict[int, str]:
        """Those of the file, with what makes them unique; constants have no ranges to share."""
        every = range(len(self.lite.names))
        return {t: self.lite.unique_name(t) for t in every if self.lite.is_float(t) and self.lite.constant(t) is None}

    def watch(self, tensors: Iterable[int]) -> Callable[[Watchers, Calibrate], None]:
        """LiteRT's interpreter keeps every tensor."""

        def run(watchers: Watchers, calibrate: Calibrate) -> None:
            given = self.model
            calibrate(ObservedModel(self.lite.written(), given.name, given.outputs, given.inputs, watchers=watchers))

        return run

    def copy(self) -> FileGraph:
        """The file read again."""
        return FileGraph(self.model, LiteGraph(self.lite.written()))

    def takes_scales(self, op: LiteOp) -> bool:
        """What has a weight of its own, and is not grouped."""
        whole = op.kind == "DEPTHWISE_CONV_2D" or self.channels_mixed(op) == self.lite.shape(op.inputs[0])[-1]
        multiplied = op.kind == "DEPTHWISE_CONV_2D" and self.lite.options(op).depthMultiplier != 1
        return op.kind in _MIXING and whole and not multiplied and self._is_own(op)

    def input_reach(self, op: LiteOp) -> Array:
        """Of the weight of an op."""
        (weight,) = self.weights(op).values()
        array = self.lite.read(weight.tensor)
        return np.asarray(np.abs(array).reshape(-1, array.shape[-1]).max(0), np.float32)

    def output_reach(self, op: LiteOp) -> Array | None:
        """Of the weight of an op."""
        (weight,) = self.weights(op).values()
        return np.asarray(np.abs(weight.matrix()).max(1), np.float32)

    def scale_inputs(self, op: LiteOp, factors: Array) -> None:
        """Weights of a file have the input channels last."""
        (weight,) = self.weights(op).values()
        self.lite.set_constant(weight.tensor, self.lite.read(weight.tensor) * np.asarray(factors, np.float32))

    def scale_outputs(self, op: LiteOp, factors: Array) -> None:
        """In weight and bias."""
        (weight,) = self.weights(op).values()
        weight.assign(weight.matrix() * np.asarray(factors, np.float32)[:, None])
        if (tensor := self._bias(op)) is not None:
            self.lite.set_constant(tensor, self.lite.read(tensor) * np.asarray(factors, np.float32))

    def maker_of(self, tensor: int) -> LiteOp | None:
        """An op with a weight of its own."""
        op = makers_chain(self.lite, tensor, lambda each: len(self._readers.get(each, ())) == 1)
        return op if op is not None and op.kind in _MIXING and self.weights(op) and self._is_own(op) else None

    def with_scales(self, scales: Mapping[str, Array]) -> FileGraph:
        """With a MUL before each of these."""
        if not scales:
            return self
        content = with_multiplications(self.lite, {self.named[name].index: each for name, each in scales.items()})
        return FileGraph(self.model, LiteGraph(content))

    def finish(self, parts: QuantizedGraph) -> LiteModel:
        """The integer file: weights that a method found, and corrected biases, go into a copy of the float one first."""
        scaled = {name: r.input_scale for name, found in parts.codes.items() for r in found.values()}
        graph = self.with_scales({name: 1 / np.asarray(s) for name, s in scaled.items() if s is not None}).copy()
        schemes: dict[int, LiteScheme] = {}
        weights: dict[int, QParams] = {}
        stored: list[StoredWeight] = []
        for key, op in graph.ops().items():
            scheme = parts.plan.get(key)
            if scheme is None or (scheme.is_float and scheme.precision == "fp32"):
                continue
            told = lite_scheme(op.kind, scheme)
            assert not isinstance(told, str)  # the plan was checked
            schemes[op.index] = told
            for result in parts.codes.get(key[0], {}).values():
                assert isinstance(result.array, QuantizedArray)
                if not told.static:
                    array = None if scheme.is_float else result.array
                    stored.append(graph._stored(op, array, told.integer))
                    continue
                weights[op.index] = result.array.qparams
            if key[0] in parts.biases:
                tensor = graph._bias(op)
                assert tensor is not None
                graph.lite.set_constant(tensor, parts.biases[key[0]])
        layout = lay_out(graph, parts.plan)
        narrow = {tensor: layout.narrowest(sites[0]) for tensor, sites in layout.members.items()}
        ranges = {tensor: activation_range(parts.ranges[s.name], s.scheme) for tensor, s in narrow.items()}
        graph._add_moving(schemes, ranges, layout)
        content = quantize_file(graph.lite, schemes, ranges, weights, stored)
        return LiteModel(content, self.model.name, self.model.outputs, self.model.inputs, parts.plan, parts)

    def _stored(self, op: LiteOp, array: QuantizedArray | None, integer: bool) -> StoredWeight:
        (weight,) = self.weights(op).values()
        (order,) = layouts(op.kind, len(self.lite.shape(weight.tensor)))
        names = [self.lite.unique_name(tensor) for tensor in (weight.tensor, op.outputs[0])]
        return StoredWeight(names[0], 0, order, array, integer, reader=names[1])

    def _add_moving(self, schemes: dict[int, LiteScheme], ranges: Mapping[int, Any], layout: Layout) -> None:
        """What only moves integers does so in integers."""
        integer = {tensor: site.scheme for tensor, site in layout.behind.items()}
        for op in self.lite.ops:
            if op.kind in MOVING and op.index not in schemes and op.inputs and op.inputs[0] in integer:
                told = lite_scheme(op.kind, OpScheme(None, integer[op.inputs[0]], "static"))
                if not isinstance(told, str) and all(tensor in ranges for tensor in op.outputs):
                    schemes[op.index] = told
                    integer[op.outputs[0]] = integer[op.inputs[0]]

    def arrays(self, name: str) -> dict[str, Array]:
        """The weight, the bias and other constants of floats that an op has."""
        return {tensor: self.lite.read(place) for tensor, place in self._constants(self.named[name]).items()}

    def _constants(self, op: LiteOp) -> dict[str, int]:
        given = [t for t in op.constants if self.lite.is_float(t) or self.lite.has_scale(t)]
        if op.kind not in WEIGHTED:
            return {f"constant{number}": tensor for number, tensor in enumerate(given)}
        weight = next((tensor for tensor in given if len(self.lite.shape(tensor)) > 1), None)
        return {"weight" if tensor == weight else "bias": tensor for tensor in given}

    def with_arrays(self, arrays: Mapping[str, Array]) -> LiteModel:
        """A float LiteRT model."""
        graph = self.copy()
        known = {
            f"{name}.{tensor}": place
            for name, op in self.named.items()
            for tensor, place in self._constants(op).items()
        }
        for name, array in arrays.items():
            if name not in known:
                raise ConfigError(f"the model has no tensor {name!r}; {close_matches(str(name), known)}")
            if not self.lite.is_float(known[name]):
                raise ConfigError(
                    f"tensor {name!r} is quantized in this file; set it in the float model, and quantize that"
                )
            if array.shape != self.lite.shape(known[name]):
                raise ConfigError(f"tensor {name!r} has the shape {self.lite.shape(known[name])}, not {array.shape}")
            graph.lite.set_constant(known[name], array)
        given = self.model
        return LiteModel(graph.lite.written(), given.name, given.outputs, given.inputs)
