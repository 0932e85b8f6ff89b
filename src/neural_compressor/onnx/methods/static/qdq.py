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
from neural_compressor.onnx.graph.ops import CLIPS, Output
from neural_compressor.onnx.graph.queries import array_of, constant, input_of, optional_input, producer, standard
from neural_compressor.onnx.graph.sum_order import sum_order
from neural_compressor.onnx.methods.static.layout import Layout, QuantizedOp, QuantizedTensor
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.schemes import PER_TENSOR, TensorScheme


class QDQWriter:
    """Writes ``layout`` into ``editor.model``; ``params_of`` has scale and zero point of each tensor that sets one.

    First come the activations, then the constants of ops and their biases. A weight that several ops read in the same way
    is stored once.
    """

    def __init__(
        self,
        editor: GraphEditor,
        layout: Layout,
        params_of: Mapping[tuple[ir.Value, TensorScheme], IntegerParams],
        options: StaticOptions,
    ) -> None:
        self.editor, self.layout, self.params_of, self.options = editor, layout, params_of, options
        self.graph = editor.model.graph
        self._constants: dict[tuple[object, ...], ir.Value] = {}
        self._stored: dict[tuple[object, ...], ir.Value] = {}
        self._product_scales: dict[ir.Node, np.ndarray] = {}

    def write_activations(self) -> None:
        """Quantize the tensors that are handed on as integers, and those that ops read."""
        for value, tensor in self.layout.tensors.items():
            self._quantize_tensor(value, tensor, self.params_of[tensor.source, tensor.scheme])
        pairs: dict[tuple[ir.Value, TensorScheme], ir.Value] = {}
        for node, op in self.layout.ops.items():
            for place, value in op.reads.items():
                if self.layout.is_quantized(value, op.activation):
                    continue
                source = input_of(node, place)
                key = source, op.activation
                if key not in pairs or self.options.dedicated_qdq_pair:
                    pairs[key] = self._pair(source, self.params_of[value, op.activation])
                node.replace_input_with(place, pairs[key])

    def write_constants(self, op: QuantizedOp) -> None:
        """Quantize the constants of ``op`` less its bias; its other inputs may be quantized already."""
        info, node = op.info, op.info.node
        for place in info.tables:
            scheme = replace(op.activation, algorithm="minmax")
            self._replace_constant(node, place, weight_params(array_of(node.inputs[place]), scheme, None))
        if node.op_type == "Gather":
            self._look_up(op)
            return
        read = (self.layout.source(value, op.activation) for value in op.reads.values())
        scales = [self.params_of[source, op.activation].scale for source in read]
        quantizes_bias = self.options.quantize_bias and info.op.output is not Output.FLOAT
        if info.weight_index is not None:
            bias = constant(info.bias) if quantizes_bias else None
            params = self._weight_params(op, None if bias is None else least_weight_scale(bias, scales[0]))
            self._replace_constant(node, info.weight_index, params)
            scales.append(params.scale)
        if quantizes_bias and len(scales) > 1:
            self._product_scales[node] = scales[0] * scales[1]

    def write_bias(self, op: QuantizedOp) -> None:
        """Quantize the bias of ``op`` at the scale of its products, so that kernels add it to their sums."""
        node, place, scale = op.info.node, op.info.op.bias, self._product_scales.get(op.info.node)
        old = None if place is None else optional_input(node, place)
        if scale is None or place is None or old is None or (bias := constant(old)) is None:
            return
        if scale.ndim:
            full = np.broadcast_to(bias, (*bias.shape[:-1], scale.size))
            bias = full if any(size != 1 for size in full.shape[:-1]) else full.reshape(-1)
        integers = bias_codes(bias, scale)
        if integers is None:
            return  # of two changing factors, whose scales cannot be made larger for it: it stays in float
        scheme, axis = replace(op.activation, granularity=PER_TENSOR), bias.ndim - 1 if scale.ndim else None
        params = IntegerParams(scheme, scale.astype(np.float32), np.zeros(scale.shape, np.int32), axis)
        codes = self.editor.weight(f"{old.name}_quantized", integers, self.graph)
        dequantizer = self._node("DequantizeLinear", codes, params, f"{node.name}_bias")
        node.prepend(dequantizer)
        node.replace_input_with(place, dequantizer.outputs[0])
        discard(old)

    def _quantize_tensor(self, value: ir.Value, tensor: QuantizedTensor, params: IntegerParams) -> None:
        quantized = [tensor.raw]
        if tensor.clip is not None and cuts_off(params, tensor.clip):
            take_over(tensor.clip, tensor.raw)
        elif tensor.clip is not None:
            # On the CPU only an op directly before a quantizer becomes an integer op; elsewhere the Relu goes with it.
            quantized = [tensor.raw, value] if self.options.on_cpu else [value]
        for each in quantized:
            uses = tuple(each.uses())
            for together in [[use] for use in uses] if self.options.dedicated_qdq_pair and uses else [uses]:
                self._let_read(each, together, self._pair(each, params))

    def _pair(self, value: ir.Value, params: IntegerParams, before: ir.Node | None = None) -> ir.Value:
        """``value`` quantized and dequantized, behind where it is computed or ahead of ``before``."""
        quantize = self._node("QuantizeLinear", value, params, str(value.name))
        dequantize = self._node("DequantizeLinear", quantize.outputs[0], params, str(value.name))
        maker = value.producer()
        if before is not None or maker is None:
            (before or self.graph[0]).prepend([quantize, dequantize])
        else:
            maker.append([quantize, dequantize])
        return dequantize.outputs[0]

    def _node(self, op_type: str, value: ir.Value, params: IntegerParams, name: str) -> ir.Node:
        """A node, in no graph yet, that quantizes or dequantizes ``value``, which is called after the tensor ``name``."""
        to_codes = op_type == "QuantizeLinear"
        # The sums that a bias is added to are counted from zero, so that nothing asks for the zero point of one.
        arrays = {"scale": params.scale, "zero_point": params.zero_point}
        constants = [None if a.dtype == np.int32 else self._constant(f"{name}_{what}", a) for what, a in arrays.items()]
        output = ir.Value(name=self.editor.fresh(f"{name}_{'quantized' if to_codes else 'dequantized'}"))
        output.shape = value.shape
        output.type = ir.TensorType(ir.DataType.from_numpy(params.zero_point.dtype) if to_codes else ir.DataType.FLOAT)
        attributes = {} if params.axis is None else {"axis": params.axis}
        node_name = self.editor.fresh(f"{name}_{'Q' if to_codes else 'DQ'}")
        return ir.node(op_type, [value, *constants], attributes, outputs=[output], name=node_name)

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        """A constant of the graph; equal ones are there once."""
        key = array.dtype, array.shape, array.tobytes()
        if key not in self._constants:
            self._constants[key] = self.editor.weight(name, array, self.graph)
        return self._constants[key]

    def _let_read(self, value: ir.Value, uses: Iterable[tuple[ir.Node, int]], new: ir.Value) -> None:
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

    def _weight_params(self, op: QuantizedOp, least_scale: np.ndarray | None = None) -> IntegerParams:
        assert op.scheme.weight is not None
        info, on_cpu = op.info, self.options.on_cpu
        order = sum_order(info) if on_cpu else None
        params = weight_params(array_of(info.weight), op.scheme.weight, info.axis, least_scale, order)
        left = info.weight_index == 0 and info.activations == (1,) and on_cpu
        if left and params.zero_point.dtype == np.int8 and op.activation.dtype.bits == 8:
            return unsigned(params)  # the kernels take a signed right factor only
        return params

    def _replace_constant(self, node: ir.Node, place: int, params: IntegerParams) -> None:
        """Let ``node`` read the constant at ``place`` from integers."""
        value = input_of(node, place)
        key = value, params.scheme, params.axis, params.order, params.scale.tobytes(), params.zero_point.tobytes()
        if key not in self._stored:
            self._stored[key] = self._dequantized(value, params, node)
        node.replace_input_with(place, self._stored[key])
        discard(value)

    def _dequantized(self, value: ir.Value, params: IntegerParams, before: ir.Node) -> ir.Value:
        if self.options.add_qdq_pair_to_weight:
            if params.order is not None:  # the quantizer behind it knows nothing of pairs, and finds the same integers
                floats = params.values(params.codes(array_of(value)))
                value = self.editor.weight(f"{value.name}_rounded", floats, self.graph)
            return self._pair(value, params, before)
        dequantizer = self._node("DequantizeLinear", self._codes(value, params), params, str(value.name))
        before.prepend(dequantizer)
        return dequantizer.outputs[0]

    def _codes(self, value: ir.Value, params: IntegerParams) -> ir.Value:
        return self.editor.weight(f"{value.name}_quantized", params.codes(array_of(value)), self.graph)

    def _look_up(self, op: QuantizedOp) -> None:
        """Look integers up and dequantize what was found, not the table."""
        node, params = op.info.node, self._weight_params(op)
        table, output = input_of(node, 0), node.outputs[0]
        uses = tuple(output.uses())
        key = table, params.scheme, "codes"
        if key not in self._stored:
            self._stored[key] = self._codes(table, params)
        node.replace_input_with(0, self._stored[key])
        discard(table)
        after = params if params.axis is None else replace(params, axis=-1)
        dequantizer = self._node("DequantizeLinear", output, after, str(output.name))
        node.append(dequantizer)
        self._let_read(output, uses, dequantizer.outputs[0])
        output.type = ir.TensorType(self._stored[key].dtype or ir.DataType.INT8)


def shield(editor: GraphEditor) -> None:
    """Keep the float ops of a quantized graph in float.

    The runtime rounds the weight of a float op between a dequantizer and a quantizer to 8 bits with one scale.
    """
    for node in list(editor.model.graph):
        if not standard(node, "QuantizeLinear"):
            continue
        before = producer(node.inputs[0])
        while before is not None and standard(before, *CLIPS):
            before = producer(before.inputs[0])
        if before is not None and standard(before, "Conv", "ConvTranspose", "Gemm"):
            activation, weight = (producer(value, "DequantizeLinear") for value in before.inputs[:2])
            if activation is not None and weight is None:
                (same,) = editor.insert(node, "Sum", [node.inputs[0]])
                node.replace_input_with(0, same)
