"""The graph of a Gluon network: traced, fused as oneDNN runs it, and what quantization has to know of its nodes."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError
from mxnet.gluon import HybridBlock, SymbolBlock
from mxnet.gluon.parameter import DeferredInitializationError

from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpKey

Arrays = dict[str, mx.nd.NDArray]

#: The fusions MXNet does before it quantizes: batch normalisation, activations and sums become part of a convolution.
FUSION = "MKLDNN_QUANTIZE"
#: Ops whose int8 form passes codes on with the range they came with.
PASSING_ON = ("Pooling", "Flatten")
#: Ops whose output has no negative values where their inputs have none.
_KEEPS_SIGN = (*PASSING_ON, "Concat", "Dropout", "Reshape", "transpose", "identity", "_copy", "slice", "slice_axis")


@dataclass(frozen=True)
class Node:
    """A node of the fused graph: its data inputs as (node, output number), and the nodes that were fused into it."""

    name: str
    op: str
    inputs: tuple[tuple[str, int], ...]
    attributes: Mapping[str, str]
    parts: tuple[Mapping[str, Any], ...] = ()

    @property
    def ends_in_relu(self) -> bool:
        """Whether the last thing it does is to set negative values to zero."""
        op, attributes = self.op, self.attributes
        if self.parts:
            op, attributes = self.parts[-1]["op"], self.parts[-1].get("attrs", {})
        if op == "clip":
            return float(attributes.get("a_min", "-1")) >= 0
        return op == "relu" or (op == "Activation" and attributes.get("act_type") == "relu")


@dataclass(frozen=True)
class Op:
    """An op as plans name it: by the layer that it is, not by the node it was fused into."""

    name: str
    op_type: str
    node: str
    weight: str | None = None

    @property
    def key(self) -> OpKey:
        return self.name, self.op_type


@dataclass(frozen=True)
class Graph:
    """A network as a fused symbol with its parameters."""

    symbol: mx.sym.Symbol
    inputs: tuple[str, ...]
    arguments: Arrays
    auxiliary: Arrays
    source: str

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """The nodes that compute something, in the order they run."""
        rows = json.loads(self.symbol.tojson())["nodes"]
        parameters = {*self.arguments, *self.auxiliary}
        found = {}
        for row in rows:
            if row["op"] != "null":
                inputs = [(rows[i]["name"], number) for i, number, *_ in row["inputs"]]
                data = tuple(each for each in inputs if each[0] not in parameters)
                parts = tuple(part for g in row.get("subgraphs", ()) for part in g["nodes"] if part["op"] != "null")
                found[row["name"]] = Node(row["name"], row["op"], data, row.get("attrs", {}), parts)
        return found

    @cached_property
    def ops(self) -> dict[str, Op]:
        """Convolutions, fully connected layers and poolings by name, and all other ops that have parameters."""
        parameter_of = {}
        for row in (rows := json.loads(self.source)["nodes"]):
            owned = [rows[i]["name"] for i, *_ in row["inputs"] if rows[i]["name"] in self.arguments]
            parameter_of[row["name"]] = owned
        found = {}
        for node in self.nodes.values():
            parts = node.parts or ({"name": node.name, "op": node.op},)
            for part in parts:
                owned = parameter_of.get(part["name"], [])
                main = part["op"] in ("Convolution", "FullyConnected", "Pooling")
                if main or (owned and not node.parts):
                    weight = owned[0] if owned else None
                    found[part["name"]] = Op(part["name"], part["op"], node.name, weight)
        return found

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        """The nodes that read a node's output, by the name of that node."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            for source, _ in node.inputs:
                found.setdefault(source, []).append(node)
        return found

    @cached_property
    def tensors(self) -> dict[tuple[str, int], str]:
        """The name MXNet's calibration table has for each output of a node."""
        internals = self.symbol.get_internals()
        counts: dict[str, int] = {}
        found = {}
        for output, name in zip(internals, internals.list_outputs(), strict=True):
            number = counts.get(output.name, 0)
            counts[output.name] = number + 1
            found[output.name, number] = name
        return found

    def without_negatives(self, node: str) -> bool:
        """Whether the structure says that no output of ``node`` is negative."""
        found = self.nodes.get(node)
        if found is None:
            return False
        if found.ends_in_relu:
            return True
        return found.op in _KEEPS_SIGN and all(self.without_negatives(source) for source, _ in found.inputs)

    def fingerprint(self) -> str:
        """Identity of structure and parameters."""
        rows = [
            (n["op"], n["name"], n.get("attrs"), [i[:2] for i in n["inputs"]]) for n in json.loads(self.source)["nodes"]
        ]
        digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode())
        for name, array in sorted({**self.arguments, **self.auxiliary}.items()):
            digest.update(f"{name} {array.shape}".encode() + array.asnumpy().tobytes())
        return digest.hexdigest()[:16]


def traced(network: HybridBlock) -> Graph:
    """The fused graph of ``network``, which is left as it is; parameters are those it has now."""
    names = _input_names(network)
    try:
        outputs = network(*[mx.sym.var(name) for name in names])
    except Exception as error:
        raise ConfigError(
            f"{type(network).__name__} cannot be traced with symbols ({type(error).__name__}: {error}); "
            "a network that can be hybridized and exported can"
        ) from error
    source = _with_own_names(mx.sym.Group(list(_leaves(outputs))).tojson())
    symbol = mx.sym.load_json(source)
    known = network.collect_params()
    arguments = {name: _value(known, name) for name in symbol.list_arguments() if name not in names}
    auxiliary = {name: _value(known, name) for name in symbol.list_auxiliary_states()}
    return Graph(symbol.get_backend_symbol(FUSION), names, arguments, auxiliary, source)


def as_block(
    outputs: mx.sym.Symbol,
    graph_inputs: tuple[str, ...],
    parameters: Mapping[str, mx.nd.NDArray],
    kind: type[SymbolBlock] = SymbolBlock,
) -> SymbolBlock:
    """A Gluon block that computes ``outputs``."""
    block = kind(outputs, [mx.sym.var(name) for name in graph_inputs])
    needed = block.collect_params()
    needed.load_dict({n: parameters[n] for n in needed}, ctx=mx.cpu(), cast_dtype=True, dtype_source="saved")
    return block


def as_inputs(inputs: Any) -> list[mx.nd.NDArray]:
    """The inputs of a network as MXNet arrays, given one array or several."""
    if isinstance(inputs, Mapping):
        raise ConfigError("a Gluon network takes its inputs in order; pass an array or a list of arrays, not a mapping")
    several = isinstance(inputs, (list, tuple)) and inputs and hasattr(inputs[0], "shape")
    return [_as_array(each) for each in (inputs if several else [inputs])]


def as_outputs(outputs: Any) -> Any:
    """What a network returned, as one NumPy array, or as a list where there are several."""
    arrays = [array.asnumpy() for array in _leaves(outputs)]
    return arrays[0] if len(arrays) == 1 else arrays


def _as_array(x: Any) -> mx.nd.NDArray:
    if isinstance(x, mx.nd.NDArray):
        return x
    array = np.asarray(x)
    return mx.nd.array(array, dtype=np.float32 if array.dtype == np.float64 else array.dtype)


def _leaves(outputs: Any) -> Iterator[Any]:
    if isinstance(outputs, (list, tuple)):
        for each in outputs:
            yield from _leaves(each)
    else:
        yield outputs


def _input_names(network: HybridBlock) -> tuple[str, ...]:
    if isinstance(network, SymbolBlock):
        return tuple(symbol.name for symbol in network._cached_graph[0])
    taken = list(inspect.signature(network.hybrid_forward).parameters.values())[1:]  # the first is F
    free = [p for p in taken if p.name not in network._reg_params and p.default is p.empty and p.kind != p.VAR_KEYWORD]
    return ("data",) if len(free) <= 1 else tuple(f"data{number}" for number in range(len(free)))


def _with_own_names(text: str) -> str:
    """The graph with a name for each node, as a layer may be called twice, and each relu in the form that is fused."""
    graph = json.loads(text)
    counts: dict[str, int] = {}
    for node in graph["nodes"]:
        seen = counts[node["name"]] = counts.get(node["name"], -1) + 1
        if seen and node["op"] != "null":
            node["name"] = f"{node['name']}_{seen}"
        if node["op"] == "relu":
            node["op"], node["attrs"] = "Activation", {"act_type": "relu"}
    return json.dumps(graph)


def _value(parameters: Any, name: str) -> mx.nd.NDArray:
    if name not in parameters:
        raise ConfigError(f"the network reads {name!r}, which is neither an input nor one of its parameters")
    try:
        value = parameters[name].list_data()[0].as_in_context(mx.cpu())
    except (DeferredInitializationError, RuntimeError, MXNetError) as error:
        raise ConfigError(
            f"parameter {name!r} has no values yet; initialize the network and run one batch through it"
        ) from error
    if value.dtype != np.float32:
        raise ConfigError(f"parameter {name!r} is {np.dtype(value.dtype).name}; cast the network to float32 first")
    return value
