"""Rewrites of each op type that dynamic quantization knows, to ops on activations quantized at run time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.onnx.graph.editor import MICROSOFT, GraphEditor
from neural_compressor.onnx.graph.integer_tensors import IntegerArray, IntegerTensor, quantized_array, right_factor
from neural_compressor.onnx.graph.matrix_nodes import MatrixNode, added_terms, examine, take_array, upright_input
from neural_compressor.onnx.graph.queries import graph_of, input_of, weight_refusal
from neural_compressor.schemes import (
    OpScheme,
    PerChannel,
    PerTensor,
    TensorScheme,
)


class DynamicTensors:
    """What has been quantized in a model so far: nodes that read the same value or weight share it."""

    def __init__(self, edit: GraphEditor) -> None:
        self.edit = edit
        self._activations: dict[tuple[object, ir.Value], IntegerTensor] = {}
        self._weights: dict[Hashable, IntegerTensor] = {}

    def activation(self, node: ir.Node, value: ir.Value) -> IntegerTensor:
        """``value`` as uint8 over the range it has at the time, ahead of ``node``."""
        key = (node.graph, value)
        if key not in self._activations:
            outputs = self.edit.insert(node, "DynamicQuantizeLinear", [value], outputs=3)
            self._activations[key] = IntegerTensor(*outputs)
        return self._activations[key]

    def weight(
        self, weight: ir.Value, kind: Hashable, make: Callable[[], IntegerArray], *, needs_zero: bool = True
    ) -> IntegerTensor:
        """``weight`` as ``make`` quantizes it, which is called once for each ``kind``.

        Zero points of 0 are left out, unless the op ``needs_zero``.
        """
        key = (weight, kind, needs_zero)
        if key not in self._weights:
            graph, found = graph_of(weight), make()
            parts = {"quantized": found.codes, "scale": found.scale, "zero_point": found.zero}
            if not (needs_zero or found.zero.any()):
                del parts["zero_point"]
            values = [self.edit.weight(f"{weight.name}_{part}", array, graph) for part, array in parts.items()]
            self._weights[key] = IntegerTensor(values[0], values[1], values[2] if len(values) > 2 else None)
        return self._weights[key]


def checked_scheme(scheme: OpScheme) -> TensorScheme:
    """The scheme of the weight, of an op that the runtime can compute with activations quantized as it goes."""
    weight, activation = scheme.weight, scheme.activation
    if weight is None or weight.dtype.name not in ("int8", "uint8"):
        raise ConfigError(f"a weight is int8 or uint8 here, not {weight.dtype.name if weight else 'left in float'}")
    if not isinstance(weight.granularity, PerTensor | PerChannel):
        raise ConfigError(f"a weight has one scale, or one a channel, and not {weight.granularity.name} ones")
    if activation is not None and (activation.dtype.name != "uint8" or activation.symmetric):
        raise ConfigError(
            f"activations quantized at run time are uint8 asym, not {activation.dtype.name} "
            f"{'sym' if activation.symmetric else 'asym'}"
        )
    return weight


_ATTENTION_ATTRIBUTES = ("num_heads", "unidirectional", "do_rotary", "mask_filter_value", "scale")


@dataclass(frozen=True)
class DynamicOp:
    """``refusal(node)`` says why a node cannot be quantized, or None; ``rewrite`` replaces it."""

    refusal: Callable[[ir.Node], str | None]
    rewrite: Callable[[DynamicTensors, ir.Node, TensorScheme], None]
    domain: str = ""


# -- products --------------------------------------------------------------------------------------------------------


def _matrix_refusal(node: ir.Node) -> str | None:
    found = examine(node)
    if found is None:
        return "it does not compute with floats"
    if isinstance(found, str):
        return found
    return None if found.dtype == ir.DataType.FLOAT else f"its input is {found.dtype.name}, and FLOAT is needed"


def _matrix(node: ir.Node) -> MatrixNode:
    found = examine(node)
    assert isinstance(found, MatrixNode)
    return found


def _scaled(tensors: DynamicTensors, node: ir.Node, sums: ir.Value, x: IntegerTensor, scale: ir.Value) -> ir.Value:
    """Integer sums as floats, in the order of nodes that ONNX Runtime fuses."""
    floats = tensors.edit.insert(node, "Cast", [sums], {"to": ir.DataType.FLOAT.value})[0]
    both = tensors.edit.insert(node, "Mul", [x.scale, scale])[0]
    return tensors.edit.insert(node, "Mul", [floats, both])[0]


def _rewrite_product(tensors: DynamicTensors, node: ir.Node, scheme: TensorScheme) -> None:
    """DynamicQuantizeLinear and MatMulInteger, which become DynamicQuantizeMatMul or MatMulIntegerToFloat."""
    matrix, edit = _matrix(node), tensors.edit
    kind = (scheme, matrix.transposed, matrix.factor)
    w = tensors.weight(matrix.weight, kind, lambda: right_factor(matrix.matrix().T, scheme), needs_zero=False)
    x = tensors.activation(node, upright_input(edit, matrix))
    zeros = [x.zero] if w.zero is None else [x.zero, w.zero]
    sums = edit.insert(node, "MatMulInteger", [x.codes, w.codes, *zeros])[0]
    product = _scaled(tensors, node, sums, x, w.scale)
    for term in added_terms(edit, matrix):
        if term is not None:
            product = edit.insert(node, "Add", [product, term])[0]
    edit.replace(node, [product])


def _rewrite_gather(tensors: DynamicTensors, node: ir.Node, scheme: TensorScheme) -> None:
    """A table of codes, dequantized where they were looked up.

    With a scale for each column that is a cast and a product, of which the runtime has faster kernels.
    """
    matrix, edit = _matrix(node), tensors.edit
    kind = (scheme, matrix.transposed)
    w = tensors.weight(matrix.weight, kind, lambda: quantized_array(matrix.matrix(), scheme, axis=1), needs_zero=False)
    codes = edit.insert(node, "Gather", [w.codes, matrix.input], {"axis": 0})[0]
    if w.zero is None and isinstance(scheme.granularity, PerChannel):
        floats = edit.insert(node, "Cast", [codes], {"to": ir.DataType.FLOAT.value})[0]
        edit.replace(node, list(edit.insert(node, "Mul", [floats, w.scale])))
    else:
        zeros = [] if w.zero is None else [w.zero]
        edit.replace(node, list(edit.insert(node, "DequantizeLinear", [codes, w.scale, *zeros], {"axis": -1})))


# -- convolutions ----------------------------------------------------------------------------------------------------


def _conv_refusal(node: ir.Node) -> str | None:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if reason := weight_refusal(node, 1):
        return reason
    return None if bias is None or bias.const_value is not None else "its bias is not a constant"


def _rewrite_conv(tensors: DynamicTensors, node: ir.Node, scheme: TensorScheme) -> None:
    edit, graph = tensors.edit, graph_of(node)
    given, weight, bias = input_of(node, 0), input_of(node, 1), (*node.inputs, None)[2]
    aligned = (-1, *[1] * (len(_shape(weight)) - 2))

    def quantized() -> IntegerArray:
        found = quantized_array(take_array(weight), scheme, axis=0, one_zero=True)
        return found if not found.scale.ndim else IntegerArray(found.codes, found.scale.reshape(aligned), found.zero)

    w = tensors.weight(weight, scheme, quantized)
    x = tensors.activation(node, given)
    sums = edit.insert(node, "ConvInteger", [x.codes, w.codes, x.zero, w.zero], dict(node.attributes))[0]
    result = _scaled(tensors, node, sums, x, w.scale)
    if bias is not None:
        shaped = edit.weight(f"{bias.name}_added", take_array(bias).reshape(aligned), graph)
        result = edit.insert(node, "Add", [result, shaped])[0]
    edit.replace(node, [result])


# -- LSTM ------------------------------------------------------------------------------------------------------------


def _lstm_refusal(node: ir.Node) -> str | None:
    if node.attributes.get_int("layout", 0):
        return "its input has the batch first (layout 1), which DynamicQuantizeLSTM does not know"
    return weight_refusal(node, 1) or weight_refusal(node, 2)


def _rewrite_lstm(tensors: DynamicTensors, node: ir.Node, scheme: TensorScheme) -> None:
    if isinstance(scheme.granularity, PerChannel) and not (scheme.symmetric and scheme.dtype.name == "int8"):
        raise QuantizationError("DynamicQuantizeLSTM takes scales for each channel with int8 sym only")
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    parameters: list[ir.Value | None] = []
    for place in (1, 2):
        found = tensors.weight(input_of(node, place), scheme, partial(_gates, input_of(node, place), scheme))
        inputs[place] = found.codes
        parameters += [found.scale, found.zero]
    attributes = {name: each for name, each in node.attributes.items() if name != "layout"}
    count = len(node.outputs)
    new = tensors.edit.insert(
        node, "DynamicQuantizeLSTM", [*inputs, *parameters], attributes, domain=MICROSOFT, outputs=count
    )
    tensors.edit.replace(node, new)


def _gates(weight: ir.Value, scheme: TensorScheme) -> IntegerArray:
    """(directions, gates, inputs) turned to (directions, inputs, gates), each direction with scales of its own."""
    each = [right_factor(direction.T, scheme) for direction in take_array(weight)]
    return IntegerArray(*(np.stack([getattr(one, part) for one in each]) for part in ("codes", "scale", "zero")))


# -- attention -------------------------------------------------------------------------------------------------------


def _attention_refusal(node: ir.Node) -> str | None:
    for place, what in ((5, "an attention bias"), (6, "a past sequence length")):
        if len(node.inputs) > place and node.inputs[place] is not None:
            return f"it has {what}, which QAttention does not take"
    sizes = node.attributes.get_ints("qkv_hidden_sizes", ())
    if len(set(sizes)) > 1:
        return f"its Q, K and V have the sizes {list(sizes)}, and QAttention takes equal ones"
    known = (*_ATTENTION_ATTRIBUTES, "qkv_hidden_sizes")
    unknown = [name for name in node.attributes if name not in known]
    return f"it has {unknown[0]}, which QAttention does not know" if unknown else weight_refusal(node, 1)


def _rewrite_attention(tensors: DynamicTensors, node: ir.Node, scheme: TensorScheme) -> None:
    edit = tensors.edit
    given, weight = input_of(node, 0), input_of(node, 1)
    bias, mask, past = (*node.inputs, None, None, None)[2:5]
    w = tensors.weight(weight, scheme, lambda: right_factor(take_array(weight), scheme))
    x = tensors.activation(node, given)
    if bias is None:
        bias = edit.weight(f"{node.name}_bias", np.zeros(_shape(weight)[1], np.float32), graph_of(node))
    attributes = {name: each for name, each in node.attributes.items() if name in _ATTENTION_ATTRIBUTES}
    operands = [x.codes, w.codes, bias, x.scale, w.scale, mask, x.zero, w.zero, past]
    count = len(node.outputs)
    operands = operands if past is not None else operands[:-1]
    edit.replace(node, edit.insert(node, "QAttention", operands, attributes, domain=MICROSOFT, outputs=count))


def _shape(weight: ir.Value) -> tuple[int, ...]:
    assert weight.const_value is not None
    return tuple(weight.const_value.shape.numpy())


DYNAMIC_OPS = {
    "MatMul": DynamicOp(_matrix_refusal, _rewrite_product),
    "Gemm": DynamicOp(_matrix_refusal, _rewrite_product),
    "Gather": DynamicOp(_matrix_refusal, _rewrite_gather),
    "Conv": DynamicOp(_conv_refusal, _rewrite_conv),
    "LSTM": DynamicOp(_lstm_refusal, _rewrite_lstm),
    "Attention": DynamicOp(_attention_refusal, _rewrite_attention, domain=MICROSOFT),
}
"""The op types that a plan may quantize dynamically."""
