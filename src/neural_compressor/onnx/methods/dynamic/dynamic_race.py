"""Ops with activations quantized at run time, raced on this machine against the same in float.

There are no data to tell shapes by: an op is raced where the model says the shape of its input, but for the first size,
the batch, which is then 1.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from neural_compressor.kernel_race import Work
from neural_compressor.onnx.methods.dynamic.quantizer import quantize_dynamic
from neural_compressor.onnx.runtime.op_race import (
    MOST_PRODUCTS,
    RACED,
    OpRace,
    batches_of_one,
    current_race,
    described,
    known_shapes,
    session_of_one,
)
from neural_compressor.schemes import OpScheme, Plan

_ALONE = "op"


def dynamic_race(model: ir.Model) -> DynamicRace | None:
    """The race that decides for the ops of ``model``; None where fixed rules do."""
    race = current_race()
    return None if race is None else DynamicRace(race, known_shapes(model, batches_of_one(model)))


class DynamicRace(OpRace):
    """The races of one model for dynamic quantization."""

    def reason_for_float(self, node: ir.Node, scheme: OpScheme) -> str | None:
        """Why ``node`` is better left in float, empty where it is not; None where that is not known."""
        given, weight = node.inputs[0], (*node.inputs, None)[1]
        shape = self.shapes.get(str(given.name)) if given is not None and node.op_type in RACED else None
        constants = all(v is None or v.const_value is not None for v in node.inputs[1:])
        if shape is None or not constants or not 0 < self.count_products(node, weight) <= MOST_PRODUCTS:
            return None
        stored = scheme.weight
        kind = "" if stored is None else f"{stored.dtype.name} {stored.granularity} {stored.symmetric}"
        op = f"dynamic {described(node, node.inputs[1:])} {kind} on {list(shape)}"
        return self.why_float(op, shape, functools.partial(_work, node, scheme, shape))


def _work(node: ir.Node, scheme: OpScheme, shape: tuple[int, ...], integers: bool) -> Work:
    model = _alone(node, shape)
    if integers:
        model = quantize_dynamic(model, Plan({(_ALONE, node.op_type): scheme}))
    session = session_of_one(ir.to_proto(model).SerializeToString())
    feed = {"x": np.linspace(-1, 1, num=int(np.prod(shape)), dtype=np.float32).reshape(shape)}
    return lambda: session.run(None, feed)


def _alone(node: ir.Node, shape: tuple[int, ...]) -> ir.Model:
    """A model of this one op."""
    kind = ir.TensorType(ir.DataType.FLOAT)
    x = ir.Value(name="x", shape=ir.Shape(shape), type=kind)
    constants = [None if v is None else _copied(v, f"c{place}") for place, v in enumerate(node.inputs[1:])]
    output = ir.Value(name="y", type=kind)
    op = ir.Node("", node.op_type, [x, *constants], node.attributes.values(), outputs=[output], name=_ALONE)
    initializers = [v for v in constants if v is not None]
    graph = ir.Graph([x], [output], nodes=[op], initializers=initializers, opset_imports={"": 17}, name="one op")
    return ir.Model(graph, ir_version=8)


def _copied(value: ir.Value, name: str) -> ir.Value:
    """A constant of its own: giving a value a name gives it to its tensor, which may be the user's."""
    assert value.const_value is not None
    tensor = ir.Tensor(value.const_value.numpy(), name=name)
    return ir.Value(name=name, shape=value.shape, type=value.type, const_value=tensor)
