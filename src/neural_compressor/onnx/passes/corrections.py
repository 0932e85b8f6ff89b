"""Weights and biases moved so that what rounding does to a layer cancels out on average."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import bias_correction
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.integer_tensors import weight_params
from neural_compressor.onnx.graph.linear_ops import LinearOp, as_linear
from neural_compressor.onnx.graph.ops import quantizable_nodes
from neural_compressor.onnx.graph.queries import constant, standard
from neural_compressor.onnx.graph.sum_order import SumOrder, sum_order
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.session import feeds, make_session
from neural_compressor.schemes import PER_TENSOR, Plan, TensorScheme

logger = logging.getLogger("neural_compressor")


@dataclass(frozen=True)
class Corrections:
    """``weight``: each channel of a rounded weight gets the spread of the float one. ``bias``: each output gets its mean
    back, as far as that of the inputs tells it."""

    bias: bool = False
    weight: bool = False

    def __bool__(self) -> bool:
        return self.bias or self.weight


def corrected(
    model: ir.Model, plan: Plan, samples: Samples, corrections: Corrections, providers: Sequence[str]
) -> ir.Model:
    """A float model that, quantized statically as ``plan`` says, is ``model`` so quantized and corrected.

    Products of two activations, and those with the weight on the left, have nothing to correct.
    """
    new = model.clone()
    editor = GraphEditor(new)
    layers = _layers(new, plan)
    means = _mean_inputs(new, layers, samples, providers) if corrections.bias else {}
    for layer in layers:
        original = layer.op.weight
        if corrections.weight:
            layer.set_weight(editor, original * _spread(original, layer.rounded(original), layer.own_axis))
        if corrections.bias:
            layer.shift(editor, _shift(layer, original, means[layer.source]))
    logger.info("%d layers were corrected for what rounding their weights does", len(layers))
    return new


@dataclass(frozen=True)
class _Layer:
    """A layer whose weight is rounded as ``scheme`` says, with a scale for each place along ``axis`` where it says so."""

    op: LinearOp
    scheme: TensorScheme
    axis: int | None
    order: SumOrder | None

    @property
    def own_axis(self) -> int | None:
        """The axis along which each place has a scale of its own."""
        return None if self.scheme.granularity == PER_TENSOR else self.axis

    @property
    def source(self) -> tuple[str, int]:
        """The value it reads, and where that has its channels."""
        return str(self.op.input.name), self.op.axis

    def by_group(self, array: np.ndarray) -> np.ndarray:
        """An array shaped as the weight as (groups, outputs, inputs), with what an input meets in all places added up."""
        if self.op.axis == 1:
            groups = self.op.node.attributes.get_int("group", 1)
            taps = array.reshape(groups, -1, array.shape[1], math.prod(array.shape[2:]))
            return np.asarray(taps.sum(axis=-1))
        return (array.T if self.op.outputs == 1 else array)[None]

    def rounded(self, weight: np.ndarray) -> np.ndarray:
        """What becomes of a weight."""
        params = weight_params(weight, self.scheme, self.axis, order=self.order)
        return params.values(params.codes(weight))

    def set_weight(self, editor: GraphEditor, weight: np.ndarray) -> None:
        """Give the layer a weight of its own."""
        editor.set_constant(self.op.node, 1, weight)

    def shift(self, editor: GraphEditor, by: np.ndarray) -> None:
        """Add to the outputs of the layer, in its bias or in the addition behind it."""
        node = self.op.node
        if node.op_type != "MatMul":
            old = constant(node.inputs[2]) if len(node.inputs) > 2 else None
            editor.set_constant(node, 2, by if old is None else old + by)
            return
        consumers = tuple(node.outputs[0].uses())
        consumer = consumers[0].node if len(consumers) == 1 and not node.outputs[0].is_graph_output() else None
        if consumer is not None and standard(consumer, "Add"):
            place = 1 - consumers[0].idx
            if (summand := constant(consumer.inputs[place])) is not None and summand.ndim <= 1:
                editor.set_constant(consumer, place, summand + by)
                return
        _add_behind(editor, node, by)


def _layers(model: ir.Model, plan: Plan) -> list[_Layer]:
    nodes = quantizable_nodes(model)
    found = []
    for key, scheme in plan.items():
        op = as_linear(nodes[key].node) if key in nodes and scheme.mode == "static" else None
        if op is not None and scheme.weight is not None:
            found.append(_Layer(op, scheme.weight, nodes[key].axis, sum_order(nodes[key])))
    return found


def _mean_inputs(
    model: ir.Model, layers: Sequence[_Layer], samples: Samples, providers: Sequence[str]
) -> dict[tuple[str, int], np.ndarray]:
    """The mean of each channel of what reaches the layers of the float model, by value and axis; nothing else is kept."""
    wanted = dict.fromkeys(layer.source for layer in layers)
    given = {value.name for value in model.graph.inputs}
    computed = list(dict.fromkeys(name for name, _ in wanted if name not in given))
    session = make_session(model, outputs=computed, providers=providers) if computed else None
    sums: dict[tuple[str, int], np.ndarray] = {}
    counts: dict[tuple[str, int], int] = {}
    for number, sample in enumerate(samples):
        values = feeds(model, sample, number)
        if session is not None:
            values |= dict(zip(computed, session.run(None, values), strict=True))
        for source in wanted:
            vectors = np.moveaxis(values[source[0]], source[1], -1)
            total = vectors.sum(axis=tuple(range(vectors.ndim - 1)), dtype=np.float64)
            sums[source] = sums.get(source, 0.0) + total
            counts[source] = counts.get(source, 0) + vectors.size // max(vectors.shape[-1], 1)
    return {source: sums[source] / max(counts[source], 1) for source in wanted}


def _spread(weight: np.ndarray, rounded: np.ndarray, axis: int | None) -> np.ndarray:
    """How much further the values of ``weight`` lie apart than those of ``rounded``, along ``axis`` each place alone."""
    others = tuple(i for i in range(weight.ndim) if i != axis)
    wanted, found = (np.std(array, axis=others, keepdims=True, dtype=np.float64) for array in (weight, rounded))
    ratio = np.divide(wanted, found, out=np.ones_like(found), where=(found > 0) & (wanted > 0))
    return np.asarray(ratio, dtype=np.float32)


def _shift(layer: _Layer, original: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """What the outputs of a layer lack on average. Padding is taken to have the mean of the rest."""
    exact, rounded = (layer.by_group(array) for array in (original, layer.rounded(layer.op.weight)))
    groups = mean.astype(np.float32).reshape(len(exact), -1)
    parts = [np.asarray(bias_correction(w, a, m)) for w, a, m in zip(exact, rounded, groups, strict=True)]
    return np.concatenate(parts)


def _add_behind(editor: GraphEditor, node: ir.Node, by: np.ndarray) -> None:
    output, graph = node.outputs[0], node.graph
    assert isinstance(graph, ir.Graph)
    added = ir.node(
        "Add", [output, editor.weight(f"{node.name}_bias", by, graph)], name=editor.fresh(f"{node.name}_correction")
    )
    new = added.outputs[0]
    new.type, new.shape = output.type, output.shape
    output.replace_all_uses_with(new, replace_graph_outputs=True)
    added.replace_input_with(0, output)
    new.name, output.name = output.name, editor.fresh(f"{output.name}_uncorrected")
    node.append(added)
