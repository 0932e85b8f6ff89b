"""Quantizers and dequantizers written into a graph as a layout says, and the constants of quantized ops as integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.editor import GraphEditor, discard, take_over
from neural_compressor.onnx.graph.integer_tensors import (
    IntegerParams,
    bias_codes,
    cuts_off,
    least_weight_scale,
    unsigned,
    weight_params,
)
from neural_compressor.onnx.graph.ops import Output
from neural_compressor.onnx.graph.queries import array_of, constant, input_of
from neural_compressor.onnx.graph.sum_order import sum_order
from neural_compressor.onnx.methods.static.layout import Layout, QuantizedOp, QuantizedTensor
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.schemes import PER_TENSOR, TensorScheme

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
        for value, tensor in layout.tensors.items():
            self._quantize_tensor(value, tensor, params_of[tensor.source, tensor.scheme])
        pairs: dict[tuple[ir.Value, TensorScheme], ir.Value] = {}
        for node, op in layout.ops.items():
            for place, value in op.reads.items():
                if layout.is_quantized(value, op.activation):
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

    def _quantize_tensor(self, value: ir.Value, tensor: QuantizedTensor, params: IntegerParams) -> None:
        if tensor.clip is None:
            self._quantize(tensor.raw, params)
        elif cuts_off(params, tensor.clip):
            take_over(tensor.clip, tensor.raw)
            self._quantize(tensor.raw, params)
        else:
            # On the CPU only an op directly before a quantizer becomes an integer op; elsewhere the Relu goes with it.
            if self.options.on_cpu:
                self._quantize(tensor.raw, params)
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


class ConstantWriter:
    """Replaces the float constants of quantized ops; a weight that several read in the same way is stored once."""

    def __init__(self, writer: QDQWriter, layout: Layout, params_of: ParamsOf) -> None:
        self.writer, self.layout, self.params_of = writer, layout, params_of
        self.editor, self.graph = writer.editor, writer.graph
        self._stored: dict[tuple[object, ...], ir.Value] = {}
        self._scales: dict[ir.Node, np.ndarray] = {}

    def write(self, op: QuantizedOp) -> None:
        """Quantize the constants of ``op`` less its bias; its other inputs may be quantized already."""
        info, node = op.info, op.info.node
        for place in info.tables:
            scheme = replace(op.activation, algorithm="minmax")
            self._replace(node, place, weight_params(array_of(node.inputs[place]), scheme, None))
        if info.node.op_type == "Gather":
            self._look_up(op)
            return
        scales = [self._input(op, value).scale for value in op.reads.values()]
        bias = constant(info.bias) if self._quantizes_bias(op) else None
        if info.weight_index is not None:
            scales.append(self._weight(op, bias, scales[0]).scale)
        if self._quantizes_bias(op) and len(scales) > 1:
            self._scales[node] = scales[0] * scales[1]

    def write_bias(self, op: QuantizedOp) -> None:
        """Quantize the bias of ``op``, whose other constants are written."""
        node, place = op.info.node, op.info.op.bias
        if node not in self._scales or place is None or len(node.inputs) <= place:
            return
        if (bias := constant(node.inputs[place])) is not None:
            self._bias(node, place, bias, op.activation)

    def _input(self, op: QuantizedOp, value: ir.Value) -> IntegerParams:
        return self.params_of[self.layout.source(value, op.activation), op.activation]

    def _quantizes_bias(self, op: QuantizedOp) -> bool:
        return self.writer.options.quantize_bias and op.info.op.output is not Output.FLOAT

    def _weight(self, op: QuantizedOp, bias: np.ndarray | None, input_scale: np.ndarray) -> IntegerParams:
        params = self._weight_params(op, None if bias is None else least_weight_scale(bias, input_scale))
        self._replace(op.info.node, op.info.weight_index or 0, params)
        return params

    def _weight_params(self, op: QuantizedOp, least_scale: np.ndarray | None = None) -> IntegerParams:
        assert op.scheme.weight is not None
        order = sum_order(op.info) if self.writer.options.on_cpu else None
        params = weight_params(array_of(op.info.weight), op.scheme.weight, op.info.axis, least_scale, order)
        left = op.info.weight_index == 0 and op.info.activations == (1,) and self.writer.options.on_cpu
        if left and params.zero_point.dtype == np.int8 and op.activation.dtype.bits == 8:
            return unsigned(params)  # the kernels take a signed right factor only
        return params

    def _replace(self, node: ir.Node, place: int, params: IntegerParams) -> None:
        """Let ``node`` read the constant at ``place`` from integers."""
        value = input_of(node, place)
        key = value, params.scheme, params.axis, params.order, params.scale.tobytes(), params.zero_point.tobytes()
        if key not in self._stored:
            self._stored[key] = self._dequantized(value, params, node)
        node.replace_input_with(place, self._stored[key])
        discard(value)

    def _dequantized(self, value: ir.Value, params: IntegerParams, before: ir.Node) -> ir.Value:
        if self.writer.options.add_qdq_pair_to_weight:
            if params.order is not None:  # the quantizer behind it knows nothing of pairs, and finds the same integers
                floats = params.values(params.codes(array_of(value)))
                value = self.editor.weight(f"{value.name}_rounded", floats, self.graph)
            return self.writer.pair(value, params, before)
        dequantizer = self.writer.dequantizer(self._codes(value, params), params, str(value.name))
        before.prepend(dequantizer)
        return dequantizer.outputs[0]

    def _codes(self, value: ir.Value, params: IntegerParams) -> ir.Value:
        return self.editor.weight(f"{value.name}_quantized", params.codes(array_of(value)), self.graph)

    def _bias(self, node: ir.Node, place: int, bias: np.ndarray, activation: TensorScheme) -> None:
        """The bias at the scale of the products, so that kernels add it to their sums."""
        old, scale = input_of(node, place), self._scales[node]
        if scale.ndim:
            full = np.broadcast_to(bias, (*bias.shape[:-1], scale.size))
            bias = full if any(size != 1 for size in full.shape[:-1]) else full.reshape(-1)
        integers = bias_codes(bias, scale)
        if integers is None:
            return  # of two changing factors, whose scales cannot be made larger for it: it stays in float
        params = IntegerParams(
            replace(activation, granularity=PER_TENSOR),
            scale.astype(np.float32),
            np.zeros(scale.shape, np.int32),
            bias.ndim - 1 if scale.ndim else None,
        )
        codes = self.editor.weight(f"{old.name}_quantized", integers, self.graph)
        dequantizer = self.writer.dequantizer(codes, params, f"{node.name}_bias")
        node.prepend(dequantizer)
        node.replace_input_with(place, dequantizer.outputs[0])
        discard(old)

    def _look_up(self, op: QuantizedOp) -> None:
        """Look integers up and dequantize what was found, not the table."""
        node = op.info.node
        params = self._weight_params(op)
        table, output = input_of(node, 0), node.outputs[0]
        uses = tuple(output.uses())
        key = table, params.scheme, "codes"
        if key not in self._stored:
            self._stored[key] = self._codes(table, params)
        node.replace_input_with(0, self._stored[key])
        discard(table)
        after = params if params.axis is None else replace(params, axis=-1)
        dequantizer = self.writer.dequantizer(output, after, str(output.name))
        node.append(dequantizer)
        self.writer.replace(output, uses, dequantizer.outputs[0])
        output.type = ir.TensorType(self._stored[key].dtype or ir.DataType.INT8)
