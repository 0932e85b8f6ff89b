"""Float ops between dequantizers and quantizers replaced by integer ops of ONNX and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from neural_compressor.onnx.graph.editor import MICROSOFT, discard, stand_for
from neural_compressor.onnx.graph.integer_tensors import IntegerTensor
from neural_compressor.onnx.graph.ops import PASS_ON
from neural_compressor.onnx.graph.queries import input_of, optional_input, producer, standard


@dataclass(frozen=True)
class IntegerOp:
    """An integer op, and its inputs from what the float op reads and what it gives (None: floats)."""

    op_type: str
    inputs: Callable[[Sequence[IntegerTensor], IntegerTensor | None], list[ir.Value | None]]
    domain: str = MICROSOFT
    attributes: Mapping[str, int] = field(default_factory=dict)
    gives_floats: bool = False


def _usual(read: Sequence[IntegerTensor], given: IntegerTensor | None) -> list[ir.Value | None]:
    """Two inputs with scale and zero point, those of the result, then a bias."""
    return [*(part for tensor in read[:2] for part in tensor), *_params_of(given), *(bias.codes for bias in read[2:])]


def _gemm(read: Sequence[IntegerTensor], given: IntegerTensor | None) -> list[ir.Value | None]:
    return [*_usual(read[:2], None), read[2].codes if len(read) > 2 else None, *_params_of(given)]


def _to_float(read: Sequence[IntegerTensor], given: IntegerTensor | None) -> list[ir.Value | None]:
    left, right = read
    return [left.codes, right.codes, left.scale, right.scale, left.zero, right.zero]


def _concat(read: Sequence[IntegerTensor], given: IntegerTensor | None) -> list[ir.Value | None]:
    return [*_params_of(given), *(part for tensor in read for part in tensor)]


def _params_of(given: IntegerTensor | None) -> list[ir.Value | None]:
    return [] if given is None else given.params


_TO_FLOAT = IntegerOp("MatMulIntegerToFloat", _to_float, gives_floats=True)
_INTEGER_OPS = {
    "Conv": IntegerOp("QLinearConv", _usual, domain=""),
    "MatMul": IntegerOp("QLinearMatMul", _usual, domain=""),
    "Gemm": IntegerOp("QGemm", _gemm, gives_floats=True),
    "Add": IntegerOp("QLinearAdd", _usual),
    "Mul": IntegerOp("QLinearMul", _usual),
    "Concat": IntegerOp("QLinearConcat", _concat),
    "AveragePool": IntegerOp("QLinearAveragePool", _usual),
    "GlobalAveragePool": IntegerOp("QLinearGlobalAveragePool", _usual),
    "LeakyRelu": IntegerOp("QLinearLeakyRelu", _usual),
    "Sigmoid": IntegerOp("QLinearSigmoid", _usual),
    "Softmax": IntegerOp("QLinearSoftmax", _usual, attributes={"opset": 13}),
}
_UNKNOWN_ATTRIBUTES = {"AveragePool": "dilations", "Gemm": "beta"}
"""Attributes that the integer op does not have; they may be written out where they change nothing."""


def to_integer_ops(model: ir.Model) -> None:
    """Change ``model`` in place; ops that have no integer form keep their Q/DQ nodes."""
    for node in list(model.graph):
        if standard(node, *PASS_ON):
            _pass_on(model, node)
        elif standard(node, *_INTEGER_OPS):
            _replace(model, node)


def _replace(model: ir.Model, node: ir.Node) -> None:
    read = [_dequantized(value) for value in node.inputs if value is not None]
    quantizer = _only_quantizer(node.outputs[0])
    given = None if quantizer is None else IntegerTensor(quantizer.outputs[0], *_params(quantizer))
    form = _TO_FLOAT if node.op_type == "MatMul" and given is None else _INTEGER_OPS[node.op_type]
    codes = [c for c in read if c is not None]
    if len(codes) < len(read) or (given is None and not form.gives_floats) or _has_unknown_attribute(node):
        return
    if given is not None and not _same_types(node, codes, given):
        return
    new = ir.node(form.op_type, form.inputs(codes, given), form.attributes, domain=form.domain, name=node.name)
    new.attributes.update({n: a for n, a in node.attributes.items() if n != _UNKNOWN_ATTRIBUTES.get(node.op_type)})
    model.opset_imports.setdefault(form.domain, 1)
    inputs = list(node.inputs)
    node.append(new)
    stand_for(new.outputs[0], node.outputs[0] if quantizer is None else quantizer.outputs[0])
    model.graph.remove([node] if quantizer is None else [quantizer, node], safe=True)
    for value in inputs:
        discard(value)


def _pass_on(model: ir.Model, node: ir.Node) -> None:
    """Let a node that moves values about move integers."""
    floats, codes = node.inputs[0], _dequantized(node.inputs[0])
    quantizers = [q for value in node.outputs if (q := _only_quantizer(value)) is not None]
    if (
        codes is None
        or len(quantizers) < len(node.outputs)
        or any([*q.inputs[1:3]] != codes.params for q in quantizers)
    ):
        return
    node.replace_input_with(0, codes.codes)
    for value, quantizer in zip(node.outputs, quantizers, strict=True):
        stand_for(value, quantizer.outputs[0])
        model.graph.remove(quantizer, safe=True)
    discard(floats)


def _dequantized(value: ir.Value | None) -> IntegerTensor | None:
    node = producer(value, "DequantizeLinear")
    return None if node is None else IntegerTensor(input_of(node, 0), *_params(node))


def _params(node: ir.Node) -> tuple[ir.Value, ir.Value | None]:
    """Scale and zero point of a Q or DQ node."""
    return input_of(node, 1), optional_input(node, 2)


def _only_quantizer(value: ir.Value) -> ir.Node | None:
    uses = tuple(value.uses())
    alone = len(uses) == 1 and not value.is_graph_output()
    return uses[0].node if alone and standard(uses[0].node, "QuantizeLinear") else None


def _same_types(node: ir.Node, read: Sequence[IntegerTensor], given: IntegerTensor) -> bool:
    """Whether an op gives the type of integers it reads; one that was left in float may stand between two of them."""
    activations = read[:1] if node.op_type in ("Conv", "MatMul", "Gemm") else read
    return all(codes.dtype == given.dtype for codes in activations)


def _has_unknown_attribute(node: ir.Node) -> bool:
    if node.op_type == "AveragePool":
        return any(size != 1 for size in node.attributes.get_ints("dilations", ()))
    return node.op_type == "Gemm" and node.attributes.get_float("beta", 1.0) != 1 and len(node.inputs) > 2
