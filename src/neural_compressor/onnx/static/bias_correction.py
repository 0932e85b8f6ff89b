"""What the ops of a quantized graph give too much on average, measured on data and taken out of their biases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import mean_error
from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.data_reader import Samples
from neural_compressor.onnx.feeds import feeds
from neural_compressor.onnx.graph import constant
from neural_compressor.onnx.graph_editor import GraphEditor
from neural_compressor.onnx.session import make_session
from neural_compressor.onnx.static.graph_walk import GraphWalk
from neural_compressor.onnx.static.layout import Layout
from neural_compressor.onnx.static.qdq import ParamsOf

logger = logging.getLogger("neural_compressor")

SAMPLES = 12
"""How many are looked at: all are in memory at once, as far as the ops ahead need what was computed for them."""
FEWEST_SAMPLES = 4
"""With fewer there is no telling whether a mean error is one of these samples alone."""
BYTES = 2**28
"""What samples may take while they wait for the ops ahead; those that come last are dropped where it is too little."""
_CORRECTED = ("Conv", "ConvTranspose")
"""They have many values a sample to take a mean over. Correcting the products of a transformer gained nothing."""
_FEWEST_POSITIONS = 16
"""Where a channel has fewer values a sample (gates of squeeze and excitation) means are chance, and correction a loss."""


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
            for node in model.graph
            if node in layout.ops and node.op_type in _CORRECTED
        }
        self._feeds, self._exact = [], {}
        if not self.limits:
            return
        self._feeds = [feeds(model, sample, number) for number, sample in enumerate(islice(samples, SAMPLES))]
        if len(self._feeds) < FEWEST_SAMPLES:
            raise CalibrationError(f"correcting biases takes {FEWEST_SAMPLES} samples; there are {len(self._feeds)}")
        self._exact = dict(zip(self.limits, self._moments(), strict=True))

    def apply(self, editor: GraphEditor) -> None:
        """Change the biases of ``editor.model``, which have to be floats."""
        if not self.limits:
            return
        walk, corrected = GraphWalk(self.model, self._feeds, self.providers, BYTES), 0
        for node in self.limits:
            arrays = walk.run_to(node)
            exact, variance = self._exact[node]
            means = self._means(node, arrays)
            both = min(len(means), len(exact))
            excess = np.asarray(mean_error(means[:both] - exact[:both], variance))
            if not excess.any() or both < FEWEST_SAMPLES or arrays[0][0, 0].size < _FEWEST_POSITIONS:
                continue
            corrected += 1
            walk.replace(node.outputs[0], [array - _by_channel(excess, array.ndim) for array in arrays])
            old = constant(node.inputs[2]) if len(node.inputs) > 2 else None
            editor.set_constant(node, 2, (0 if old is None else old) - excess)
        logger.info("biases corrected by the mean error on data: %d of %d", corrected, len(self.limits))

    def _moments(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of what each op gives in float the mean by channel, one row a sample, and the variance over all of them."""
        taps = []
        with _added(self.model.graph) as add:
            for node, limits in self.limits.items():
                bounds = (add("Constant", [], value=ir.tensor(np.float32(limit))) for limit in limits)
                kept = add("Clip", [node.outputs[0], *bounds])
                taps += [add("GlobalAveragePool", [each]) for each in (kept, add("Mul", [kept, kept]))]
            session = make_session(self.model, [str(tap.name) for tap in taps], self.providers)
        rows = [
            [array.reshape(array.shape[:2]).mean(axis=0) for array in session.run(None, feed)] for feed in self._feeds
        ]
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
        return [
            (mean, square.mean(axis=0) - mean.mean(axis=0) ** 2)
            for mean, square in zip(columns[::2], columns[1::2], strict=True)
        ]

    def _means(self, node: ir.Node, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The mean by channel of what ``node`` gives, one row a sample."""
        axes = (0, *range(2, arrays[0].ndim))
        return np.stack([np.clip(array, *self.limits[node]).mean(axis=axes) for array in arrays])


@contextmanager
def _added(graph: ir.Graph) -> Iterator[Callable[..., ir.Value]]:
    """Gives a function that adds a node to the end of ``graph``; they are taken away again."""
    nodes: list[ir.Node] = []

    def add(op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        nodes.append(ir.node(op_type, inputs, attributes, outputs=[ir.Value(name=f"correction/{len(nodes)}")]))
        graph.append(nodes[-1])
        return nodes[-1].outputs[0]

    try:
        yield add
    finally:
        graph.remove(nodes, safe=True)


def _by_channel(vector: np.ndarray, rank: int) -> np.ndarray:
    return vector.reshape([-1, *[1] * (rank - 2)])
