"""Convolutions and products raced on this machine, in float against integers, with the shapes they have in a model.

An op is raced where it stands: where the op before it gives integers, float pays for turning them back, and where it does
not, integers pay for quantizing; the same behind it. Results are kept for the next run.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.kernel_race import Work
from neural_compressor.onnx.graph.ops import NodeInfo, Output
from neural_compressor.onnx.graph.queries import standard
from neural_compressor.onnx.runtime.op_race import MOST_PRODUCTS, RACED, OpRace, described, session_of_one

_ACTIVATIONS = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "Softplus", "Softsign", "Elu")
_OPSET, _SCALE = 17, np.float32(0.02)


@dataclass(frozen=True)
class Place:
    """Where an op stands: the shape of its input, whether integers come in, whether they are wanted behind it."""

    shape: tuple[int, ...]
    fed: bool
    emits: bool


class IntegerRace(OpRace):
    """The races of one model for static quantization: the largest ops come first."""

    def place(self, info: NodeInfo, fed: bool, emits: bool) -> Place | None:
        """Where an op stands, if it can be raced there: it has a weight on the right and an input of known shape."""
        node, given = info.node, info.node.inputs[0]
        shape = None if given is None else self.shapes.get(str(given.name))
        if node.op_type not in RACED or info.weight_index != 1 or info.activations != (0,) or not shape:
            return None
        return Place(shape, fed, emits) if 0 < self.products(info) <= MOST_PRODUCTS else None

    def reason_for_float(self, info: NodeInfo, place: Place) -> str | None:
        """Why the op is better left in float, empty where it is not; None where there was no time to find out."""
        op = f"{described(info.node, (info.weight, info.bias))} on {list(place.shape)}, fed {place.fed}, emits {place.emits}"
        return self.why_float(op, place.shape, functools.partial(_work, info, place))

    def products(self, info: NodeInfo) -> float:
        """About how many numbers an op multiplies; 0 where that is not known."""
        return self.count_products(info.node, info.weight)


def activation_behind(node: ir.Node) -> ir.Node | None:
    """The activation that the runtime computes in one kernel with a Gemm that gives floats: one for float only."""
    users = node.outputs[0].consumers()
    alone = standard(node, "Gemm") and len(users) == 1 and not node.outputs[0].is_graph_output()
    return users[0] if alone and standard(users[0], *_ACTIVATIONS) else None


def _work(info: NodeInfo, place: Place, integers: bool) -> Work:
    """One run of an op that stands where ``place`` says."""
    session = session_of_one(_model(info, place, integers).SerializeToString())
    feed = {"x": np.full(place.shape, 130, np.uint8) if place.fed else np.full(place.shape, 0.5, np.float32)}
    return lambda: session.run(None, feed)


def _model(info: NodeInfo, place: Place, integers: bool) -> onnx.ModelProto:
    """The op in float, or between quantizers as the runtime fuses them, with the conversions it needs in its place."""
    weight, bias = info.weight, info.bias
    assert weight is not None
    assert weight.shape is not None
    constants: dict[str, Any] = {"s": _SCALE, "z": np.uint8(128), "wz": np.int8(0), "ss": _SCALE * _SCALE}
    constants["w"] = np.full(weight.shape.numpy(), 3, np.int8) if integers else np.full(weight.shape.numpy(), 0.1, "f4")
    if bias is not None and bias.shape is not None:
        constants["b"] = np.ones(bias.shape.numpy(), np.int32 if integers else np.float32)
    nodes: list[onnx.NodeProto] = []

    def through(op_type: str, *inputs: str) -> str:
        nodes.append(helper.make_node(op_type, inputs, [f"v{len(nodes)}"]))
        return str(nodes[-1].output[0])

    given = "x"
    if integers and not place.fed:
        given = through("QuantizeLinear", given, "s", "z")
    if integers or place.fed:
        given = through("DequantizeLinear", given, "s", "z")
    inputs = [given, "w", *(["b"] if "b" in constants else [])]
    if integers:
        inputs[1] = through("DequantizeLinear", "w", "s", "wz")
        inputs[2:] = [through("DequantizeLinear", each, "ss") for each in inputs[2:]]
    op = ir.serde.serialize_node(info.node)
    del op.input[:], op.output[:]
    op.input.extend(inputs)
    op.output.append("y")
    nodes.append(op)
    result = "y"
    if not integers and place.emits:
        # The runtime would make integers of a float op right between quantizers.
        result = through("Sum", result)
    if place.emits or (integers and info.op.output is Output.INTEGER):
        result = through("QuantizeLinear", result, "s", "z")
        if not place.emits:
            result = through("DequantizeLinear", result, "s", "z")
    kinds = (
        TensorProto.UINT8 if place.fed else TensorProto.FLOAT,
        TensorProto.UINT8 if place.emits else TensorProto.FLOAT,
    )
    x, y = (helper.make_tensor_value_info(name, kind, None) for name, kind in zip(("x", result), kinds, strict=True))
    x.type.tensor_type.shape.CopyFrom(helper.make_tensor_type_proto(kinds[0], place.shape).tensor_type.shape)
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "one op", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
