"""A quantized Keras model as an integer LiteRT file: which op of the file each layer became, and what it does there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import keras
from keras import tree

from neural_compressor.schemes import OpScheme, Plan, QParams
from neural_compressor.tensorflow.float_graph import QuantizedGraph
from neural_compressor.tensorflow.layers import QuantizeDequantize
from neural_compressor.tensorflow.layout import Layout, lay_out
from neural_compressor.tensorflow.litert.convert import keras_to_litert
from neural_compressor.tensorflow.litert.flatbuffer import MOVING, LiteGraph, LiteOp
from neural_compressor.tensorflow.litert.keras_weights import CHANGED, WeightPlace, stored_weights, weight_places
from neural_compressor.tensorflow.litert.quantizer import LiteScheme, activation_range, lite_scheme, quantize_file
from neural_compressor.tensorflow.litert.stored_weights import StoredWeight
from neural_compressor.tensorflow.structure.ops import (
    AVERAGE_POOLS,
    CONVOLUTIONS,
    DEPTHWISE,
    GLOBAL_AVERAGE_POOLS,
    MAX_POOLS,
    PRODUCTS,
    RECURRENT,
    TRANSPOSED,
    Graph,
    type_of,
)
from neural_compressor.tensorflow.structure.simplify import copy_of
from neural_compressor.tensorflow.structure.trace import functional_of, rebuild

_KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CONVOLUTIONS, ("CONV_2D", "CONV_3D")),
    **dict.fromkeys(DEPTHWISE, ("DEPTHWISE_CONV_2D", "CONV_2D")),
    **dict.fromkeys(TRANSPOSED, ("TRANSPOSE_CONV", "CONV_3D_TRANSPOSE")),
    **dict.fromkeys(("Dense", "EinsumDense"), ("FULLY_CONNECTED", "BATCH_MATMUL")),
    **dict.fromkeys(RECURRENT, ("FULLY_CONNECTED",)),
    **dict.fromkeys(PRODUCTS, ("BATCH_MATMUL",)),
    **dict.fromkeys(MAX_POOLS, ("MAX_POOL_2D", "REDUCE_MAX")),
    **dict.fromkeys(AVERAGE_POOLS, ("AVERAGE_POOL_2D",)),
    **dict.fromkeys(GLOBAL_AVERAGE_POOLS, ("MEAN",)),
    "Add": ("ADD",),
    "Concatenate": ("CONCATENATION",),
    "Embedding": ("GATHER", "EMBEDDING_LOOKUP"),
}
"""The ops of a file that a layer may become."""


@dataclass(frozen=True)
class LiteRTFile:
    """A file for LiteRT: its ``content``, the ops that run there as the plan says with their types in the file, and why
    others of the plan compute in float there."""

    content: bytes
    ops: Mapping[str, str]
    in_float: Mapping[str, str]


def to_litert(model: Any) -> LiteRTFile:
    """A quantized Keras model as a file. What LiteRT has no kernels for computes in float there, and is listed."""
    parts: QuantizedGraph = model.quantization
    graph, aliases = without_quantizers(model)
    lite = LiteGraph(keras_to_litert(_scoped(graph.model)))
    return _Writer(graph, lite, parts, aliases).write()


def float_litert(model: Any, batch_size: int | None = 1) -> bytes:
    """A Keras model, with its weights as they are, as a float file."""
    return keras_to_litert(without_quantizers(model)[0].model, batch_size)


class _Scope(keras.layers.Layer):
    """A call of an operation that is no layer, as one: so that tensors of the file have its name."""

    def __init__(self, operation: Any, args: Any, kwargs: Any) -> None:
        super().__init__(name=operation.name, trainable=False, autocast=False)
        self.supports_masking = True
        self._call = lambda tensors: operation.call(*_filled(args, tensors), **_filled(kwargs, tensors))

    def call(self, tensors: dict[str, Any]) -> Any:
        """What the operation gives for its symbolic arguments, by name."""
        return self._call(tensors)  # type: ignore[no-untyped-call]


def _filled(arguments: Any, tensors: Mapping[str, Any]) -> Any:
    return tree.map_structure(lambda each: tensors[each.name] if _is_symbolic(each) else each, arguments)


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor)


def _scoped(model: Any) -> Any:
    """The model with the operations that are no layers, and are called once, in layers of their names."""
    graph = Graph(model)

    def call(node: Any, args: Any, kwargs: Any) -> Any:
        op = node.operation
        if isinstance(op, keras.Layer) or len(graph.calls(op)) > 1:
            return op(*args, **kwargs)
        tensors = {each.name: each for each in tree.flatten((args, kwargs)) if _is_symbolic(each)}
        return _Scope(op, args, kwargs)(tensors)

    return rebuild(model, call)


def without_quantizers(model: Any) -> tuple[Graph, dict[str, str]]:
    """A copy of the graph of a model with what quantizes activations left out, and the names its layers had.

    TensorFlow numbers the scopes of layers that are called again: with names that end in a dot these numbers are told from
    those that are part of a name (``dense`` called again is ``dense_1``).
    """
    copies: dict[int, Any] = {}
    names: dict[str, str] = {}

    def call(node: Any, args: Any, kwargs: Any) -> Any:
        op = node.operation
        if isinstance(op, QuantizeDequantize):
            return args[0]
        if id(op) not in copies:
            alias = f"{op.name}.{len(copies)}."
            names[alias] = op.name
            copies[id(op)] = copy_of(op, alias)
        return copies[id(op)](*args, **kwargs)

    return Graph(rebuild(functional_of(model), call)), names


class _Writer:
    def __init__(self, graph: Graph, lite: LiteGraph, parts: QuantizedGraph, aliases: Mapping[str, str]) -> None:
        self.graph, self.lite, self.parts, self.aliases = graph, lite, parts, aliases
        self.plan: Plan = parts.plan
        for node in graph.nodes:  # the file is written: from here on layers have the names of the plan
            node.operation.name = aliases.get(node.operation.name, node.operation.name)
        self.layout: Layout = lay_out(graph, parts.plan)
        self.layers = {node.operation.name: node for node in graph.nodes}
        self.order = {name: place for place, name in enumerate(self.layers)}
        self.ranges: dict[int, tuple[float, float]] = {}

    def write(self) -> LiteRTFile:
        """Find what each op of the file does, and have it written."""
        found = dict(self._mapped())
        kinds_of = {name: _KINDS.get(kind, ()) for name, kind in self.plan}
        places = weight_places(self.lite, self._layers_of, self.parts.codes, kinds_of)
        schemes: dict[int, LiteScheme] = {}
        stored: list[StoredWeight] = []
        kinds: dict[str, str] = {}
        in_float: dict[str, str] = {}
        for key, scheme in self.plan.items():
            name = key[0]
            if scheme.is_float and scheme.precision == "fp32":
                continue
            if scheme.is_float or scheme.mode != "static":
                outcome = stored_weights(self.lite, scheme, places.get(name, []), self.parts.codes.get(name, {}))
                if isinstance(outcome, str):
                    in_float[name] = outcome
                else:
                    kinds[name], weights = outcome
                    stored += weights
                continue
            told = self._scheme(found.get(name), scheme, name, places)
            if isinstance(told, str):
                in_float[name] = told
            else:
                schemes[found[name].index], kinds[name] = told, found[name].kind
        schemes |= self._moving(schemes)
        scales = {op.index: _qparams(self.parts, name) for name, op in found.items() if name in self.parts.codes}
        static = {index: qparams for index, qparams in scales.items() if index in schemes}
        content = quantize_file(self.lite, schemes, self.ranges, static, stored)
        return LiteRTFile(content, kinds, in_float)

    def _scheme(
        self, op: LiteOp | None, scheme: OpScheme, name: str, places: Mapping[str, list[WeightPlace]]
    ) -> LiteScheme | str:
        if op is None:
            return "the converter made several ops, or none, of it"
        outcome = lite_scheme(op.kind, scheme)
        if isinstance(outcome, str):
            return outcome
        if scheme.weight is not None and name not in places:
            return CHANGED
        return outcome if self._assign(op, name) else "its inputs in the file are not those of the layer"

    def _mapped(self) -> Iterator[tuple[str, LiteOp]]:
        """Layers of the plan with the op of the file that each became."""
        taken: dict[str, list[LiteOp]] = {}
        for op in self.lite.ops:
            for name in self._layers_of(op):
                kind = type_of(self.layers[name].operation)
                if (name, kind) in self.plan and op.kind in _KINDS.get(kind, ()):
                    taken.setdefault(name, []).append(op)
        for name, ops in taken.items():
            if len(ops) == 1 and len(self.graph.calls(self.layers[name].operation)) == 1:
                yield name, ops[0]

    def _layers_of(self, op: LiteOp, graph: int = 0) -> list[str]:
        """The layers that the tensors of an op speak of."""
        texts = [self.lite.name(tensor, graph) for tensor in (*op.outputs, *op.constants)]
        named = [name for text in texts for name in self._names_in(text)]
        named += [name for t in op.outputs if graph == 0 for name in self._output_layers.get(t, ())]
        return list(dict.fromkeys(named))

    def _names_in(self, text: str) -> list[str]:
        """The layers that the name of a tensor speaks of: ``model/layer_1/Relu;model/other_1/BiasAdd``."""
        found = []
        for path in text.split(";"):
            parts = path.split("/")
            if len(parts) > 1:  # the model, then the layer, then what TensorFlow calls its parts
                alias = re.sub(r"_\d+$", "", parts[1])
                found += [self.aliases[alias]] if alias in self.aliases else []
        return found

    @cached_property
    def _output_layers(self) -> dict[int, list[str]]:
        """Of tensors that the file gives out, whose names say nothing, the layers that make them: the last, and the op
        that it is fused with."""
        found: dict[int, list[str]] = {}
        made = {id(t): node for node in self.graph.nodes for t in node.outputs}
        for keras_tensor, tensor in zip(self.graph.model.outputs, self.lite.outputs, strict=True):
            names = []
            node = made.get(id(keras_tensor))
            while node is not None:
                names.append(node.operation.name)
                before = made.get(id(node.input_tensors[0])) if len(node.input_tensors) == 1 else None
                fused = before is not None and self.graph.fused_end(before) is node and before is not node
                node = before if fused else None
            found[tensor] = names
        return found

    def _assign(self, op: LiteOp, name: str) -> bool:
        """Give the tensors that an op reads and gives the ranges that the quantizers of its layer have."""
        node = self.layers[name]
        sites = [site for t in node.input_tensors if (site := self.layout.before.get((id(node), id(t))))]
        inputs = [tensor for tensor in op.inputs if self.lite.is_float(tensor)]
        if len(set(sites)) == 1:
            pairs = [(tensor, sites[0]) for tensor in inputs]
        else:
            pairs = [(tensor, site) for tensor in inputs if (site := self._site_of(tensor, node)) is not None]
        end = self.graph.fused_end(node).outputs[0]
        behind = self.layout.behind.get(id(end))
        if not inputs or len(pairs) != len(inputs) or behind is None:
            return False
        pairs.append((op.outputs[0], behind))
        for tensor, site in ((tensor, self.layout.narrowest(each)) for tensor, each in pairs):
            self._spread(tensor, activation_range(self.parts.ranges[site.name], site.scheme))
        return True

    def _site_of(self, tensor: int, reader: Any) -> Any:
        """The quantizer of one of several inputs of ``reader``, known by the layer that makes it."""
        while (op := self.lite.producers.get(tensor)) is not None and op.kind in MOVING and op.inputs:
            tensor = op.inputs[0]
        sites = {id(t): self.layout.before.get((id(reader), id(t))) for t in reader.input_tensors}
        if tensor in self.lite.inputs:
            sources = [self.graph.model.inputs[self._input_order().index(tensor)]]
        else:
            named = sorted(self._names_in(self.lite.names[tensor]), key=lambda name: self.order[name], reverse=True)
            sources = [self.layers[name].outputs[0] for name in named]
        found = (sites.get(id(made)) for source in sources for made in self._onward(source))
        return next((site for site in found if site is not None), None)

    def _onward(self, tensor: Any) -> Iterator[Any]:
        """A tensor of Keras and those that hold the same values, moved."""
        from neural_compressor.tensorflow.structure.ops import MOVING as KERAS_MOVING

        yield tensor
        for node in self.graph.consumers(tensor):
            if type_of(node.operation) in KERAS_MOVING:
                yield from self._onward(node.outputs[0])

    def _input_order(self) -> list[int]:
        """The inputs of the file in the order of those of the model, known by their names."""
        found = {name: tensor for tensor in self.lite.inputs for name in [self.lite.names[tensor]]}
        order: list[int] = []
        for keras_tensor in self.graph.model.inputs:
            near = [
                t for text, t in found.items() if re.search(rf"(^|_|/){re.escape(keras_tensor.name)}(:\d+)?$", text)
            ]
            order.append(near[0] if near else self.lite.inputs[len(order)])
        return order

    def _spread(self, tensor: int, pair: tuple[float, float]) -> None:
        """A tensor's range is that of what was only moved to become it."""
        self.ranges.setdefault(tensor, pair)
        op = self.lite.producers.get(tensor)
        if op is not None and op.kind in MOVING and op.inputs and op.inputs[0] not in self.ranges:
            self._spread(op.inputs[0], pair)

    def _moving(self, schemes: Mapping[int, LiteScheme]) -> dict[int, LiteScheme]:
        """Ops that only move values between integer ops do so in integers."""
        static = next((each for each in schemes.values() if each.static), None)
        if static is None:
            return {}
        found: dict[int, LiteScheme] = {}
        integer = {
            op.outputs[0]: schemes[op.index] for op in self.lite.ops if op.index in schemes and schemes[op.index].static
        }
        if len({each.config.activation_tensor_config.num_bits for each in integer.values()}) == 1:
            # What is moved before the first op is quantized first, and moved as integers.
            integer |= {tensor: static for tensor in self.lite.inputs if tensor in self.ranges}
        for op in self.lite.ops:
            if op.kind not in MOVING or op.index in schemes or not op.inputs or not self.lite.is_float(op.outputs[0]):
                continue
            source = integer.get(op.inputs[0])
            if source is None or op.inputs[0] not in self.ranges:
                continue
            activation = source.config.activation_tensor_config
            told = lite_scheme(op.kind, _moved(activation.num_bits))
            if not isinstance(told, str):
                found[op.index] = told
                integer[op.outputs[0]] = told
                for tensor in op.outputs:
                    self.ranges.setdefault(tensor, self.ranges[op.inputs[0]])
        return found


def _moved(bits: int) -> OpScheme:
    return OpScheme.from_dict({"activation": {"dtype": f"int{bits}", "scheme": "sym" if bits == 16 else "asym",
                                              "quant_mode": "static"}})  # fmt: skip


def _qparams(parts: QuantizedGraph, name: str) -> QParams:
    found: QParams = next(iter(parts.codes[name].values())).array.qparams  # type: ignore[union-attr]
    return found
