"""What ops give in float, as moments by channel, found in the pass over the data that collects ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.graph import standard
from neural_compressor.onnx.graph.value_bounds import Bounds, clip_bounds

Watched = tuple[ir.Value, Bounds]
"""A tensor, and the bounds its values are kept within before they count."""


class FloatMoments:
    """Moments of the tensors ``watched``, on the first ``count`` samples; inside of its context the graph has the nodes."""

    def __init__(self, graph: ir.Graph, watched: Mapping[ir.Node, Watched], count: int) -> None:
        self.graph, self.watched, self.count = graph, watched, count
        self.outputs: list[str] = []
        self._nodes: list[ir.Node] = []
        self._limits: dict[float, ir.Value] = {}
        self._rows: list[list[tuple[np.ndarray, float]]] = []

    def __enter__(self) -> FloatMoments:
        self.outputs, self._nodes, self._limits = [], [], {}
        for value, bounds in self.watched.values():
            kept = value if _is_within(value, bounds) else self._clip(value, bounds)
            taps = self._add("GlobalAveragePool", [kept]), self._add("ReduceSumSquare", [kept], keepdims=0)
            self.outputs += [str(tap.name) for tap in (*taps, self._add("Size", [kept]))]
        return self

    def __exit__(self, *_: object) -> None:
        self.graph.remove(self._nodes, safe=True)

    @property
    def is_taken(self) -> bool:
        """Whether there was a pass over the data."""
        return bool(self._rows)

    def add(self, results: Sequence[np.ndarray]) -> None:
        """Take what a session gave as ``outputs`` for the next sample; nothing where there were enough."""
        if len(self._rows) == self.count:
            return
        means = [array.reshape(array.shape[:2]).mean(axis=0) for array in results[::3]]
        squares = [
            squares / size * len(mean) for mean, squares, size in zip(means, results[1::3], results[2::3], strict=True)
        ]
        self._rows.append(list(zip(means, squares, strict=True)))

    def by_node(self) -> dict[ir.Node, tuple[np.ndarray, np.ndarray]]:
        """Of each tensor the mean by channel, one row a sample, and the variance over all of them, summed over channels."""
        found: dict[ir.Node, tuple[np.ndarray, np.ndarray]] = {}
        for node, column in zip(self.watched, zip(*self._rows, strict=True), strict=True):
            means = np.stack([mean for mean, _ in column])
            variance = np.mean([square for _, square in column]) - np.sum(means.mean(axis=0) ** 2)
            found[node] = means, np.asarray(variance)
        return found

    def _clip(self, value: ir.Value, bounds: Bounds) -> ir.Value:
        for bound in bounds:
            if bound not in self._limits:
                self._limits[bound] = self._add("Constant", [], value=ir.Tensor(np.array(bound, dtype=np.float32)))
        return self._add("Clip", [value, *(self._limits[bound] for bound in bounds)])

    def _add(self, op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
        output = ir.Value(name=f"moments/{len(self._nodes)}")
        self._nodes.append(ir.node(op_type, inputs, attributes, outputs=[output]))
        self.graph.append(self._nodes[-1])
        return output


def _is_within(value: ir.Value, bounds: Bounds) -> bool:
    """Whether ``value`` is known to keep within ``bounds``."""
    node = value.producer()
    clipped = node is not None and standard(node, "Relu", "Clip") and clip_bounds(node) == bounds
    return clipped or bounds == (-math.inf, math.inf)
