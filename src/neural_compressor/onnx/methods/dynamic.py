"""Dynamic quantization: weights in 8 bits, activations quantized over the range they have when the model runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.kernel_race import Work
from neural_compressor.onnx.graph.editor import MICROSOFT, GraphEditor
from neural_compressor.onnx.graph.integer_tensors import IntegerTensor, quantized_array
from neural_compressor.onnx.graph.matrix_nodes import MatrixNode, added_terms, examine, take_array, upright_input
from neural_compressor.onnx.graph.queries import (
    array_of,
    at_node,
    graph_of,
    input_of,
    optional_input,
    weight_refusal,
)
from neural_compressor.onnx.graph.sum_order import matrix_order
from neural_compressor.onnx.runtime.op_race import (
    MOST_PRODUCTS,
    RACED,
    OpRace,
    batches_of_one,
    current_race,
    described,
    known_shapes,
    run_of_one,
)
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, OpScheme, PerChannel, PerTensor, Plan, TensorScheme

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Codes, scales and zero points."""


def quantize_dynamic(model: ir.Model, plan: Plan) -> ir.Model:
    """A new model in which the ops that ``plan`` puts in the mode "dynamic" multiply integers.

    ``model`` is a normalised one. A granularity per_channel means a scale for each output, whatever axis has them.
    """
    new = model.clone()
    nodes = dict(_candidates(new))
    wanted = {key: scheme for key, scheme in plan.items() if scheme.mode == "dynamic"}
    for key in wanted:
        if key not in nodes:
            known = [name for name, kind in nodes if kind == key[1]]
            raise ConfigError(f"there is no {key[1]} {key[0]!r} that can be dynamic; {close_matches(key[0], known)}")
    tensors = _Tensors(GraphEditor(new))
    for key, node in nodes.items():
        if key in wanted:
            op = DYNAMIC_OPS[node.op_type]
            with at_node(node.name):
                if reason := op.refusal(node):
                    raise QuantizationError(f"it cannot be quantized dynamically: {reason}")
                op.rewrite(tensors, node, _checked_weight(wanted[key]))
    return new


def dynamic_nodes(model: ir.Model) -> dict[OpKey, str | None]:
    """Every node of the op types that can be dynamic, with why it cannot be quantized, or None where it can."""
    return {key: DYNAMIC_OPS[node.op_type].refusal(node) for key, node in _candidates(model)}


def _candidates(model: ir.Model) -> list[tuple[OpKey, ir.Node]]:
    known = (node for node in model.graph.all_nodes() if node.op_type in DYNAMIC_OPS)
    return [((str(n.name), n.op_type), n) for n in known if (n.domain or "ai.onnx") == DYNAMIC_OPS[n.op_type].domain]


def _checked_weight(scheme: OpScheme) -> TensorScheme:
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


class _Tensors:
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
        self, weight: ir.Value, kind: Hashable, make: Callable[[], Arrays], *, needs_zero: bool = True
    ) -> IntegerTensor:
        """``weight`` as ``make`` quantizes it, which is called once for each ``kind``.

        Zero points of 0 are left out, unless the op ``needs_zero``.
        """
        key = (weight, kind, needs_zero)
        if key not in self._weights:
            codes, scale, zero = make()
            parts = {"quantized": codes, "scale": scale}
            if needs_zero or zero.any():
                parts["zero_point"] = zero
            values = [self.edit.weight(f"{weight.name}_{part}", a, graph_of(weight)) for part, a in parts.items()]
            self._weights[key] = IntegerTensor(*values)
        return self._weights[key]

    def scaled(self, node: ir.Node, sums: ir.Value, x: IntegerTensor, scale: ir.Value) -> ir.Value:
        """Integer sums as floats, in the order of nodes that ONNX Runtime fuses."""
        floats = self.edit.insert(node, "Cast", [sums], {"to": ir.DataType.FLOAT.value})[0]
        both = self.edit.insert(node, "Mul", [x.scale, scale])[0]
        return self.edit.insert(node, "Mul", [floats, both])[0]


def _right_factor(matrix: np.ndarray, scheme: TensorScheme) -> Arrays:
    """The weight (inputs, outputs) of a product."""
    return quantized_array(matrix, scheme, 1, matrix_order(2))


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


def _rewrite_product(tensors: _Tensors, node: ir.Node, scheme: TensorScheme) -> None:
    """DynamicQuantizeLinear and MatMulInteger, which become DynamicQuantizeMatMul or MatMulIntegerToFloat."""
    matrix, edit = _matrix(node), tensors.edit
    kind = (scheme, matrix.transposed, matrix.factor)
    w = tensors.weight(matrix.weight, kind, lambda: _right_factor(matrix.matrix().T, scheme), needs_zero=False)
    x = tensors.activation(node, upright_input(edit, matrix))
    zeros = [x.zero] if w.zero is None else [x.zero, w.zero]
    sums = edit.insert(node, "MatMulInteger", [x.codes, w.codes, *zeros])[0]
    product = tensors.scaled(node, sums, x, w.scale)
    for term in added_terms(edit, matrix):
        if term is not None:
            product = edit.insert(node, "Add", [product, term])[0]
    edit.replace(node, [product])


def _rewrite_gather(tensors: _Tensors, node: ir.Node, scheme: TensorScheme) -> None:
    """A table of codes, dequantized where they were looked up.

    With a scale for each column that is a cast and a product, of which the runtime has faster kernels.
    """
    matrix, edit = _matrix(node), tensors.edit
    kind = (scheme, matrix.transposed)
    w = tensors.weight(matrix.weight, kind, lambda: quantized_array(matrix.matrix(), scheme, 1), needs_zero=False)
    codes = edit.insert(node, "Gather", [w.codes, matrix.input], {"axis": 0})[0]
    if w.zero is None and isinstance(scheme.granularity, PerChannel):
        floats = edit.insert(node, "Cast", [codes], {"to": ir.DataType.FLOAT.value})[0]
        result = edit.insert(node, "Mul", [floats, w.scale])
    else:
        zeros = [] if w.zero is None else [w.zero]
        result = edit.insert(node, "DequantizeLinear", [codes, w.scale, *zeros], {"axis": -1})
    edit.replace(node, result)


# -- convolutions ----------------------------------------------------------------------------------------------------


def _conv_refusal(node: ir.Node) -> str | None:
    bias = optional_input(node, 2)
    unknown = None if bias is None or bias.const_value is not None else "its bias is not a constant"
    return weight_refusal(node, 1) or unknown


def _rewrite_conv(tensors: _Tensors, node: ir.Node, scheme: TensorScheme) -> None:
    edit, weight, bias = tensors.edit, input_of(node, 1), optional_input(node, 2)
    aligned = (-1, *[1] * (len(_shape(weight)) - 2))

    def quantized() -> Arrays:
        codes, scale, zero = quantized_array(take_array(weight), scheme, 0)
        if (zero != zero.flat[0]).any():
            raise QuantizationError(
                f"the kernel takes one zero point for all channels, and {scheme.dtype.name} has one for each; use int8 "
                "with the scheme sym, or granularity per_tensor"
            )
        return codes, scale.reshape(aligned) if scale.ndim else scale, np.asarray(zero.flat[0])

    w = tensors.weight(weight, scheme, quantized)
    x = tensors.activation(node, input_of(node, 0))
    sums = edit.insert(node, "ConvInteger", [x.codes, w.codes, x.zero, w.zero], dict(node.attributes))[0]
    result = tensors.scaled(node, sums, x, w.scale)
    if bias is not None:
        shaped = edit.weight(f"{bias.name}_added", take_array(bias).reshape(aligned), graph_of(node))
        result = edit.insert(node, "Add", [result, shaped])[0]
    edit.replace(node, [result])


# -- LSTM ------------------------------------------------------------------------------------------------------------


def _lstm_refusal(node: ir.Node) -> str | None:
    if node.attributes.get_int("layout", 0):
        return "its input has the batch first (layout 1), which DynamicQuantizeLSTM does not know"
    return weight_refusal(node, 1) or weight_refusal(node, 2)


def _rewrite_lstm(tensors: _Tensors, node: ir.Node, scheme: TensorScheme) -> None:
    if isinstance(scheme.granularity, PerChannel) and not (scheme.symmetric and scheme.dtype.name == "int8"):
        raise QuantizationError("DynamicQuantizeLSTM takes scales for each channel with int8 sym only")
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    parameters: list[ir.Value | None] = []
    for place in (1, 2):
        found = tensors.weight(input_of(node, place), scheme, partial(_gates, input_of(node, place), scheme))
        inputs[place] = found.codes
        parameters += found.params
    attributes = {name: each for name, each in node.attributes.items() if name != "layout"}
    _replace_by(tensors.edit, node, "DynamicQuantizeLSTM", [*inputs, *parameters], attributes)


def _gates(weight: ir.Value, scheme: TensorScheme) -> Arrays:
    """(directions, gates, inputs) turned to (directions, inputs, gates), each direction with scales of its own."""
    codes, scales, zeros = zip(*(_right_factor(each.T, scheme) for each in take_array(weight)), strict=True)
    return np.stack(codes), np.stack(scales), np.stack(zeros)


def _replace_by(
    edit: GraphEditor, node: ir.Node, op_type: str, inputs: list[ir.Value | None], attributes: dict[str, ir.Attr]
) -> None:
    """Put an operator of ONNX Runtime that has the same outputs in the place of ``node``."""
    count = len(node.outputs)
    edit.replace(node, edit.insert(node, op_type, inputs, attributes, domain=MICROSOFT, outputs=count))


# -- attention -------------------------------------------------------------------------------------------------------

_ATTENTION_ATTRIBUTES = ("num_heads", "unidirectional", "do_rotary", "mask_filter_value", "scale")


def _attention_refusal(node: ir.Node) -> str | None:
    for place, what in ((5, "an attention bias"), (6, "a past sequence length")):
        if optional_input(node, place) is not None:
            return f"it has {what}, which QAttention does not take"
    sizes = node.attributes.get_ints("qkv_hidden_sizes", ())
    if len(set(sizes)) > 1:
        return f"its Q, K and V have the sizes {list(sizes)}, and QAttention takes equal ones"
    unknown = [name for name in node.attributes if name not in (*_ATTENTION_ATTRIBUTES, "qkv_hidden_sizes")]
    return f"it has {unknown[0]}, which QAttention does not know" if unknown else weight_refusal(node, 1)


def _rewrite_attention(tensors: _Tensors, node: ir.Node, scheme: TensorScheme) -> None:
    edit, weight = tensors.edit, input_of(node, 1)
    bias, mask, past = (optional_input(node, place) for place in (2, 3, 4))
    w = tensors.weight(weight, scheme, lambda: _right_factor(take_array(weight), scheme))
    x = tensors.activation(node, input_of(node, 0))
    if bias is None:
        bias = edit.weight(f"{node.name}_bias", np.zeros(_shape(weight)[1], np.float32), graph_of(node))
    operands = [x.codes, w.codes, bias, x.scale, w.scale, mask, x.zero, w.zero, *([] if past is None else [past])]
    attributes = {name: each for name, each in node.attributes.items() if name in _ATTENTION_ATTRIBUTES}
    _replace_by(edit, node, "QAttention", operands, attributes)


def _shape(weight: ir.Value) -> tuple[int, ...]:
    assert weight.const_value is not None
    return tuple(weight.const_value.shape.numpy())


@dataclass(frozen=True)
class DynamicOp:
    """``refusal(node)`` says why a node cannot be quantized, or None; ``rewrite`` replaces it."""

    refusal: Callable[[ir.Node], str | None]
    rewrite: Callable[[_Tensors, ir.Node, TensorScheme], None]
    domain: str = "ai.onnx"


DYNAMIC_OPS = {
    "MatMul": DynamicOp(_matrix_refusal, _rewrite_product),
    "Gemm": DynamicOp(_matrix_refusal, _rewrite_product),
    "Gather": DynamicOp(_matrix_refusal, _rewrite_gather),
    "Conv": DynamicOp(_conv_refusal, _rewrite_conv),
    "LSTM": DynamicOp(_lstm_refusal, _rewrite_lstm),
    "Attention": DynamicOp(_attention_refusal, _rewrite_attention, domain=MICROSOFT),
}
"""The op types that a plan may quantize dynamically."""


# -- races -----------------------------------------------------------------------------------------------------------


def dynamic_race(model: ir.Model) -> DynamicRace | None:
    """The race that decides for the ops of ``model``; None where fixed rules do."""
    race = current_race()
    return None if race is None else DynamicRace(race, known_shapes(model, batches_of_one(model)))


class DynamicRace(OpRace):
    """The races of one model, of ops with activations quantized at run time against the same in float.

    There are no data to tell shapes by: an op is raced where the model says the shape of its input, but for the first
    size, the batch, which is then 1.
    """

    def reason_for_float(self, node: ir.Node, scheme: OpScheme) -> str | None:
        """Why ``node`` is better left in float, empty where it is not; None where that is not known."""
        given, weight = node.inputs[0], optional_input(node, 1)
        shape = self.shapes.get(str(given.name)) if given is not None and node.op_type in RACED else None
        constants = all(v is None or v.const_value is not None for v in node.inputs[1:])
        if shape is None or not constants or not 0 < self.count_products(node, weight) <= MOST_PRODUCTS:
            return None
        stored = scheme.weight
        kind = "" if stored is None else f"{stored.dtype.name} {stored.granularity} {stored.symmetric}"
        op = f"dynamic {described(node, node.inputs[1:])} {kind} on {list(shape)}"
        return self.why_float(op, shape, partial(_work, node, scheme, shape))


def _work(node: ir.Node, scheme: OpScheme, shape: tuple[int, ...], integers: bool) -> Work:
    model = _alone(node, shape)
    if integers:
        model = quantize_dynamic(model, Plan({("op", node.op_type): scheme}))
    values = np.linspace(-1, 1, num=int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return run_of_one(ir.to_proto(model), values)


def _alone(node: ir.Node, shape: tuple[int, ...]) -> ir.Model:
    """A model of this one op."""
    kind = ir.TensorType(ir.DataType.FLOAT)
    x, y = ir.Value(name="x", shape=ir.Shape(shape), type=kind), ir.Value(name="y", type=kind)
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 17}, name="one op")
    model = ir.Model(graph, ir_version=8)
    edit = GraphEditor(model)
    constants = [None if v is None else edit.weight("constant", array_of(v), graph) for v in node.inputs[1:]]
    graph.append(ir.Node("", node.op_type, [x, *constants], node.attributes.values(), outputs=[y], name="op"))
    graph.outputs.append(y)
    return model
