"""Ranges of tensors, and moments of float outputs, collected in one pass over the data; nothing is kept of a sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import CalibrationError
from neural_compressor.observers import Observer, PercentileObserver, make_observer
from neural_compressor.onnx.graph.queries import Bounds, clip_bounds, producer
from neural_compressor.onnx.runtime.session import feeds, make_session, run_sample
from neural_compressor.schemes import TensorScheme

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
    node = producer(value, "Relu", "Clip")
    clipped = node is not None and clip_bounds(node) == bounds
    return clipped or bounds == (-math.inf, math.inf)


Range = tuple[float, float]

_BY_EXTREMES = ("minmax", "moving_average")
"""Algorithms that need the smallest and largest value only: the runtime finds them and keeps the tensor to itself."""


def calibrate(
    model: ir.Model,
    wanted: Mapping[str, TensorScheme],
    samples: Iterable[Mapping[str, Any]],
    providers: Sequence[str] = ("CPUExecutionProvider",),
    percentile: float = 99.999,
    moments: FloatMoments | None = None,
) -> dict[str, Range]:
    """The range to quantize each tensor of ``wanted`` over, by the algorithm of its scheme, in one pass.

    ``moments`` are taken of the first samples on the way.
    """
    observers = {name: _observer(scheme, percentile) for name, scheme in wanted.items()}
    with _Tap(model, wanted) as tap, moments or nullcontext():
        every = [*tap.outputs, *(() if moments is None else moments.outputs)]
        session = make_session(model, every, providers) if every else None
    for number, sample in enumerate(samples):
        arrays = feeds(model, sample, number)
        results = [] if session is None else run_sample(session, arrays, number)
        for name, values in tap.tensors(arrays, results[: len(tap.outputs)]):
            _observe(observers[name], values, name, number)
        if moments is not None:
            moments.add(results[len(tap.outputs) :])
    return {name: _range(observer, wanted[name], name) for name, observer in observers.items()}


class _Tap:
    """What a session has to give out for the tensors of ``wanted``; inside of its context the model has the nodes."""

    def __init__(self, model: ir.Model, wanted: Mapping[str, TensorScheme]) -> None:
        self.graph = model.graph
        inputs = {str(value.name) for value in model.graph.inputs}
        self.fed = [name for name in wanted if name in inputs]
        extremes = {name for name, scheme in wanted.items() if scheme.algorithm in _BY_EXTREMES}
        self.extremes = [name for name in wanted if name in extremes - inputs]
        self.whole = [name for name in wanted if name not in extremes | inputs]
        values = {value.name: value for node in model.graph for value in node.outputs}
        self.nodes = [
            ir.node(op_type, [values[name]], {"keepdims": 0}, outputs=[ir.Value(name=f"calibration/{name}/{op_type}")])
            for name in self.extremes
            for op_type in ("ReduceMin", "ReduceMax", "ReduceSum")
        ]
        self.outputs = [*(str(node.outputs[0].name) for node in self.nodes), *self.whole]
        self._every_time = np.array([wanted[name].algorithm != "minmax" for name in self.extremes], dtype=bool)
        self._low, self._high = np.full((2, len(self.extremes)), [[np.inf], [-np.inf]], dtype=np.float32)

    def __enter__(self) -> _Tap:
        self.graph.extend(self.nodes)
        return self

    def __exit__(self, *_: object) -> None:
        self.graph.remove(self.nodes, safe=True)

    def tensors(self, arrays: Mapping[str, np.ndarray], results: list[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """Each tensor by name, or as much of it as its range depends on."""
        yield from ((name, arrays[name]) for name in self.fed)
        low, high, total = np.reshape(results[: len(self.nodes)], (-1, 3)).T
        # Most samples have nothing beyond what was seen, and an observer need not be told.
        within = (low >= self._low) & (high <= self._high) & ~np.isnan(total) & ~self._every_time
        for place in np.flatnonzero(~within):
            yield self.extremes[place], _extremes(low[place], high[place], total[place])
        self._low, self._high = np.minimum(low, self._low), np.maximum(high, self._high)
        yield from zip(self.whole, results[len(self.nodes) :], strict=True)


def _observer(scheme: TensorScheme, percentile: float) -> Observer:
    return PercentileObserver(percentile=percentile) if scheme.algorithm == "percentile" else make_observer(scheme)


def _extremes(low: np.ndarray, high: np.ndarray, total: np.ndarray) -> np.ndarray:
    # The runtime's minimum and maximum pass over NaN, its sum does not.
    if np.isnan(total):
        return np.full(1, np.nan, dtype=np.float32)
    # Of no values at all they are inf and -inf.
    return np.stack([low, high]) if low <= high else np.empty(0, dtype=np.float32)


def _observe(observer: Observer, values: np.ndarray, name: str, number: int) -> None:
    try:
        observer.update(values)
    except CalibrationError as error:
        raise CalibrationError(f"tensor {name!r}, sample {number}: {error}") from error


def _range(observer: Observer, scheme: TensorScheme, name: str) -> Range:
    try:
        low, high = observer.range(scheme)
    except CalibrationError as error:
        raise CalibrationError(f"tensor {name!r} was empty in all samples: {error}") from error
    return float(low), float(high)
