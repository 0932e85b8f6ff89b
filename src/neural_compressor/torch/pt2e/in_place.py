"""Writes in place in an exported graph: what reads a tensor behind one reads a node that stands behind it, too.

A quantizer stands where its tensor is made, and would round what was there before the write.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

_SAME = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "type_as"}
"""Operators whose result may be their first argument, of which their schema says nothing."""


def read_behind_writes(model: GraphModule) -> None:
    """Give what reads memory behind a write a node behind that write to read it from.

    That is the write itself where it gives what it wrote into (``relu_(x)``), and an ``alias``, which computes nothing,
    where a part of ``x`` was written (``x[:, 0] = 0``) or all that a view is of.
    """
    order = {node: at for at, node in enumerate(model.graph.nodes)}
    memory: dict[Node, frozenset[Hashable]] = {}
    written: dict[Hashable, int] = {}
    aliases: dict[Node, tuple[Node, int]] = {}
    for node, at in order.items():
        writes = _written(node)
        if node.op == "call_function" and not writes and not _shares(node):
            for source in node.all_input_nodes:
                alias, seen = aliases.get(source, (source, order[source]))
                if any(written.get(each, -1) > seen for each in memory[source]):
                    with model.graph.inserting_before(node):
                        alias = model.graph.call_function(torch.ops.aten.alias.default, (source,))
                    alias.meta = dict(source.meta)
                    aliases[source] = alias, at
                if alias is not source:
                    node.replace_input_with(source, alias)
        memory[node] = _memory(node, memory)
        for source in writes:
            written |= dict.fromkeys(memory[source], at)
        if writes and _gives_what_it_writes(node):
            behind = {user for user in writes[0].users if order.get(user, -1) > at}
            writes[0].replace_all_uses_with(node, delete_user_cb=behind.__contains__)


def shared_memory(model: GraphModule) -> set[Node]:
    """The nodes whose memory is written where others see it: a view, a stored tensor, the caller.

    Quantized they would be copies, and what is written into these is lost on the others. Writes one behind the other, each
    into what the last one gives, are seen by nobody else.
    """
    memory: dict[Node, frozenset[Hashable]] = {}
    seen: set[Hashable] = set()
    shared: set[Hashable] = set()
    for node in model.graph.nodes:
        memory[node] = _memory(node, memory)
        written = frozenset().union(*(memory[source] for source in _written(node)))
        shared |= written & seen
        if not written or not _gives_what_it_writes(node):
            seen |= written
            if node.op in ("placeholder", "get_attr") or _shares(node):
                seen |= memory[node]
    return {node for node, places in memory.items() if places & shared}


def _written(node: Node) -> list[Node]:
    """What an operator writes into."""
    return [source for source, info in _arguments(node) if info is not None and info.is_write]


def _arguments(node: Node) -> Iterator[tuple[Node, Any]]:
    """The nodes among the arguments of an operator, each with what the schema says of its memory."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    for place, argument in enumerate(node.target._schema.arguments):
        value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(each, Node):
                yield each, argument.alias_info


def _shares(node: Node) -> bool:
    """Whether what a node gives may lie in the memory of an argument."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem
    said = any(result.alias_info is not None for result in node.target._schema.returns)
    return said or str(node.target).split(".")[1] in _SAME


def _memory(node: Node, memory: Mapping[Node, frozenset[Hashable]]) -> frozenset[Hashable]:
    """Where what a node gives may lie: the nodes that made it, the names of stored tensors."""
    if not _shares(node):
        return frozenset([node.target if node.op == "get_attr" else node])
    said = [source for source, info in _arguments(node) if info is not None]
    return frozenset().union(*(memory[source] for source in said or node.all_input_nodes))


def _gives_what_it_writes(node: Node) -> bool:
    """Whether a node gives the tensor itself that it writes into, which is its first argument."""
    return str(node.target).split(".")[1].endswith("_") and len(node.target._schema.returns) == 1  # type: ignore[union-attr]
