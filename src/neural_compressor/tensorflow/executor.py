"""The executor: a float Keras model, traced and folded once, quantized by one plan after another.

A run is: check the plan, observe the tensors that static ops read and give, copy the graph with quantizers in place and
weights rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from neural_compressor.adaptor.capability import check_no_method, check_weight_range
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.observers import Observer, make_observer
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpScheme, Plan, QParams, QuantizedArray, choose_qparams, quantize
from neural_compressor.tensorflow.layers import FakeQuant, QuantizeDequantize
from neural_compressor.tensorflow.layout import Layout, Site, lay_out, tensor_names
from neural_compressor.tensorflow.structure.ops import Graph, weights_of
from neural_compressor.tensorflow.structure.simplify import copy_of, simplify
from neural_compressor.tensorflow.structure.trace import rebuild

Calibrate = Callable[[Any], None]
"""Runs calibration data through the model it is given."""


@dataclass(frozen=True)
class QuantizedGraph:
    """What a quantized Keras model is made of; the model has it as its attribute ``quantization``.

    ``codes`` are the weights by op and tensor, ``ranges`` the scale and zero point of each site by name.
    """

    plan: Plan
    codes: Mapping[str, Mapping[str, QuantizedArray]]
    ranges: Mapping[str, QParams]


@dataclass
class Executor:
    """Runs plans on a Keras model, which is left as it is."""

    model: Any
    graph: Graph = field(init=False)
    _seen: dict[Any, dict[Any, Observer]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.graph = simplify(self.model)

    def run(self, plan: Plan, calibrate: Calibrate | None = None, source: object = None) -> Any:
        """The model quantized as ``plan`` says. What was seen of one ``source`` of data serves later plans."""
        check(plan, self.graph)
        layout = lay_out(self.graph, plan)
        ranges = self._ranges(layout, plan, calibrate, source)
        codes = {
            key[0]: {tensor: quantize(view.matrix(), scheme.weight) for tensor, view in weights_of(op).items()}
            for key, op in self.graph.ops().items()
            if (scheme := plan.get(key)) is not None
            and scheme.weight is not None
            and not scheme.weight.dtype.is_float32
        }
        return build(self.graph, QuantizedGraph(plan, codes, ranges))

    def _ranges(self, layout: Layout, plan: Plan, calibrate: Calibrate | None, source: object) -> dict[str, QParams]:
        if not layout.sites:
            return {}
        names = tensor_names(self.graph)
        members: dict[Site, set[str]] = {}
        for tensor, sites in layout.watched.items():
            for site in sites:
                members.setdefault(site, set()).add(names[tensor])
        seen = self._seen.setdefault((id(source), plan.calib_sampling_size), {})
        keys = {site: (site, frozenset(members.get(site, ()))) for site in layout.sites}
        fresh = {site: make_observer(site.scheme) for site in layout.sites if keys[site] not in seen}
        if fresh:
            if calibrate is None:
                raise CalibrationError(
                    "static quantization takes ranges from data: give a calibration data loader or function"
                )
            calibrate(observed(self.graph, layout, fresh))
            seen |= {keys[site]: observer for site, observer in fresh.items()}
        found = {}
        for site in layout.sites:
            try:
                low, high = seen[keys[site]].range(site.scheme)
            except CalibrationError as error:
                raise CalibrationError(f"the tensor {site.group!r}: {error}") from None
            found[site.name] = choose_qparams(low, high, site.scheme)
        return found


def check(plan: Plan, graph: Graph) -> None:
    """Refuse what the executor does not run, before any work."""
    known = graph.ops()
    for key, scheme in plan.items():
        if key not in known and not (scheme.is_float and key in graph.skipped()):
            names = [name for name, kind in known if kind == key[1]] or [name for name, _ in known]
            raise ConfigError(
                f"the plan names {key[0]!r} ({key[1]}), which the model does not have; {close_matches(key[0], names)}"
            )
        check_weight_range(scheme)
        check_no_method(key, scheme)
        if scheme.weight is not None and key in known:
            for tensor, view in weights_of(known[key]).items():
                if not np.isfinite(view.matrix()).all():
                    raise QuantizationError(
                        f"the {tensor} of {key[0]!r} holds NaN or Inf: the model is broken before quantization"
                    )
    for step in plan.passes:
        raise ConfigError(f"no pass over Keras models is called {step.name!r}")


def observed(graph: Graph, layout: Layout, observers: Mapping[Site, Observer]) -> Any:
    """The float model with a FakeQuant on each tensor that takes part in a range."""
    names, copies = tensor_names(graph), dict[int, Any]()

    def call(node: Any, args: Any, kwargs: Any) -> Any:
        return copies.setdefault(id(node.operation), copy_of(node.operation))(*args, **kwargs)

    def mark(old: Any, new: Any) -> Any:
        sites = [site for site in layout.watched.get(id(old), ()) if site in observers]
        if not sites:
            return new
        return FakeQuant(tuple(observers[site] for site in sites), name=f"{names[id(old)]}.fake_quant")(new)

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
