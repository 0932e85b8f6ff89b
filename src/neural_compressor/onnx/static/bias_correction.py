"""What the ops of a quantized graph give too much on average, measured on data and taken out of their biases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import mean_error
from neural_compressor.onnx.data_reader import Samples
from neural_compressor.onnx.feeds import feeds
from neural_compressor.onnx.graph import constant
from neural_compressor.onnx.graph_editor import GraphEditor
from neural_compressor.onnx.static.graph_walk import GraphWalk
from neural_compressor.onnx.static.layout import Layout
from neural_compressor.onnx.static.qdq import ParamsOf

SAMPLES = 16
"""How many are looked at: all are in memory at once, as far as the ops ahead need what was computed for them."""
_CORRECTED = ("Conv", "ConvTranspose", "Gemm")
"""They have their bias as the third input. A MatMul has none; correcting the Add behind it gained a transformer nothing."""


class BiasCorrection:
    """Made of a float graph, and applied to the same graph once its activations and weights are integers.

    Ops are corrected in the order they run, each behind those before it as they are by then: what these could not make
    up for is in the mean it sees.
    """

    def __init__(
        self, model: ir.Model, layout: Layout, params_of: ParamsOf, samples: Samples, providers: Sequence[str]
    ) -> None:
        self.model, self.providers = model, providers
        # What a quantizer cuts off does not count: behind a Relu it may be most of a tensor.
        cuts = {home.raw: params_of[home.source, home.scheme].limits for home in layout.homes.values()}
        self.limits = {
            node: cuts.get(node.outputs[0], (-np.inf, np.inf))
            for node, op in layout.ops.items()
            if op.info.weight_index is not None and node.op_type in _CORRECTED and _share(node)
        }
        self._feeds = [feeds(model, sample, number) for number, sample in enumerate(islice(samples, SAMPLES))]
        walk = GraphWalk(model, self._feeds, providers)
        self._exact = {node: self._moments(node, walk.run_to(node)) for node in self._in_order()}

    def apply(self, editor: GraphEditor) -> None:
        """Change the biases of ``editor.model``, which have to be floats."""
        walk = GraphWalk(self.model, self._feeds, self.providers)
        for node in self._in_order():
            arrays = walk.run_to(node)
            exact, variance = self._exact[node]
            errors = self._moments(node, arrays)[0] - exact
            excess = np.asarray(mean_error(errors, variance))
            if not excess.any():
                continue
            walk.replace(node.outputs[0], [array - _by_channel(node, excess, array.ndim) for array in arrays])
            old = constant(node.inputs[2]) if len(node.inputs) > 2 else None
            editor.set_constant(node, 2, (0 if old is None else old) - excess / _share(node))

    def _in_order(self) -> list[ir.Node]:
        return [node for node in self.model.graph if node in self.limits]

    def _moments(self, node: ir.Node, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The mean of each channel of what ``node`` gives, one row a sample, and the variance over all of them."""
        means, squares = [], []
        for array in arrays:
            by_channel = np.moveaxis(array, _channel_axis(node, array.ndim), 0)
            kept = np.clip(by_channel.reshape(len(by_channel), -1), *self.limits[node])
            means.append(kept.mean(axis=1))
            squares.append(np.einsum("ij,ij->i", kept, kept) / kept.shape[1])
        return np.stack(means), np.mean(squares, axis=0) - np.mean(means, axis=0) ** 2


def _share(node: ir.Node) -> float:
    """How much of a bias gets into the result."""
    return node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0


def _channel_axis(node: ir.Node, rank: int) -> int:
    return rank - 1 if node.op_type == "Gemm" else 1


def _by_channel(node: ir.Node, vector: np.ndarray, rank: int) -> np.ndarray:
    axis = _channel_axis(node, rank)
    return vector.reshape([-1 if i == axis else 1 for i in range(rank)])
