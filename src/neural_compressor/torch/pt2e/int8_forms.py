"""An exported graph in the forms of which there are int8 kernels: the same values, other operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node

_aten = torch.ops.aten


def inline_contexts(model: GraphModule) -> None:
    """Put what runs with autocast off, or with gradients, into the graph: it is a graph of its own, and computes the same.

    What runs with autocast on stays apart.
    """
    for node in list(model.graph.nodes):
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            inner, given = node.args[1:2], node.args[2:]
        elif node.target is torch.ops.higher_order.wrap_with_autocast and not node.args[2]:
            inner, given = node.args[4:5], node.args[5:]
        else:
            continue
        module = model.get_submodule(inner[0].target)
        assert isinstance(module, GraphModule)
        inline_contexts(module)
        if any(each.op == "get_attr" for each in module.graph.nodes):
            continue
        with model.graph.inserting_before(node):
            names = module.graph.find_nodes(op="placeholder")
            found = model.graph.graph_copy(module.graph, dict(zip(names, given, strict=True)))
        for user in list(node.users):
            user.replace_all_uses_with(found[user.args[1]])  # type: ignore[index]
            model.graph.erase_node(user)
        model.graph.erase_node(node)
        if not inner[0].users:
            model.graph.erase_node(inner[0])
            model.delete_submodule(inner[0].target)
    model.recompile()


def holds_nested_graphs(model: GraphModule) -> bool:
    """Whether a graph of its own, such as a branch, holds another one."""
    return any(_graphs_in(inner) for inner in _graphs_in(model))


def _graphs_in(model: GraphModule) -> list[GraphModule]:
    return [each for each in model.children() if isinstance(each, GraphModule)]


def strip_checks(model: GraphModule) -> None:
    """Take out the assertions that export adds: inputs are checked before the graph, with messages that name them.

    They count as readers of the tensors they look at, which stands in the way of fusing what is behind.
    """
    for node in reversed(list(model.graph.nodes)):
        is_guard = node.op == "call_module" and node.target == "_guards_fn"
        if is_guard or node.target is torch.ops.aten._assert_tensor_metadata.default:
            model.graph.erase_node(node)
    if hasattr(model, "_guards_fn"):
        del model._guards_fn
    model._forward_pre_hooks.clear()
    model._forward_pre_hooks_with_kwargs.clear()


def number_padding(model: GraphModule) -> None:
    """Convolutions with padding as a word in the form with numbers, where both sides get the same."""
    forms = {_aten.conv1d.padding: _aten.conv1d.default, _aten.conv2d.padding: _aten.conv2d.default}
    for node in model.graph.nodes:
        if node.target not in forms:
            continue
        weight = node.args[1].meta["val"].shape
        given = dict(
            zip(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), node.args, strict=False)
        )
        dims = len(weight) - 2
        word, dilation = given.get("padding", "valid"), given.get("dilation") or [1] * dims
        whole = [0 if word == "valid" else int(d) * (int(k) - 1) for d, k in zip(dilation, weight[2:], strict=True)]
        if all(width % 2 == 0 for width in whole):
            node.target = forms[node.target]
            halves = [width // 2 for width in whole]
            strides = given.get("stride") or [1] * dims
            node.args = (*node.args[:2], given.get("bias"), strides, halves, dilation, given.get("groups", 1))


def linear_products(model: GraphModule) -> None:
    """Products with a stored matrix from the right as linear layers: transformers' ``Conv1D`` (GPT-2), ``x @ self.weight``.

    The layer holds the matrix transposed, over the same values.
    """
    turned: dict[str, str] = {}
    for node in list(model.graph.nodes):
        found = _product(node)
        if found is None:
            continue
        x, matrix, bias = found
        target = str(matrix.target)
        if target not in turned:
            turned[target] = _turn(model, target)
        with model.graph.inserting_before(node):
            weight = model.graph.get_attr(turned[target])
        weight.meta = {**matrix.meta, "val": matrix.meta["val"].t()}
        node.target, node.args = _aten.linear.default, (x, weight, bias)
        if not matrix.users:
            model.graph.erase_node(matrix)
    read = {node.target for node in model.graph.nodes if node.op == "get_attr"}
    for target in turned.keys() - read:
        owner, _, name = target.rpartition(".")
        delattr(model.get_submodule(owner), name)


def contiguous_inputs(model: GraphModule) -> None:
    """Have linear layers read tensors that lie in memory in the order of their dimensions: transposed ones are copied.

    Of others Inductor makes batched products, of which it has no int8 form where sizes vary, and raises a TypeError.
    """
    copies: dict[Node, Node] = {}
    for node in model.graph.find_nodes(op="call_function", target=_aten.linear.default):
        x = node.args[0]
        if x.meta["val"].dim() < 3 or x.meta["val"].is_contiguous():
            continue
        if x not in copies:
            with model.graph.inserting_after(x):
                how: dict[str, Any] = {"memory_format": torch.contiguous_format}
                copies[x] = model.graph.call_function(_aten.clone.default, (x,), how)
            copies[x].meta = {**x.meta, "val": x.meta["val"].contiguous()}
        node.update_arg(0, copies[x])


def _product(node: Node) -> tuple[Node, Node, Node | None] | None:
    """What is multiplied, the stored matrix, and a bias, where a node is ``x @ matrix (+ bias)``; None of others."""
    bias: Any = None
    if node.target in (_aten.mm.default, _aten.matmul.default):
        x, matrix = node.args
    elif node.target is _aten.addmm.default and not node.kwargs:
        bias, x, matrix = node.args
        if not _is_stored(bias, 1):
            return None
    else:
        return None
    if not _is_stored(matrix, 2) or not isinstance(x, Node) or x.meta["val"].dim() < 2:
        return None
    return x, matrix, bias  # type: ignore[return-value]


def _is_stored(node: Any, dims: int) -> bool:
    return isinstance(node, Node) and node.op == "get_attr" and node.meta["val"].dim() == dims


def _turn(model: GraphModule, target: str) -> str:
    """Store a matrix transposed, a parameter if it is one; returns its name."""
    owner, _, name = target.rpartition(".")
    module = model.get_submodule(owner)
    matrix = getattr(module, name)
    new = f"{name}_transposed"
    if isinstance(matrix, nn.Parameter):
        module.register_parameter(new, nn.Parameter(matrix.detach().t(), matrix.requires_grad))
    else:
        module.register_buffer(new, matrix.t())
    return f"{owner}.{new}" if owner else new


def hide_norms(model: GraphModule) -> None:
    """Call by another name the batch normalisations that are no part of the one layer before them.

    torchao would fold all that read what a layer gives: also where others read that too, where the layer is called again
    or shares its parameters, and where there is nothing to fold, as of statistics of the batch. Of one that is left it
    looks for a hundred patterns, which takes half a minute. In branches and loops it looks too.
    """
    for inner in _graphs_in(model):
        hide_norms(inner)
    readers: dict[int, set[Node]] = {}
    for node in model.graph.find_nodes(op="get_attr"):
        readers.setdefault(id(_attribute(model, node)), set()).update(node.users)

    def is_part(norm: Node, layer: Any) -> bool:
        if not isinstance(layer, Node) or not str(layer.target).startswith(("aten.conv", "aten.linear")):
            return False
        stored = [value for value in layer.args[1:3] if isinstance(value, Node)]
        own = all(value.op == "get_attr" and readers[id(_attribute(model, value))] == {layer} for value in stored)
        in_groups = "transpose" in str(layer.target) and len(layer.args) > 6 and layer.args[6] != 1
        flat = "linear" not in str(layer.target) or layer.meta["val"].dim() == 2
        return own and flat and not norm.args[5] and not in_groups and set(layer.users) == {norm}

    for norm in model.graph.find_nodes(op="call_function", target=_aten.batch_norm.default):
        if not is_part(norm, norm.args[0]):
            norm.target = torch.batch_norm
    model.recompile()


def show_norms(model: GraphModule) -> None:
    """Undo :func:`hide_norms`."""
    for inner in _graphs_in(model):
        show_norms(inner)
    for norm in model.graph.find_nodes(op="call_function", target=torch.batch_norm):
        norm.target = _aten.batch_norm.default
    model.recompile()


def _attribute(model: GraphModule, node: Node) -> Any:
    owner, _, name = str(node.target).rpartition(".")
    return getattr(model.get_submodule(owner), name)
