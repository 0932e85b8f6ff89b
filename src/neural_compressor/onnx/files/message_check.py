"""Faults of a model's protobuf message, found before anything is made of it: what readers trip over, or drop silently."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx
import onnx_ir as ir

from neural_compressor.errors import FormatError

_BY_NAME = "ai.onnx"
"""The domain of the standard operators, which is empty as a rule: parts of onnx know it so only."""
_STANDARD = ("", _BY_NAME)
_SHOWN = 4
_DATA_TYPES = {kind.value for kind in ir.DataType} - {ir.DataType.UNDEFINED.value}


def checked_message(model: onnx.ModelProto, name: str, without_data: Collection[str] = ()) -> onnx.ModelProto:
    """``model``, which is called ``name`` in errors, or a copy with its nodes in the order of computation.

    The initializers ``without_data`` may have none, as it lies elsewhere.
    """
    try:
        _check_opset(model)
        _check_functions(model.functions)
        by_name = any(each.domain == _BY_NAME for each in model.opset_import)
        if by_name or any(_check_graph(model.graph, frozenset(), without_data)):
            model = _copied(model)
            for each in (*model.opset_import, *_nodes(model.graph)):
                each.domain = "" if each.domain == _BY_NAME else each.domain
            for graph, order in list(_check_graph(model.graph, frozenset(), without_data)):
                nodes = onnx.GraphProto(node=[graph.node[place] for place in order])
                graph.ClearField("node")
                graph.node.MergeFrom(nodes.node)
    except _FaultError as fault:
        raise FormatError(f"{name} is not a valid ONNX model: {fault}") from None
    return model


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


class _FaultError(Exception):
    """What is wrong, and what would be right."""


def _check_opset(model: onnx.ModelProto) -> None:
    versions = {each.domain: each.version for each in model.opset_import}
    version = next((versions[domain] for domain in _STANDARD if domain in versions), None)
    newest = onnx.defs.onnx_opset_version()
    if version is None:
        node = next((node for node in _nodes(model.graph) if node.domain in _STANDARD), None)
        if node is not None:
            raise _FaultError(
                f"it imports no opset of the standard operators, and {_named(node)} is one; add it to opset_import"
            )
    elif version < 1:
        raise _FaultError(f"it imports opset {version} of the standard operators; the first is 1")
    elif version > newest:
        raise _FaultError(
            f"it imports opset {version} of the standard operators, and onnx {onnx.__version__} knows them up to "
            f"{newest}; install a newer onnx, or export the model to an older opset"
        )


def _check_functions(functions: Sequence[onnx.FunctionProto]) -> None:
    own = {(function.domain, function.name): function for function in functions}
    called = {key: {(n.domain, n.op_type) for n in _nodes(each)} & own.keys() for key, each in own.items()}
    try:
        TopologicalSorter(called).prepare()
    except CycleError as error:
        raise _FaultError(
            f"the function {error.args[1][0][1]!r} calls itself; functions must end in operators"
        ) from None
    for key, function in own.items():
        try:
            list(_check_nodes(function, set(function.input), function.output, frozenset()))
        except _FaultError as fault:
            raise _FaultError(f"function {key[1]!r}: {fault}") from None


def _check_graph(
    graph: onnx.GraphProto, outer: frozenset[str], without_data: Collection[str]
) -> Iterator[tuple[Any, list[int]]]:
    """The graphs whose nodes are not in order, inner ones first, each with the order they should have."""
    if graph.sparse_initializer:
        raise _FaultError(
            f"the initializer {graph.sparse_initializer[0].values.name!r} is sparse, which is not supported; make it dense"
        )
    for what, names in (
        ("inputs", [value.name for value in graph.input]),
        ("initializers", [tensor.name for tensor in graph.initializer]),
        ("outputs", [value.name for value in graph.output]),
    ):
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise _FaultError(f"two {what} are called {twice[0]!r}; names must differ")
    for tensor in graph.initializer:
        _check_tensor(tensor, tensor.name in without_data)
    known = {each.name for each in (*graph.input, *graph.initializer)}
    yield from _check_nodes(graph, known, [value.name for value in graph.output], outer)


def _check_nodes(
    graph: Any, known: set[str], outputs: Iterable[str], outer: frozenset[str]
) -> Iterator[tuple[Any, list[int]]]:
    producers: dict[str, int] = {}
    for place, node in enumerate(graph.node):
        if not node.op_type:
            raise _FaultError(f"{_named(node)} has no type")
        for output in filter(None, node.output):
            if output in producers or output in known:
                other = _named(graph.node[producers[output]]) if output in producers else "an input or initializer"
                raise _FaultError(f"{_named(node)} gives the value {output!r}, and so does {other}; names must differ")
            producers[output] = place
    visible = outer | known | producers.keys()
    needs: list[set[int]] = []
    for node in graph.node:
        reads = [*filter(None, node.input)]
        for inner in _graphs(node):
            yield from _check_graph(inner, visible, ())
            reads += _free_names(inner)
        for attribute in node.attribute:
            _check_attribute(attribute)
        for name in reads:
            if name not in visible:
                raise _FaultError(f"{_named(node)} reads the value {name!r}, which nothing gives")
        needs.append({producers[name] for name in reads if name in producers})
    for name in outputs:
        if name not in visible:
            raise _FaultError(f"the output {name!r} is given by no node")
    if any(place <= max(needed, default=-1) for place, needed in enumerate(needs)):
        yield graph, _order(graph.node, needs)


def _order(nodes: Sequence[onnx.NodeProto], needs: Sequence[set[int]]) -> list[int]:
    """The places of the nodes in an order in which each comes behind what it needs, otherwise as they are."""
    sorter = TopologicalSorter(dict(enumerate(needs)))
    try:
        sorter.prepare()
    except CycleError as error:
        waiting = sorted({_named(nodes[place]) for place in error.args[1]})
        raise _FaultError(f"its graph has a cycle: {', '.join(waiting[:_SHOWN])} wait for each other") from None
    ready, order = sorted(sorter.get_ready()), list[int]()
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for place in sorter.get_ready():
            heapq.heappush(ready, place)
    return order


def _check_attribute(attribute: onnx.AttributeProto) -> None:
    if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
        raise _FaultError(f"the attribute {attribute.name!r} is sparse, which is not supported; make it dense")
    if attribute.HasField("t"):
        _check_tensor(attribute.t)
    for tensor in attribute.tensors:
        _check_tensor(tensor)


def _check_tensor(tensor: onnx.TensorProto, without_data: bool = False) -> None:
    where = f"the weight {tensor.name!r}"
    if tensor.data_type not in _DATA_TYPES:
        raise _FaultError(f"{where} has the data type {tensor.data_type}, which there is not")
    if any(size < 0 for size in tensor.dims):
        raise _FaultError(f"{where} has the shape {list(tensor.dims)}; sizes are 0 or more")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_entries(tensor, where)
        return
    if without_data:
        return
    kind, count = ir.DataType(tensor.data_type), math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        found, needed, unit = len(tensor.raw_data), -(-count * kind.bitwidth // 8), "bytes"
    else:
        held = getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type))
        whole = 2 * count if kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128) else count
        packed = kind != ir.DataType.STRING and kind.bitwidth < 8
        found, needed, unit = len(held), -(-count * kind.bitwidth // 8) if packed else whole, "numbers"
    if found != needed:
        raise _FaultError(f"{where} has {found} {unit}, and its shape {list(tensor.dims)} needs {needed}")


def _check_entries(tensor: onnx.TensorProto, where: str) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not entries.get("location"):
        raise _FaultError(f"{where} lies in a file, and which is not said; its external_data must have a location")
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        if not (text.isascii() and text.isdigit()):
            raise _FaultError(f"{where} has the external {key} {text!r}; it must be a whole number of bytes, 0 or more")


def _free_names(graph: onnx.GraphProto) -> set[str]:
    """What a graph reads of the graphs around it."""
    own = {each.name for each in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
    read = {name for node in graph.node for name in node.input if name} | {value.name for value in graph.output}
    return read.union(*(_free_names(inner) for node in graph.node for inner in _graphs(node))) - own


def _nodes(graph: Any) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for inner in _graphs(node):
            yield from _nodes(inner)


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The bodies of an If, Loop or Scan."""
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else ()
        yield from attribute.graphs


def _named(node: onnx.NodeProto) -> str:
    name = node.name or next(iter(node.output), "")
    return f"the {node.op_type or 'node'} {name!r}"
