"""Quantizers and dequantizers written into a graph as a layout says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.clips import cuts_off
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.graph import input_of
from neural_compressor.onnx.graph.integer_params import IntegerParams
from neural_compressor.onnx.methods.static.layout import Home, Layout
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.passes.affine_folding import take_over
from neural_compressor.schemes import TensorScheme

ParamsOf = Mapping[tuple[ir.Value, TensorScheme], IntegerParams]
"""Scale and zero point of each tensor that sets one."""


class QDQWriter:
    """Puts pairs of a quantizer and a dequantizer into ``editor.model``, each behind what it quantizes."""

    def __init__(self, editor: GraphEditor, options: StaticOptions) -> None:
        self.editor = editor
        self.options = options
        self.graph = editor.model.graph
        self._constants: dict[tuple[object, ...], ir.Value] = {}

    def activations(self, layout: Layout, params_of: ParamsOf) -> None:
        """Quantize the tensors that ``layout`` says are handed on as integers, and those its ops read."""
        for value, home in layout.homes.items():
            self._home(value, home, params_of[home.source, home.scheme])
        pairs: dict[tuple[ir.Value, TensorScheme], ir.Value] = {}
        for node, op in layout.ops.items():
            for place, value in op.reads.items():
                if layout.is_home(value, op.activation):
                    continue
                source = input_of(node, place)
                key = source, op.activation
                if key not in pairs or self.options.dedicated_qdq_pair:
                    pairs[key] = self.pair(source, params_of[value, op.activation])
                node.replace_input_with(place, pairs[key])

    def pair(self, value: ir.Value, params: IntegerParams, before: ir.Node | None = None) -> ir.Value:
        """``value`` quantized and dequantized, behind where it is computed or ahead of ``before``."""
        quantize = self._node("QuantizeLinear", value, params, "quantized")
        quantize.outputs[0].type = ir.TensorType(ir.DataType.from_numpy(params.zero_point.dtype))
        dequantize = self.dequantizer(quantize.outputs[0], params, str(value.name))
        producer = value.producer()
        if before is not None or producer is None:
            (before or self.graph[0]).prepend([quantize, dequantize])
        else:
            producer.append([quantize, dequantize])
        return dequantize.outputs[0]

    def dequantizer(self, codes: ir.Value, params: IntegerParams, name: str) -> ir.Node:
        """A node, in no graph yet, that turns ``codes`` of the tensor ``name`` into floats."""
        node = self._node("DequantizeLinear", codes, params, "dequantized", name)
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        return node

    def replace(self, value: ir.Value, uses: Iterable[tuple[ir.Node, int]], new: ir.Value) -> None:
        """Let ``uses`` of ``value``, and the model's outputs, read ``new`` instead."""
        for node, place in uses:
            node.replace_input_with(place, new)
        if value.is_graph_output():
            name = str(value.name)
            value.name = self.editor.fresh(f"{name}_float")
            new.name, new.type, new.shape = name, ir.TensorType(ir.DataType.FLOAT), value.shape
            for place, output in enumerate(self.graph.outputs):
                if output is value:
                    self.graph.outputs[place] = new

    def _home(self, value: ir.Value, home: Home, params: IntegerParams) -> None:
        if home.clip is None:
            self._quantize(home.raw, params)
        elif cuts_off(params, home.clip):
            take_over(home.raw, home.clip)
            self._quantize(home.raw, params)
        else:
            # On the CPU only an op directly before a quantizer becomes an integer op; elsewhere the Relu goes with it.
            if self.options.on_cpu:
                self._quantize(home.raw, params)
            self._quantize(value, params)

    def _quantize(self, value: ir.Value, params: IntegerParams) -> None:
        uses = tuple(value.uses())
        for together in [[use] for use in uses] if self.options.dedicated_qdq_pair and uses else [uses]:
            self.replace(value, together, self.pair(value, params))

    def _node(
        self, op_type: str, value: ir.Value, params: IntegerParams, what: str, name: str | None = None
    ) -> ir.Node:
        name = name or str(value.name)
        output = ir.Value(name=self.editor.fresh(f"{name}_{what}"), shape=value.shape)
        inputs = [value, *self.constants(params, name)]
        attributes = {} if params.axis is None else {"axis": params.axis}
        short = "Q" if op_type == "QuantizeLinear" else "DQ"
        return ir.node(op_type, inputs, attributes, outputs=[output], name=self.editor.fresh(f"{name}_{short}"))

    def constants(self, params: IntegerParams, name: str) -> list[ir.Value | None]:
        """Scale and zero point as constants of the graph, equal ones once; none is a zero of the integers' type.

        The sums that a bias is added to are counted from zero, so that nothing asks for the zero point of one.
        """
        zero_point = None if params.zero_point.dtype == np.int32 else params.zero_point
        return [self._constant(f"{name}_scale", params.scale), self._constant(f"{name}_zero_point", zero_point)]

    def _constant(self, name: str, array: np.ndarray | None) -> ir.Value | None:
        if array is None:
            return None
        key = array.dtype, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.editor.weight(name, array, self.graph)
        return self._constants[key]
