"""Corrections of what rounding does: biases by the mean error of each op on data, weights by the spread of their values."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import mean_error
from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.integer_tensors import weight_params
from neural_compressor.onnx.graph.linear_ops import as_linear
from neural_compressor.onnx.graph.queries import (
    array_of,
    constant,
    consumer_bounds,
    is_constant,
    optional_input,
    with_inner,
)
from neural_compressor.onnx.graph.sum_order import sum_order
from neural_compressor.onnx.methods.static.calibration import FloatMoments, Watched, calibrate
from neural_compressor.onnx.methods.static.layout import Layout
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.session import feeds, make_session
from neural_compressor.schemes import PER_TENSOR

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


def correct_weights(editor: GraphEditor, layout: Layout) -> None:
    """Scale the weight of each linear op so that its rounded values spread as the float ones do, channel by channel where
    it has a scale a channel."""
    for op in layout.ops.values():
        info, scheme = op.info, op.scheme.weight
        if scheme is None or as_linear(info.node) is None:
            continue
        weight = array_of(info.weight)
        params = weight_params(weight, scheme, info.axis, order=sum_order(info))
        axis = None if scheme.granularity == PER_TENSOR else info.axis
        spread = _spread(weight, params.values(params.codes(weight)), axis)
        editor.set_constant(info.node, 1, weight * spread)


def _spread(weight: np.ndarray, rounded: np.ndarray, axis: int | None) -> np.ndarray:
    """How much further the values of ``weight`` lie apart than those of ``rounded``, along ``axis`` each place alone."""
    others = tuple(i for i in range(weight.ndim) if i != axis)
    wanted, found = (np.std(array, axis=others, keepdims=True, dtype=np.float64) for array in (weight, rounded))
    ratio = np.divide(wanted, found, out=np.ones_like(found), where=(found > 0) & (wanted > 0))
    return np.asarray(ratio, dtype=np.float32)


class BiasCorrection:
    """Made of a float graph, and applied to the same graph once its activations and weights are integers.

    Ops are corrected in the order they run, each behind those before it as they are by then: what these could not make
    up for is in the mean it sees.
    """

    def __init__(self, model: ir.Model, moments: FloatMoments, samples: Samples, providers: Sequence[str]) -> None:
        self.model, self.providers = model, providers
        self.bounds = {node: bounds for node, (_, bounds) in moments.watched.items()}
        self._feeds, self._exact = [], {}
        if not self.bounds:
            return
        self._feeds = [feeds(model, sample, number) for number, sample in enumerate(islice(samples, SAMPLES))]
        if len(self._feeds) < FEWEST_SAMPLES:
            raise CalibrationError(f"correcting biases takes {FEWEST_SAMPLES} samples; there are {len(self._feeds)}")
        if not moments.is_taken:
            calibrate(model, {}, self._feeds, providers, moments=moments)
        self._exact = moments.by_node()

    def apply(self, editor: GraphEditor) -> None:
        """Change the biases of ``editor.model``, which have to be floats."""
        if not self.bounds:
            return
        walk, corrected = GraphWalk(self.model, self._feeds, self.providers, BYTES), 0
        for node in self.bounds:
            arrays = walk.run_to(node)
            exact, variance = self._exact[node]
            axes = (0, *range(2, arrays[0].ndim))
            means = np.stack([np.clip(array, *self.bounds[node]).mean(axis=axes) for array in arrays])
            both = min(len(means), len(exact))
            excess = np.asarray(mean_error(means[:both] - exact[:both], variance))
            if not excess.any() or both < FEWEST_SAMPLES or arrays[0][0, 0].size < _FEWEST_POSITIONS:
                continue
            corrected += 1
            by_channel = excess.reshape([-1, *[1] * (arrays[0].ndim - 2)])
            walk.replace(node.outputs[0], [array - by_channel for array in arrays])
            old = constant(optional_input(node, 2))
            editor.set_constant(node, 2, (0 if old is None else old) - excess)
        logger.info("biases corrected by the mean error on data: %d of %d", corrected, len(self.bounds))


def watch(model: ir.Model, layout: Layout) -> FloatMoments:
    """What has to be known of the ops of a float graph that are corrected once they compute in integers.

    What none behind an op sees of it does not count: behind a Relu it may be most of a tensor.
    """
    tensors = {tensor.raw: tensor for tensor in layout.tensors.values()}
    watched: dict[ir.Node, Watched] = {}
    for node in (node for node in model.graph if node in layout.ops and node.op_type in _CORRECTED):
        output = node.outputs[0]
        watched[node] = output, (-np.inf, np.inf)
        if output in tensors:
            source = tensors[output].source
            (low, high), (least, most) = consumer_bounds(output), consumer_bounds(source)
            watched[node] = source, (max(low, least), min(high, most))
    return FloatMoments(watched, SAMPLES)


class GraphWalk:
    """Each node runs once a sample, in the order of the graph; what no node ahead reads is let go.

    Where that keeps more than ``limit`` bytes, the samples that come last are given up; the first never is.
    """

    def __init__(
        self, model: ir.Model, samples: Sequence[Mapping[str, np.ndarray]], providers: Sequence[str], limit: float = inf
    ) -> None:
        self.model, self.providers, self.limit = model, providers, limit
        self._ahead = list(reversed(model.graph))
        self._last_read = {value: place for place, node in enumerate(model.graph) for value in _inputs(node)}
        self._done = 0
        self._held = deque({value: sample[str(value.name)] for value in model.graph.inputs} for sample in samples)

    def run_to(self, node: ir.Node) -> list[np.ndarray]:
        """What ``node``, which must be ahead, gives as its first output for each sample."""
        part = [self._ahead.pop()]
        while part[-1] is not node:
            part.append(self._ahead.pop())
        self._done += len(part)
        try:
            return self._run(part)
        except Exception as error:  # the runtime's errors share no base class but this
            raise CalibrationError(f"the part of the model up to {node.name!r} does not run alone: {error}") from error

    def _run(self, part: Sequence[ir.Node]) -> list[np.ndarray]:
        node = part[-1]
        read = dict.fromkeys(_inputs(*part))
        inputs = [value for value in read if value in self._held[0]]
        outputs = [v for each in part for v in each.outputs if self._is_needed(v) or v is node.outputs[0]]
        constants = [value for value in read if is_constant(value) and value.producer() is None]
        for value in inputs:
            if value.type is None:
                value.type = ir.TensorType(ir.DataType.from_numpy(self._held[0][value].dtype))
        # A view of the nodes where they are, which is all that writing them takes.
        imports = self.model.graph.opset_imports
        graph: Any = ir.GraphView(
            inputs, outputs, nodes=part, initializers=constants, opset_imports=imports, name="part"
        )
        alone = ir.Model(graph, ir_version=self.model.ir_version or 10)
        session = make_session(alone, providers=self.providers, level="basic")
        results: list[np.ndarray] = []
        kept: list[dict[ir.Value, np.ndarray]] = []
        room = self.limit
        while self._held and (room > 0 or not kept):
            held = self._held.popleft()
            found = session.run(None, {str(value.name): held[value] for value in inputs})
            now = held | dict(zip(outputs, found, strict=True))
            results.append(now[node.outputs[0]])
            kept.append({value: array for value, array in now.items() if self._is_needed(value)})
            room -= sum(array.nbytes for array in kept[-1].values())
        self._held = deque(kept)
        return results

    def replace(self, value: ir.Value, arrays: Sequence[np.ndarray]) -> None:
        """Let the nodes ahead read ``arrays`` for ``value``, one a sample that is left."""
        for held, array in zip(self._held, arrays, strict=True):
            if value in held:
                held[value] = array

    def _is_needed(self, value: ir.Value) -> bool:
        return self._last_read.get(value, -1) >= self._done


def _inputs(*nodes: ir.Node) -> Iterator[ir.Value]:
    """What ``nodes`` read, also inside of branches and loops."""
    return (value for node in with_inner(*nodes) for value in node.inputs if value is not None)
