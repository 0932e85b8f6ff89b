"""New nodes and weights for a graph, under names that nothing else in it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


class GraphEditor:
    """Changes ``model`` in place."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._names = {name for name in _names(model) if name}

    def weight(self, name: str, value: np.ndarray | np.generic | ir.TensorProtocol, graph: ir.Graph) -> ir.Value:
        """A new constant of ``graph``, called ``name`` or nearly so."""
        tensor = ir.Tensor(np.asarray(value, order="C")) if isinstance(value, np.ndarray | np.generic) else value
        tensor.name = self.fresh(name)
        new = ir.Value(name=tensor.name, const_value=tensor, type=ir.TensorType(tensor.dtype))
        new.shape = ir.Shape(tensor.shape.numpy())
        graph.register_initializer(new)
        return new

    def insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
    ) -> tuple[ir.Value, ...]:
        """The outputs of a new node that runs ahead of ``before`` and is called after it."""
        if domain:
            self.model.opset_imports.setdefault(domain, 1)
        name = self.fresh(f"{before.name}_{op_type}")
        node = ir.node(op_type, inputs, attributes, domain=domain, num_outputs=outputs, name=name)
        for index, value in enumerate(node.outputs):
            value.name = self.fresh(f"{name}_{index}" if index else f"{name}_output")
        before.prepend(node)
        return tuple(node.outputs)

    def replace(self, node: ir.Node, outputs: Sequence[ir.Value]) -> None:
        """Let ``outputs`` stand for those of ``node``, under their names, and remove it with what only it needed.

        The node that gives the first of them takes over the name of the old one.
        """
        graph, inputs = node.graph, list(node.inputs)
        assert isinstance(graph, ir.Graph)
        for old, new in zip(node.outputs, outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            new.name, old.name = old.name, None
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        successor = outputs[0].producer()
        assert successor is not None
        successor.name = node.name
        graph.remove(node, safe=True)
        for value in inputs:
            discard(value)

    def set_constant(self, node: ir.Node, place: int, array: np.ndarray) -> None:
        """Give ``node`` a float32 constant of its own as an input; other consumers of the old one keep it."""
        if len(node.inputs) <= place:
            node.resize_inputs(place + 1)
        old, graph = node.inputs[place], node.graph
        assert isinstance(graph, ir.Graph)
        name = f"{node.name}_{'weight' if place == 1 else 'bias'}" if old is None else str(old.name)
        node.replace_input_with(place, self.weight(name, array.astype(np.float32, copy=False), graph))
        discard(old)

    def fresh(self, name: str) -> str:
        """``name``, or the like of it where something is called that."""
        fresh, count = name, 1
        while fresh in self._names:
            count += 1
            fresh = f"{name}_{count}"
        self._names.add(fresh)
        return fresh


def discard(value: ir.Value | None) -> None:
    """Remove a constant nobody reads, and the nodes that were between it and its last consumer."""
    if value is None or value.uses() or value.is_graph_output() or value.is_graph_input():
        return
    node, graph = value.producer(), value.graph
    if node is None:
        if isinstance(graph, ir.Graph) and value.name and value.name in graph.initializers:
            del graph.initializers[value.name]
        return
    if any(output.uses() or output.is_graph_output() for output in node.outputs) or not isinstance(graph, ir.Graph):
        return
    inputs = list(node.inputs)
    graph.remove(node, safe=True)
    for each in inputs:
        discard(each)


def _names(model: ir.Model) -> Iterator[str | None]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from (value.name for value in graph.inputs)
        yield from graph.initializers
    for node in model.graph.all_nodes():
        yield node.name
        yield from (value.name for value in node.outputs)


def take_over(value: ir.Value, node: ir.Node) -> None:
    """Let ``value`` stand for the first output of ``node``, under its name, and remove the node."""
    old, inputs = node.outputs[0], list(node.inputs)
    value.type, value.shape = old.type or value.type, old.shape
    name, old.name = old.name, None
    value.name = name
    old.replace_all_uses_with(value, replace_graph_outputs=True)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
    for each in inputs:
        discard(each)
