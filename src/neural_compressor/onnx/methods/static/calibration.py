"""Calibration: ranges of tensors, and moments of float outputs, from one pass over the data; scales and zero points of them.

Nothing is kept of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import CalibrationError
from neural_compressor.observers import PercentileObserver, make_observer
from neural_compressor.onnx.graph.integer_tensors import IntegerParams, activation_params, cuts_off
from neural_compressor.onnx.graph.queries import Bounds, clip_bounds, consumer_bounds, errors_at, producer
from neural_compressor.onnx.methods.static.layout import Layout
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.session import feeds, make_session, run_sample
from neural_compressor.schemes import TensorScheme

Watched = tuple[ir.Value, Bounds]
"""A tensor, and the bounds its values are kept within before they count."""
_MOMENTS: dict[str, dict[str, int]] = {"GlobalAveragePool": {}, "ReduceSumSquare": {"keepdims": 0}, "Size": {}}


class FloatMoments:
    """Moments of the tensors ``watched``, on the first ``count`` samples."""

    def __init__(self, watched: Mapping[ir.Node, Watched], count: int) -> None:
        self.watched, self.count = watched, count
        self._rows: list[list[tuple[np.ndarray, float]]] = []

    def nodes(self) -> list[ir.Node]:
        """New nodes that compute three outputs of each tensor: means by channel, the sum of squares and the size."""
        nodes: list[ir.Node] = []

        def add(op_type: str, inputs: Sequence[ir.Value], **attributes: Any) -> ir.Value:
            output = ir.Value(name=f"moments/{len(nodes)}")
            nodes.append(ir.node(op_type, inputs, attributes, outputs=[output]))
            return output

        for value, bounds in self.watched.values():
            kept, before = value, producer(value, "Relu", "Clip")
            keeps_within = before is not None and clip_bounds(before) == bounds
            if not keeps_within and bounds != (-math.inf, math.inf):
                limits = [add("Constant", [], value=ir.Tensor(np.array(bound, np.float32))) for bound in bounds]
                kept = add("Clip", [value, *limits])
            for op_type, attributes in _MOMENTS.items():
                add(op_type, [kept], **attributes)
        return nodes

    @property
    def is_taken(self) -> bool:
        """Whether there was a pass over the data."""
        return bool(self._rows)

    def add(self, results: Sequence[np.ndarray]) -> None:
        """Take what the nodes gave for the next sample; nothing where there were enough."""
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
    observers = {name: make_observer(scheme) for name, scheme in wanted.items()}
    by_share = [name for name, scheme in wanted.items() if scheme.algorithm == "percentile"]
    observers |= {name: PercentileObserver(percentile=percentile) for name in by_share}
    tap, extra = _Tap(model, wanted), [] if moments is None else moments.nodes()
    outputs = [*tap.outputs, *(str(node.outputs[0].name) for node in extra if node.op_type in _MOMENTS)]
    nodes = [*tap.nodes, *extra]
    model.graph.extend(nodes)
    try:
        session = make_session(model, outputs, providers) if outputs else None
    finally:
        model.graph.remove(nodes, safe=True)
    for number, sample in enumerate(samples):
        arrays = feeds(model, sample, number)
        results = [] if session is None else run_sample(session, arrays, number)
        for name, values in tap.tensors(arrays, results[: len(tap.outputs)]):
            with errors_at(f"tensor {name!r}, sample {number}"):
                observers[name].update(values)
        if moments is not None:
            moments.add(results[len(tap.outputs) :])
    ranges: dict[str, Range] = {}
    for name, observer in observers.items():
        with errors_at(f"tensor {name!r} was empty in all samples"):
            low, high = observer.range(wanted[name])
        ranges[name] = float(low), float(high)
    return ranges


class _Tap:
    """What a session has to give out for the tensors of ``wanted``, and the ``nodes`` that compute it."""

    def __init__(self, model: ir.Model, wanted: Mapping[str, TensorScheme]) -> None:
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

    def tensors(self, arrays: Mapping[str, np.ndarray], results: list[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
        """Each tensor by name, or as much of it as its range depends on."""
        yield from ((name, arrays[name]) for name in self.fed)
        low, high, total = np.reshape(results[: len(self.nodes)], (-1, 3)).T
        # Most samples have nothing beyond what was seen, and an observer need not be told.
        within = (low >= self._low) & (high <= self._high) & ~np.isnan(total) & ~self._every_time
        for place in np.flatnonzero(~within):
            # The runtime's minimum and maximum pass over NaN, its sum does not. Of no values at all they are inf and -inf.
            ends = [low[place], high[place]] if low[place] <= high[place] else []
            yield self.extremes[place], np.asarray([np.nan] if np.isnan(total[place]) else ends, dtype=np.float32)
        self._low, self._high = np.minimum(low, self._low), np.maximum(high, self._high)
        yield from zip(self.whole, results[len(self.nodes) :], strict=True)


KnownRanges = MutableMapping[tuple[str, object], Range]
"""Ranges collected for earlier plans, on the same model and data."""
_BY_DTYPE = ("kl", "entropy", "mse")
"""Algorithms whose range depends on the data type."""


def tensor_params(
    model: ir.Model,
    layout: Layout,
    samples: Samples | None,
    options: StaticOptions,
    known: KnownRanges | None,
    moments: FloatMoments | None = None,
) -> dict[tuple[ir.Value, TensorScheme], IntegerParams]:
    """By tensor and scheme; what ``known`` lacks is collected on ``samples`` and added to it.

    Where ``known`` is given, so is what plans with fewer integer ops may need. If there is a pass, it takes ``moments``.
    """
    wanted = dict.fromkeys(_wanted(layout))
    collected: KnownRanges = {} if known is None else known
    missing = [each for each in wanted if _key(*each) not in collected]
    if missing and known is not None:
        missing += [each for each in layout.candidates if _key(*each) not in collected]
    while missing:  # one pass over the data, and one more for tensors that ops with different schemes read
        if samples is None:
            raise CalibrationError(
                f"static quantization needs calibration data for the ranges of {len(missing)} tensors; "
                "give a CalibrationDataReader"
            )
        now = {str(value.name): scheme for value, scheme in missing}
        ranges = calibrate(model, now, samples, options.providers, options.percentile, moments)
        collected.update({_key(v, s): ranges[str(v.name)] for v, s in missing if now[str(v.name)] == s})
        missing = [each for each in missing if _key(*each) not in collected]
        moments = None
    params = {}
    for value, scheme in wanted:
        low, high = np.clip(collected[_key(value, scheme)], *consumer_bounds(value))
        params[value, scheme] = activation_params(float(low), float(high), scheme)
    for value, tensor in layout.tensors.items():
        if _is_softmax(value):
            params[value, tensor.scheme] = activation_params(0.0, 1.0, tensor.scheme)
    _share(layout, params)
    return params


def _wanted(layout: Layout) -> Iterator[tuple[ir.Value, TensorScheme]]:
    for tensor in layout.tensors.values():
        yield tensor.source, tensor.scheme
    for op in layout.ops.values():
        for value in op.reads.values():
            yield layout.source(value, op.activation), op.activation


def _key(value: ir.Value, scheme: TensorScheme) -> tuple[str, object]:
    return str(value.name), scheme if scheme.algorithm in _BY_DTYPE else scheme.algorithm


def _share(layout: Layout, params: dict[tuple[ir.Value, TensorScheme], IntegerParams]) -> None:
    """Give what only a Concat reads the scale of its result, so that it need not convert."""
    for node, op in reversed(list(layout.ops.items())):
        given = [tensor for tensor in layout.tensors.values() if tensor.raw is node.outputs[0]]
        if node.op_type != "Concat" or not given:
            continue
        shared = params[given[0].source, given[0].scheme]
        for value in op.reads.values():
            own = layout.tensors.get(value)
            alone = len(value.uses()) == 1 and not value.is_graph_output()
            if not alone or layout.source(value, op.activation) is not value:
                continue
            # A Relu that the quantizer does the work of is worth more than a shared scale.
            if own is None or not (_is_softmax(value) or (own.clip and not cuts_off(shared, own.clip))):
                params[value, op.activation] = shared


def _is_softmax(value: ir.Value) -> bool:
    """The integer Softmax does not cut off what is beyond its range, so that has to hold all there can be."""
    return producer(value, "Softmax") is not None
