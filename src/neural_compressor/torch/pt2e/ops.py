"""The ops of an exported graph, by the names of the modules of the user's model, and what Inductor can run them with."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

import neural_compressor.adaptor
from neural_compressor.adaptor.capability import op_configs
from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.adaptor.tensor_options import OpConfig
from neural_compressor.schemes import OpKey
from neural_compressor.torch.capability import on_this_cpu

YAML = Path(neural_compressor.adaptor.__file__).with_name("pytorch_pt2e.yaml")

_aten = torch.ops.aten

_LAYERS: dict[Any, str] = {
    _aten.linear.default: "Linear",
    _aten.conv1d.default: "Conv1d",
    _aten.conv2d.default: "Conv2d",
}
"""The operators of which there is an int8 form, with the op type that the framework YAML has for them."""

_NO_INT8_FORM: dict[Any, tuple[str, str]] = {
    _aten.conv1d.padding: ("Conv1d", "it pads more on one side than on the other, which has no int8 form"),
    _aten.conv2d.padding: ("Conv2d", "it pads more on one side than on the other, which has no int8 form"),
    _aten.conv3d.default: ("Conv3d", "Inductor has no int8 form of it"),
    _aten.conv3d.padding: ("Conv3d", "Inductor has no int8 form of it"),
    _aten.conv_transpose1d.default: ("ConvTranspose1d", "Inductor has no int8 form of it"),
    _aten.conv_transpose2d.input: ("ConvTranspose2d", "Inductor has no int8 form of it"),
    _aten.conv_transpose3d.input: ("ConvTranspose3d", "Inductor has no int8 form of it"),
    _aten.lstm.input: ("LSTM", "Inductor has no int8 form of it"),
    _aten.gru.input: ("GRU", "Inductor has no int8 form of it"),
    _aten.rnn_tanh.input: ("RNN", "Inductor has no int8 form of it"),
    _aten.rnn_relu.input: ("RNN", "Inductor has no int8 form of it"),
    _aten.embedding.default: ("Embedding", "a look-up, of which an exported graph has no int8 form"),
    _aten.embedding_bag.padding_idx: ("EmbeddingBag", "a look-up, of which an exported graph has no int8 form"),
    _aten.bilinear.default: ("Bilinear", "Inductor has no int8 form of it"),
}
_FLOATS = (torch.float32, torch.bfloat16)
_PRODUCTS = (
    *(
        "matmul",
        "mm",
        "bmm",
        "mv",
        "dot",
        "addmm",
        "addmv",
        "addbmm",
        "baddbmm",
        "einsum",
        "scaled_dot_product_attention",
    ),
    *("_grouped_mm", "grouped_mm_fallback"),  # experts, the second an operator of transformers
)
_PRODUCT = "a product of two activations; only layers with a weight are quantized"
_STORED = (
    "a product with a weight that is not, as it is stored, the factor on the right; only such a one is a linear layer"
)
_APART = "it runs in a graph of its own (a branch, a loop, or under autocast), which stays in float"
_MODULES = {
    *(f"torch.nn.modules.conv.{name}" for name in ("Conv1d", "Conv2d", "Conv3d")),
    *(f"torch.nn.modules.conv.ConvTranspose{n}d" for n in (1, 2, 3)),
    *("torch.nn.modules.linear.Linear", "torch.nn.modules.linear.NonDynamicallyQuantizableLinear"),
    *(f"torch.nn.modules.rnn.{name}" for name in ("RNN", "LSTM", "GRU")),
    *("torch.nn.modules.sparse.Embedding", "torch.nn.modules.sparse.EmbeddingBag", "torch.nn.modules.linear.Bilinear"),
    "transformers.pytorch_utils.Conv1D",  # a linear layer that holds its weight transposed
}
"""Modules that are one operator and nothing else: the operator has the name of the module."""


def kind_of(node: Node) -> str:
    """The op type of a node of which there is an int8 form, nothing for others."""
    return _LAYERS.get(node.target, "")


def is_mean(node: Node) -> bool:
    """Whether a node is the mean of each channel: small against the pixels, so that steps made for these are too large."""
    return "avg_pool2d" in str(node.target) and tuple(node.meta["val"].shape[-2:]) == (1, 1)


def find_graph_ops(model: GraphModule, quantized: bool = False) -> tuple[dict[OpKey, list[Node]], dict[OpKey, str]]:
    """``(ops, skipped)`` in the order they run: ops with their nodes, one for each call, skipped ones with the reason.

    What a forward calls as a function has the name of its module and of the function. Of a ``quantized`` graph the ops are
    the layers whose weight is codes.
    """
    ops: dict[OpKey, list[Node]] = {}
    skipped: dict[OpKey, str] = {}
    taken: set[str] = set()
    for node in model.graph.nodes:
        kind, reason = (kind_of(node), "") if kind_of(node) else _no_int8_form(node)
        if not kind:
            continue
        name, is_module = _name(node, kind)
        if not is_module:
            numbered = (name if n == 0 else f"{name}_{n}" for n in count())
            name = next(each for each in numbered if each not in taken)
            taken.add(name)
        reason = reason or (_in_float(node) if quantized else _against(node))
        if reason:
            skipped.setdefault((name, kind), reason)
        else:
            ops.setdefault((name, kind), []).append(node)
    modules = dict(model.named_modules())
    for own, inner in model.named_children():
        for name, kind in (
            (key for found in find_graph_ops(inner) for key in found) if isinstance(inner, GraphModule) else ()
        ):
            key = (name if name in modules else f"{own}.{name}", kind)
            if key not in ops:
                skipped.setdefault(key, _APART)
    for key in [key for key in ops if key in skipped]:
        del ops[key]  # a layer is called in two ways, and one of them has no int8 form
    return ops, skipped


def _no_int8_form(node: Node) -> tuple[str, str]:
    """The op type of a node of which there is no int8 form, and the reason; nothing for what is no op."""
    if node.target in _NO_INT8_FORM:
        return _NO_INT8_FORM[node.target]
    name = str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""
    if name not in _PRODUCTS:
        return "", ""
    return name, _STORED if any(_is_stored(factor) for factor in node.all_input_nodes) else _PRODUCT


def _is_stored(node: Node) -> bool:
    """Whether the values of a node are those of a parameter or buffer, in whatever shape."""
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node.op == "get_attr"


def _module_of(node: Node) -> tuple[str, str]:
    """The name of the module whose forward calls a node, and the path of its class."""
    stack: Mapping[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
    name, cls = list(stack.values())[-1] if stack else ("", "")
    path = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
    return name.removeprefix("L['self'].").partition("@")[0], path


def _name(node: Node, kind: str) -> tuple[str, bool]:
    name, path = _module_of(node)
    if path in _MODULES or path == f"torch.nn.{path.rpartition('.')[2]}" or path.rpartition(".")[2] == kind:
        return name, True
    function = str(node.target).split(".")[1]
    return (f"{name}.{function}" if name else function), False


def name_layer(node: Node, key: OpKey) -> None:
    """Have ``node`` found as the op ``key``, also in graphs that compilers make of this one."""
    stack = dict(node.meta.get("nn_module_stack") or {})
    node.meta["nn_module_stack"] = {**stack, f"op {key[0]}": (key[0], f"torch.nn.{key[1]}")}


def layer_name(node: Node) -> str:
    """The name of the layer that a node of a compiled graph computes, where it is a module."""
    return _name(node, "")[0]


def _in_float(node: Node) -> str:
    weight = node.args[1]
    is_codes = (
        isinstance(weight, Node) and weight.target is torch.ops.quantized_decomposed.dequantize_per_channel.default
    )
    return "" if is_codes else "its weight is in float"


def _against(node: Node) -> str:
    x, weight = node.args[0], node.args[1]
    if not isinstance(weight, Node) or weight.op != "get_attr":
        return "its weight is computed in the forward, so that no codes of it can be stored"
    value = x.meta.get("val") if isinstance(x, Node) else None
    if not isinstance(value, torch.Tensor) or value.dtype not in _FLOATS:
        return f"its input is {getattr(value, 'dtype', 'no tensor')}; Inductor quantizes float32 and bfloat16"
    return ""


class InductorQuery(QueryBackendCapability):
    """Reads ``adaptor/pytorch_pt2e.yaml``."""

    def __init__(self) -> None:
        super().__init__(YAML, torch.__version__.split("+", maxsplit=1)[0])


def graph_opwise(ops: Mapping[OpKey, Any]) -> dict[OpKey, list[OpConfig]]:
    """What each of ``ops`` can run with here, in the form of the framework YAML; ops of one type have one list."""
    query = InductorQuery()
    kinds = {kind for _, kind in ops}
    found = {
        kind: [safe for config in op_configs(query, kind) for safe in on_this_cpu(kind, config)]
        for kind in sorted(kinds)
    }
    return {key: found[key[1]] for key in ops}
