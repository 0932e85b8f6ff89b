"""The executor: a float Keras model, traced and folded once, quantized by one plan after another.

A run is: check the plan, change the float graph by passes (smoothing, equalization), observe the tensors that ops read and
give, find the quantized weights, correct biases, and copy the graph with quantizers in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from neural_compressor.adaptor.capability import check_no_method, check_weight_range
from neural_compressor.algorithms import LayerResult
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.observers import make_observer
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpScheme, Plan, QParams, choose_qparams
from neural_compressor.tensorflow.layers import FakeQuant, QuantizeDequantize
from neural_compressor.tensorflow.layout import Layout, Site, lay_out, tensor_names
from neural_compressor.tensorflow.passes.model_pass import CorrectBiases, read_passes
from neural_compressor.tensorflow.statistics import ChannelMeans, ChannelVariance, LayerInputs
from neural_compressor.tensorflow.structure.ops import Graph, bias_of, weights_of
from neural_compressor.tensorflow.structure.simplify import copy_of, simplify
from neural_compressor.tensorflow.structure.trace import rebuild
from neural_compressor.tensorflow.weights import check_method, corrected_bias, find_weights, is_corrected, needs_inputs

Calibrate = Callable[[Any], None]
"""Runs calibration data through the model it is given."""


@dataclass(frozen=True)
class QuantizedGraph:
    """What a quantized Keras model is made of; the model has it as its attribute ``quantization``.

    ``codes`` are the weights by op and tensor, ``ranges`` the scale and zero point of each site by name, ``biases`` those
    that were corrected. ``graph`` is the float graph that was quantized: as simplified, and changed by passes.
    """

    plan: Plan
    codes: Mapping[str, Mapping[str, LayerResult]]
    ranges: Mapping[str, QParams]
    biases: Mapping[str, Any] = field(default_factory=dict)
    graph: Graph | None = None


@dataclass
class Executor:
    """Runs plans on a Keras model, which is left as it is."""

    model: Any
    graph: Graph = field(init=False)
    _seen: dict[Any, dict[Any, Any]] = field(default_factory=dict, init=False)
    _changed: dict[Any, Graph] = field(default_factory=dict, init=False)
    _sources: dict[int, object] = field(default_factory=dict, init=False)  # while they are there no other has their id

    def __post_init__(self) -> None:
        self.graph = simplify(self.model)

    def run(self, plan: Plan, calibrate: Calibrate | None = None, source: object = None) -> Any:
        """The model quantized as ``plan`` says. What was seen of one ``source`` of data serves later plans."""
        check(plan, self.graph)
        steps = read_passes(plan.passes)
        self._sources[id(source)] = source
        data = _Data(calibrate, (id(source), plan.calib_sampling_size))
        graph = self._changed_by(steps, plan, data)
        layout = lay_out(graph, plan)
        correct = next((step for step in steps if isinstance(step, CorrectBiases)), None)
        if correct is not None and correct.required and calibrate is None:
            raise CalibrationError("biases are corrected on data: give a calibration data loader or function")
        with_biases = correct is not None and calibrate is not None
        seen = self._observe(graph, layout, plan, data, with_biases)
        codes: dict[str, dict[str, LayerResult]] = {}
        biases: dict[str, Any] = {}
        for key, op in graph.ops().items():
            scheme = plan.get(key)
            if scheme is None or scheme.weight is None or scheme.weight.dtype.is_float32:
                continue
            codes[key[0]] = find_weights(op, scheme, seen.inputs.get(key[0]))
            if key[0] in seen.means and is_corrected(op):
                biases[key[0]] = corrected_bias(op, codes[key[0]]["kernel"], *seen.means[key[0]])
        return build(graph, QuantizedGraph(plan, codes, seen.ranges(layout), biases, graph))

    def _changed_by(self, steps: Sequence[Any], plan: Plan, data: _Data) -> Graph:
        """The float graph as passes change it, each on what it sees of the one before."""
        graph, origin = self.graph, list[Any](data.key)
        for step in steps:
            if not hasattr(step, "change"):
                continue
            origin.append(repr(step))
            if tuple(origin) not in self._changed:
                watched = step.watched(graph)
                if watched:
                    data.run(observed(graph, {tensor: [each] for tensor, each in watched.items()}), f"the pass {step}")
                names = tensor_names(graph)
                fresh = Graph(copied(graph))
                by_name = {name: tensor for tensor, name in tensor_names(fresh).items()}
                seen = {by_name[names[tensor]]: each for tensor, each in watched.items()}
                self._changed[tuple(origin)] = step.change(fresh, seen)
            graph = self._changed[tuple(origin)]
        return graph

    def _observe(self, graph: Graph, layout: Layout, plan: Plan, data: _Data, with_biases: bool) -> _Seen:
        """What static ops, methods and corrections must know of tensors; only what is not known yet is looked at."""
        names, kept = tensor_names(graph), self._seen.setdefault((id(graph), *data.key), {})
        wanted: dict[Any, tuple[list[int], Callable[[], Any]]] = {}
        seen = _Seen(kept)
        for site in layout.sites:
            members = [tensor for tensor, sites in layout.watched.items() if site in sites]
            key = seen.sites[site] = (site, frozenset(names[tensor] for tensor in members))
            wanted[key] = (members, lambda scheme=site.scheme: make_observer(scheme))  # type: ignore[misc]
        for (name, kind), scheme in plan.items():
            op = graph.ops().get((name, kind))
            nodes = [] if op is None else graph.calls(op)
            if needs_inputs(scheme):
                wanted["inputs", name] = ([id(n.input_tensors[0]) for n in nodes], lambda op=op: LayerInputs(op))  # type: ignore[misc]
            if (
                with_biases
                and len(nodes) == 1
                and scheme.weight is not None
                and not scheme.is_float
                and is_corrected(op)
            ):
                wanted["means", name] = ([id(nodes[0].input_tensors[0])], ChannelMeans)
                wanted["variance", name] = ([id(nodes[0].outputs[0])], ChannelVariance)
        fresh = {key: make() for key, (_, make) in wanted.items() if key not in kept}
        watchers: dict[int, list[Any]] = {}
        for key, observer in fresh.items():
            for tensor in wanted[key][0]:
                watchers.setdefault(tensor, []).append(observer)
        if fresh:
            data.run(observed(graph, watchers), "static quantization")
            kept |= fresh
        for key in wanted:
            if key[0] == "inputs":
                seen.inputs[key[1]] = kept[key]
            elif key[0] == "means":
                seen.means[key[1]] = (kept[key], kept["variance", key[1]])
        return seen


@dataclass
class _Data:
    """Calibration data, and what it is known by."""

    calibrate: Calibrate | None
    key: tuple[Any, ...]

    def run(self, model: Any, what: str) -> None:
        if self.calibrate is None:
            raise CalibrationError(f"{what} looks at activations: give a calibration data loader or function")
        self.calibrate(model)


@dataclass
class _Seen:
    """What was seen of tensors: by site, and by op."""

    kept: Mapping[Any, Any]
    sites: dict[Site, Any] = field(default_factory=dict)
    inputs: dict[str, LayerInputs] = field(default_factory=dict)
    means: dict[str, tuple[ChannelMeans, ChannelVariance]] = field(default_factory=dict)

    def ranges(self, layout: Layout) -> dict[str, QParams]:
        found = {}
        for site in layout.sites:
            try:
                low, high = self.kept[self.sites[site]].range(site.scheme)
            except CalibrationError as error:
                raise CalibrationError(f"the tensor {site.group!r}: {error}") from None
            found[site.name] = choose_qparams(low, high, site.scheme)
        return found


def check(plan: Plan, graph: Graph) -> None:
    """Refuse what the executor does not run, before any work."""
    known, skipped = graph.ops(), graph.skipped()
    for key, scheme in plan.items():
        if key not in known and not (scheme.is_float and key in skipped):
            names = [name for name, kind in known if kind == key[1]] or [name for name, _ in known]
            raise ConfigError(
                f"the plan names {key[0]!r} ({key[1]}), which the model does not have; {close_matches(key[0], names)}"
            )
        check_weight_range(scheme)
        if scheme.mode == "weight_only" and key in known:
            check_method(key, scheme, known[key])
        else:
            check_no_method(key, scheme)
        if scheme.weight is not None and key in known:
            for tensor, view in weights_of(known[key]).items():
                if not np.isfinite(view.matrix()).all():
                    raise QuantizationError(
                        f"the {tensor} of {key[0]!r} holds NaN or Inf: the model is broken before quantization"
                    )


def copied(graph: Graph) -> Any:
    """The model of a graph with layers of its own."""
    copies: dict[int, Any] = {}
    return rebuild(
        graph.model,
        lambda node, args, kwargs: copies.setdefault(id(node.operation), copy_of(node.operation))(*args, **kwargs),
    )


def observed(graph: Graph, watchers: Mapping[int, Sequence[Any]]) -> Any:
    """The float model with a FakeQuant on each tensor (by identity) that something watches."""
    names, copies = tensor_names(graph), dict[int, Any]()

    def call(node: Any, args: Any, kwargs: Any) -> Any:
        return copies.setdefault(id(node.operation), copy_of(node.operation))(*args, **kwargs)

    def mark(old: Any, new: Any) -> Any:
        if id(old) not in watchers:
            return new
        return FakeQuant(tuple(watchers[id(old)]), name=f"{names[id(old)]}.fake_quant")(new)

    return rebuild(graph.model, call, mark)


def build(graph: Graph, parts: QuantizedGraph) -> Any:
    """The model with quantizers in place and weights rounded."""
    plan = parts.plan
    layout = lay_out(graph, plan)
    by_name: dict[str, OpScheme] = {name: scheme for (name, _), scheme in plan.items()}
    copies: dict[int, Any] = {}
    quantizers: dict[tuple[int, Any], Any] = {}
    already: dict[int, Site] = {}

    def quantized(new: Any, site: Site) -> Any:
        if already.get(id(new)) == site:
            return new
        key = (id(new), site)
        if key not in quantizers:
            name = _free(f"{site.name}.qdq", quantizers.values())
            quantizers[key] = QuantizeDequantize(site.scheme, parts.ranges[site.name], name=name)(new)
        return quantizers[key]

    def momentary(new: Any, scheme: Any, op: Any) -> Any:
        """A quantizer without a calibrated range: ranges of each batch, or a 16-bit float type."""
        key = (id(new), scheme)
        if key not in quantizers:
            qparams = QParams(None) if scheme.is_float else None
            name = _free(f"{op.name}.{scheme.dtype.name}.qdq", quantizers.values())
            quantizers[key] = QuantizeDequantize(scheme, qparams, name=name)(new)
        return quantizers[key]

    def call(node: Any, args: Any, kwargs: Any) -> Any:
        op = node.operation
        if id(op) not in copies:
            copies[id(op)] = copy_of(op)
            for tensor, codes in parts.codes.get(op.name, {}).items():
                weights_of(copies[id(op)])[tensor].assign(np.asarray(codes.dequantize()))
            if op.name in parts.biases:
                bias_of(copies[id(op)]).assign(parts.biases[op.name])
        scheme = by_name.get(op.name)
        if scheme is not None and scheme.activation is not None and not scheme.activation.dtype.is_float32:
            swapped = {}
            new_tensors = [t for t in keras.tree.flatten((args, kwargs)) if isinstance(t, keras.KerasTensor)]
            for old, new in zip(node.input_tensors, new_tensors, strict=True):
                if not str(old.dtype).startswith("float"):
                    continue
                site = layout.before.get((id(node), id(old)))
                swapped[id(new)] = quantized(new, site) if site else momentary(new, scheme.activation, op)
            args, kwargs = keras.tree.map_structure(lambda t: swapped.get(id(t), t), (args, kwargs))
        return copies[id(op)](*args, **kwargs)

    def mark(old: Any, new: Any) -> Any:
        site = layout.behind.get(id(old))
        if site is None:
            return new
        out = quantized(new, site)
        already[id(out)] = site
        return out

    model = rebuild(graph.model, call, mark)
    model.quantization = parts
    return model


def _free(name: str, made: Any) -> str:
    """``name``, numbered where another quantizer has it."""
    taken = {tensor._keras_history.operation.name for tensor in made}
    number, found = 0, name
    while found in taken:
        number += 1
        found = f"{name}{number}"
    return found
