"""A converted graph in forms that Inductor compiles right: the same values, other operators."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

_aten = torch.ops.aten

_HANDS_ON = {
    "contiguous",
    "to",
    "_to_copy",
    "clone",
    "alias",
    "detach",
    "dropout",
    "feature_dropout",
    "lift_fresh_copy",
}
"""Operators, beside views, of which a compiler may leave nothing: behind them is what is in front of them."""


def keep_given_terms(model: GraphModule) -> None:
    """Have no sum of what a linear layer gives and an input or parameter in the form that Inductor writes into the latter.

    A layer and an addition become one kernel (``qlinear_pointwise`` with ``sum``), which puts the sum where the other term
    was, as if that were used up. What stands between them here changes no value, and Inductor does not take it out as it
    would a ``clone``.
    """
    for node in list(model.graph.nodes):
        if node.target not in (_aten.add.Tensor, _aten.add_.Tensor):
            continue
        for place, term in ((0, node.args[1]), (1, node.args[0])):
            layer = node.args[place]
            if _is_linear(layer) and isinstance(term, Node) and _is_given(term):
                with model.graph.inserting_before(node):
                    between = model.graph.call_function(_aten.maximum.default, (layer, layer))
                between.meta = dict(layer.meta)
                node.update_arg(place, between)
    model.recompile()


def _is_linear(node: Any) -> bool:
    return isinstance(node, Node) and _behind(node).target is _aten.linear.default


def _is_given(node: Node) -> bool:
    return _behind(node).op in ("placeholder", "get_attr")


def _behind(node: Node) -> Node:
    """What has the values of a node first, where that only views or hands them on."""
    while isinstance(node.target, torch._ops.OpOverload) and isinstance(node.args[0] if node.args else None, Node):
        name = str(node.target).split(".")[1]
        if not node.target.is_view and name not in _HANDS_ON:
            break
        node = node.args[0]  # type: ignore[assignment]
    return node


_POINTWISE = ("relu", "relu_", "gelu", "silu", "silu_", "hardtanh", "hardtanh_", "hardswish", "hardswish_")
"""Operators on single values that Inductor computes in the kernel of the convolution before them."""


def widened_convolutions(model: GraphModule) -> None:
    """Static int8 convolutions of one dimension as ones of two, of which the first has the size 1.

    torch packs their kernels with such a dimension, and takes that for their length when it derives the shape of the output:
    an addition behind them failed to compile.
    """
    made, wide = set[Node](), dict[Node, Node]()
    decomposed = torch.ops.quantized_decomposed
    for node in model.graph.find_nodes(op="call_function", target=_aten.conv1d.default):
        given, weight = node.args[0], node.args[1]
        is_stored = weight.target is decomposed.dequantize_per_channel.default and weight.args[0].op == "get_attr"
        if not is_stored or given.target is not decomposed.dequantize_per_tensor.default or node.meta["val"].dim() != 3:
            continue
        codes = given.args[0]
        if not str(codes.target).startswith("quantized_decomposed.quantize_per_tensor"):
            continue
        if codes not in wide:
            x = codes.args[0]
            with model.graph.inserting_before(codes):
                x = x.args[0] if x in made else _of_size_one(model, x)
                wide[codes] = _copy(model, codes, x)
        with model.graph.inserting_before(node):
            rest = (*node.args[2:], *(None, [1], [0], [1], 1)[len(node.args) - 2 :])
            sides = [[first, *size] for first, size in zip((1, 0, 1), rest[1:4], strict=True)]
            stored = _copy(model, weight, _wide_weight(model, weight.args[0]))
            node.args = (_copy(model, given, wide[codes]), stored, rest[0], *sides, rest[4])
        node.target = _aten.conv2d.default
        last = node
        node.meta = _wide_meta(node)
        while len(last.users) == 1 and _is_pointwise(reader := next(iter(last.users))):
            last = reader
            last.meta = _wide_meta(last)
        readers = list(last.users)
        with model.graph.inserting_after(last):
            narrow = model.graph.call_function(_aten.squeeze.dim, (last, 2))
        narrow.meta = {"val": last.meta["val"].squeeze(2)}
        for reader in readers:
            reader.replace_input_with(last, narrow)
        made.add(narrow)
    model.recompile()


def _is_pointwise(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and str(node.target).split(".")[1] in _POINTWISE


def _of_size_one(model: GraphModule, x: Node) -> Node:
    """``x`` with a dimension of size 1 before its last, by a node at the place where nodes are put at present."""
    new = model.graph.call_function(_aten.unsqueeze.default, (x, 2))
    new.meta = _wide_meta(x)
    return new


def _copy(model: GraphModule, node: Node, first: Node) -> Node:
    """A call like ``node`` with another ``first`` argument."""
    assert callable(node.target)
    new = model.graph.call_function(node.target, (first, *node.args[1:]), dict(node.kwargs))
    new.meta = _wide_meta(node)
    return new


def _wide_meta(node: Node) -> dict[str, Any]:
    return {**node.meta, **({"val": node.meta["val"].unsqueeze(2)} if "val" in node.meta else {})}


def _wide_weight(model: GraphModule, weight: Node) -> Node:
    owner, _, name = str(weight.target).rpartition(".")
    module, new = model.get_submodule(owner), f"{name}_wide"
    if not hasattr(module, new):
        module.register_buffer(new, getattr(module, name).unsqueeze(2))
    node = model.graph.get_attr(f"{owner}.{new}" if owner else new)
    node.meta = {**weight.meta, "val": getattr(module, new)}
    return node
