"""The executor: a float graph, of Keras layers or of the ops in a LiteRT file, quantized by one plan after another.

A run is: check the plan, change the float graph by passes (smoothing, equalization), observe the tensors that ops read and
give, find the quantized weights one op after another, correct biases, and have the graph make the quantized model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neural_compressor.adaptor.plan_check import check_known, check_no_method, check_weight_range
from neural_compressor.algorithms import LayerResult
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.observers import make_observer
from neural_compressor.schemes import OpScheme, Plan, QParams, choose_qparams
from neural_compressor.tensorflow.float_graph import Calibrate, FloatGraph, QuantizedGraph, Watchers
from neural_compressor.tensorflow.keras_graph import KerasGraph
from neural_compressor.tensorflow.layout import Layout, Site, lay_out
from neural_compressor.tensorflow.litert.file_graph import FileGraph
from neural_compressor.tensorflow.litert.model import LiteModel
from neural_compressor.tensorflow.passes.model_pass import CorrectBiases, read_passes
from neural_compressor.tensorflow.statistics import ChannelMeans, ChannelVariance, LayerInputs
from neural_compressor.tensorflow.weights import check_method, corrected_bias, find_weights, is_corrected, needs_inputs

Codes = dict[str, dict[str, LayerResult]]


@dataclass
class Executor:
    """Runs plans on a Keras model or a LiteRT one, which is left as it is."""

    model: Any
    graph: FloatGraph = field(init=False)
    _seen: dict[Any, dict[Any, Any]] = field(default_factory=dict, init=False)
    _changed: dict[Any, FloatGraph] = field(default_factory=dict, init=False)
    _found: dict[Any, dict[str, LayerResult]] = field(default_factory=dict, init=False)
    _sources: dict[int, object] = field(default_factory=dict, init=False)  # while they are there no other has their id

    def __post_init__(self) -> None:
        self.graph = FileGraph(self.model) if isinstance(self.model, LiteModel) else KerasGraph.of(self.model)

    def run(self, plan: Plan, calibrate: Calibrate | None = None, source: object = None) -> Any:
        """The model quantized as ``plan`` says. What was seen of one ``source`` of data serves later plans."""
        check(plan, self.graph)
        steps = read_passes(plan.passes, self.graph)
        self._sources[id(source)] = source
        data = _Data(calibrate, (id(source), plan.calib_sampling_size))
        graph = self._changed_by(steps, data)
        layout = lay_out(graph, plan)
        correct = next((step for step in steps if isinstance(step, CorrectBiases)), None)
        if correct is not None and correct.required and calibrate is None:
            raise CalibrationError("biases are corrected on data: give a calibration data loader or function")
        corrected = _corrected(graph, plan) if correct is not None and calibrate is not None else {}
        seen = self._observe(graph, layout, corrected, data)
        codes = self._weights(graph, plan, data)
        biases = {
            name: corrected_bias(graph, op, next(iter(codes[name].values())), *(seen[kind, name] for kind in _MEANS))
            for name, op in corrected.items()
        }
        return graph.finish(QuantizedGraph(plan, codes, _ranges(layout, seen), biases, graph, layout.shared))

    def _changed_by(self, steps: Sequence[Any], data: _Data) -> FloatGraph:
        """The float graph as passes change it, each on what it sees of the one before."""
        graph, origin = self.graph, list[Any](data.key)
        for step in steps:
            if not hasattr(step, "change"):
                continue
            origin.append(repr(step))
            if tuple(origin) not in self._changed:
                watched = step.watched(graph)
                if watched:
                    data.run(graph.watch(watched), {t: [each] for t, each in watched.items()}, f"the pass {step}")
                names, fresh = graph.tensor_names(), graph.copy()
                by_name = {name: tensor for tensor, name in fresh.tensor_names().items()}
                seen = {by_name[names[tensor]]: each for tensor, each in watched.items()}
                self._changed[tuple(origin)] = step.change(fresh, seen)
            graph = self._changed[tuple(origin)]
        return graph

    def _observe(
        self, graph: FloatGraph, layout: Layout, corrected: Mapping[str, Any], data: _Data
    ) -> Mapping[Any, Any]:
        """What static ops and corrections must know of tensors; only what is not known yet is looked at."""
        names, kept = graph.tensor_names(), self._seen.setdefault((id(graph), *data.key), {})
        wanted: dict[Any, tuple[list[int], Callable[[], Any]]] = {}
        places: dict[Any, Any] = {}
        for site in layout.sites:
            members = [tensor for tensor, sites in layout.watched.items() if site in sites]
            places[site] = (site, frozenset(names[tensor] for tensor in members))
            wanted[places[site]] = (members, lambda scheme=site.scheme: make_observer(scheme))  # type: ignore[misc]
        for name, op in corrected.items():
            (call,) = graph.calls_of(op)
            wanted[_MEANS[0], name] = ([call.inputs[0]], ChannelMeans)
            wanted[_MEANS[1], name] = ([call.outputs[0]], ChannelVariance)
        fresh = {key: make() for key, (_, make) in wanted.items() if key not in kept}
        watchers: dict[int, list[Any]] = {}
        for key, observer in fresh.items():
            for tensor in wanted[key][0]:
                watchers.setdefault(tensor, []).append(observer)
        if fresh:
            data.run(graph.watch(watchers), watchers, "static quantization")
            kept |= fresh
        return {**kept, **{site: kept[key] for site, key in places.items()}}

    def _weights(self, graph: FloatGraph, plan: Plan, data: _Data) -> Codes:
        """The weights of the ops, in the order they run: those that a method finds on data see it behind those before.

        Ops that read one tensor see the same of it, and are looked at together.
        """
        work, codes, before = graph, Codes(), list[Any]()
        looking = {key for key, scheme in plan.items() if needs_inputs(scheme)}
        statistics: dict[str, LayerInputs] = {}
        if looking:
            work = graph.copy()
            look = work.watch([tensor for key in looking for tensor in _read(work, key)])
        for key, op in work.ops().items():
            scheme = plan.get(key)
            if scheme is None or scheme.weight is None or scheme.weight.dtype.is_float32:
                continue
            name, views = key[0], work.weights(op)
            before.append((key, scheme))
            known = (id(graph), *data.key, *before) if key in looking else None
            if known is None or known not in self._found:
                if known is not None and name not in statistics:
                    alike = [other for other in looking if _read(work, other) == _read(work, key)]
                    statistics |= {other[0]: _inputs(work, other) for other in alike}
                    watchers = {tensor: [statistics[other[0]] for other in alike] for tensor in _read(work, key)}
                    data.run(look, watchers, str(scheme.method))
                found = find_weights(name, views, scheme, statistics.pop(name, None))
                if known is not None:
                    self._found[known] = found
            else:
                found = self._found[known]
            codes[name] = found
            if looking:
                for tensor, result in found.items():
                    views[tensor].assign(np.asarray(result.dequantize()))
        return codes


_MEANS = ("means", "variance")


@dataclass
class _Data:
    """Calibration data, and what it is known by."""

    calibrate: Calibrate | None
    key: tuple[Any, ...]

    def run(self, look: Callable[[Watchers, Calibrate], None], watchers: Watchers, what: str) -> None:
        if self.calibrate is None:
            raise CalibrationError(f"{what} looks at activations: give a calibration data loader or function")
        look(watchers, self.calibrate)


def _corrected(graph: FloatGraph, plan: Plan) -> dict[str, Any]:
    """The ops whose biases are corrected, by name."""
    quantized = ((key, op, plan.get(key)) for key, op in graph.ops().items())
    return {
        key[0]: op
        for key, op, scheme in quantized
        if scheme is not None and scheme.weight is not None and not scheme.is_float and is_corrected(graph, op)
    }


def _read(graph: FloatGraph, key: Any) -> list[int]:
    return [call.inputs[0] for call in graph.calls_of(graph.ops()[key])]


def _inputs(graph: FloatGraph, key: Any) -> LayerInputs:
    vectors = graph.vectors(graph.ops()[key])
    assert not isinstance(vectors, str)
    return LayerInputs(vectors)


def _ranges(layout: Layout, seen: Mapping[Any, Any]) -> dict[str, QParams]:
    found = {}
    for site in layout.sites:
        found[site.name] = _range(site, seen[site])
    return found


def _range(site: Site, observer: Any) -> QParams:
    try:
        low, high = observer.range(site.scheme)
    except CalibrationError as error:
        raise CalibrationError(f"the tensor {site.group!r}: {error}") from None
    return choose_qparams(low, high, site.scheme)


def check(plan: Plan, graph: FloatGraph) -> None:
    """Refuse what the executor does not run, before any work."""
    known, skipped = graph.ops(), graph.skipped()
    for key, scheme in plan.items():
        if scheme.is_float and scheme.precision == "fp32" and key in skipped and key not in known:
            continue
        check_known(key, known)
        _check_op(key, known[key], scheme, graph)


def _check_op(key: tuple[str, str], op: Any, scheme: OpScheme, graph: FloatGraph) -> None:
    check_weight_range(scheme)
    if scheme.mode == "weight_only":
        check_method(key, scheme, graph)
    else:
        check_no_method(key, scheme)
    if why := graph.refusal(op, scheme):
        raise ConfigError(f"op {key[0]!r}: {why}")
    if scheme.weight is not None:
        for tensor, view in graph.weights(op).items():
            if not np.isfinite(view.matrix()).all():
                raise QuantizationError(
                    f"the {tensor} of {key[0]!r} holds NaN or Inf: the model is broken before quantization"
                )
