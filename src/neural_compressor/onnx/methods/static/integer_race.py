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
from neural_compressor.onnx.runtime.op_race import MOST_PRODUCTS, RACED, OpRace, described, run_of_one

_OPSET, _SCALE = 17, np.float32(0.02)


@dataclass(frozen=True)
class Place:
    """Where an op stands: the shape of its input, whether integers come in, whether they are wanted behind it."""

    shape: tuple[int, ...]
    fed: bool
    emits: bool


class IntegerRace(OpRace):
    """The races of one model for static quantization."""

    def reason_for_float(self, info: NodeInfo, fed: bool, emits: bool) -> str | None:
        """Why the op is better left in float, empty where it is not; None where it is not raced.

        That takes a weight on the right, an input of known shape, and time.
        """
        node, given = info.node, info.node.inputs[0]
        shape = None if given is None else self.shapes.get(str(given.name))
        if node.op_type not in RACED or info.weight_index != 1 or info.activations != (0,) or not shape:
            return None
        if not 0 < self.count_products(node, info.weight) <= MOST_PRODUCTS:
            return None
        op = f"{described(node, (info.weight, info.bias))} on {list(shape)}, fed {fed}, emits {emits}"
        return self.why_float(op, shape, functools.partial(_work, info, Place(shape, fed, emits)))


def _work(info: NodeInfo, place: Place, integers: bool) -> Work:
    """One run of an op that stands where ``place`` says."""
    x = np.full(place.shape, 130, np.uint8) if place.fed else np.full(place.shape, 0.5, np.float32)
    return run_of_one(_model(info, place, integers), x)


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
    op.input[:], op.output[:] = inputs, ["y"]
    nodes.append(op)
    result = "y"
    if not integers and place.emits:
        # The runtime would make integers of a float op right between quantizers.
        result = through("Sum", result)
    if place.emits or (integers and info.op.output is Output.INTEGER):
        result = through("QuantizeLinear", result, "s", "z")
        if not place.emits:
            result = through("DequantizeLinear", result, "s", "z")
    taken, gives = (TensorProto.UINT8 if codes else TensorProto.FLOAT for codes in (place.fed, place.emits))
    x = helper.make_tensor_value_info("x", taken, place.shape)
    y = helper.make_tensor_value_info(result, gives, None)
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "one op", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
