"""New nodes and weights for a graph, under names that nothing else in it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.queries import graph_of

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
        take_over(node, *outputs)
        successor = outputs[0].producer()
        assert successor is not None
        successor.name = node.name

    def set_constant(self, node: ir.Node, place: int, array: np.ndarray) -> None:
        """Give ``node`` a float32 constant of its own as an input; other consumers of the old one keep it."""
        if len(node.inputs) <= place:
            node.resize_inputs(place + 1)
        old = node.inputs[place]
        name = f"{node.name}_{'weight' if place == 1 else 'bias'}" if old is None else str(old.name)
        node.replace_input_with(place, self.weight(name, array.astype(np.float32, copy=False), graph_of(node)))
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
    if not isinstance(graph, ir.Graph):
        return
    if node is None:
        if value.name and value.name in graph.initializers:
            del graph.initializers[value.name]
    elif not any(output.uses() or output.is_graph_output() for output in node.outputs):
        _remove(node)


def _names(model: ir.Model) -> Iterator[str | None]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from (value.name for value in graph.inputs)
        yield from graph.initializers
    for node in model.graph.all_nodes():
        yield node.name
        yield from (value.name for value in node.outputs)


def stand_for(new: ir.Value, old: ir.Value) -> None:
    """Let ``new`` take the place of ``old``, under its name."""
    name, old.name = old.name, None
    new.name, new.type, new.shape = name, old.type or new.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def take_over(node: ir.Node, *values: ir.Value) -> None:
    """Let ``values`` stand for the outputs of ``node``, the first ones, and remove it with what only it needed."""
    for new, old in zip(values, node.outputs, strict=False):
        stand_for(new, old)
    _remove(node)


def bypass(node: ir.Node, value: ir.Value) -> None:
    """Let all that read ``node`` read ``value``, and remove it with what only it needed; an output of the model keeps it."""
    for user, place in node.outputs[0].uses():
        user.replace_input_with(place, value)
    if not node.outputs[0].is_graph_output():
        _remove(node)


def _remove(node: ir.Node) -> None:
    inputs = list(node.inputs)
    graph_of(node).remove(node, safe=True)
    for value in inputs:
        discard(value)
