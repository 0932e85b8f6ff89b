"""Resolution of a configuration: what is done to each node of a model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.log_spectra import before_logarithm
from neural_compressor.onnx.graph.matrix_nodes import MatrixNode, left_in_float, small_matrices, weight_only_nodes
from neural_compressor.onnx.graph.ops import quantizable_nodes, unquantizable_nodes
from neural_compressor.onnx.graph.sum_order import ANY, for_any_cpu
from neural_compressor.onnx.methods.dynamic.dynamic_race import dynamic_race
from neural_compressor.onnx.methods.dynamic.quantizer import dynamic_nodes
from neural_compressor.onnx.methods.weight_only.job import WeightJob
from neural_compressor.onnx.passes.store_weights import STORED, STORED_TYPES, is_stored, storable_nodes
from neural_compressor.onnx.quantization.config import RTNConfig
from neural_compressor.onnx.quantization.fitting import fit, unfit_weight
from neural_compressor.onnx.quantization.prepared import Prepared, node_types
from neural_compressor.onnx.quantization.provider_capability import ProviderCapability, find_capability
from neural_compressor.onnx.quantization.selection import select
from neural_compressor.onnx.runtime.providers import CPU
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, OpScheme

logger = logging.getLogger("neural_compressor")
_SHOWN = 8


class NothingToQuantizeError(ConfigError):
    """A configuration that leaves every node of a model in float."""


@dataclass(frozen=True)
class NodeWork:
    """How a node is quantized, and the configuration that says so. ``job`` is there where its weight alone is."""

    scheme: OpScheme
    config: Any
    job: WeightJob | None = None


@dataclass(frozen=True)
class Resolution:
    """What is done to each node, what for (by approach), and why other nodes stay in float.

    ``kept`` are nodes that the user has in float, so that they do not even pass integers on; ``named`` are those asked for
    by name, quantized even where that does not pay; ``slower`` says of the others why integers would not.
    """

    work: Mapping[OpKey, NodeWork]
    left: Mapping[OpKey, str]
    capabilities: Mapping[str, ProviderCapability]
    kept: frozenset[OpKey] = frozenset()
    named: frozenset[str] = frozenset()
    slower: Mapping[OpKey, str] = field(default_factory=dict)

    def of(self, approach: str) -> dict[OpKey, NodeWork]:
        """The nodes quantized statically, dynamically, or in their weights alone; not those whose weights are stored."""
        found = {key: work for key, work in self.work.items() if work.scheme.mode == approach}
        return {key: work for key, work in found.items() if not is_stored(key, work.scheme)}

    @property
    def stored(self) -> dict[OpKey, str]:
        """The nodes that have their weights stored in integers, and why they compute in float."""
        schemes = {key: work.scheme for key, work in self.work.items() if is_stored(key, work.scheme)}
        return {
            key: self.slower.get(key) or self.capabilities[scheme.mode].reason_for_float(key[1], scheme.mode)
            for key, scheme in schemes.items()
        }

    def configs(self, approach: str) -> list[Any]:
        """The configurations of these nodes."""
        return _distinct(work.config for work in self.of(approach).values())

    def without(self, keys: Collection[OpKey]) -> Resolution:
        """The same with some nodes in float."""
        work = {key: work for key, work in self.work.items() if key not in keys}
        return replace(self, work=work, kept=self.kept | set(keys))


def resolve(config: Composition, prepared: Prepared, graph_only: bool = False) -> Resolution:
    """What ``config`` does to the nodes of a model, of what their execution provider can run.

    A rule or a name that matches no node, a value that the provider has not, and a configuration that leaves every node
    in float are errors. ``graph_only`` admits providers that do not run here. Nodes that are slower in integers have their
    weights stored in them and compute in float, and matrices too small to matter are not quantized by themselves, unless
    they are named. The same goes for what a logarithm reads.
    """
    selection = select(config, prepared.kinds)
    now = node_types(prepared.model)
    left: dict[OpKey, str] = {(name, now[name]): why for name, why in selection.left.items() if name in now}
    work: dict[OpKey, NodeWork] = {}
    capabilities: dict[str, ProviderCapability] = {}
    little: dict[OpKey, str] = {}
    all_slower: dict[OpKey, str] = {}
    spectra = before_logarithm(prepared.model)
    for approach, examine in _APPROACHES.items():
        chosen = {(name, now[name]): each for name, each in selection.of(approach).items() if name in now}
        if not chosen:
            continue
        capability = capabilities[approach] = find_capability(_distinct(chosen.values()), approach, graph_only)
        unnamed = {name: (name, kind) for name, kind in chosen if name not in selection.meant}
        slower = _slower(prepared.model, {key: chosen[key] for key in unnamed.values()}, capability, approach)
        in_float = {key: why for key, why in spectra.items() if key in unnamed.values() and approach != "weight_only"}
        left |= in_float
        if approach == "weight_only":
            little = {unnamed[name]: why for name, why in small_matrices(prepared.model, unnamed).items()}
        left |= little
        slower = {key: why for key, why in slower.items() if key not in in_float}
        apart = slower.keys() | little.keys() | in_float.keys()
        examined = {key: each for key, each in chosen.items() if key not in apart}
        found = examine(prepared.model, examined, capability)
        found |= _stored(prepared.model, {key: chosen[key] for key in slower}, slower)
        all_slower |= slower
        for key, outcome in found.items():
            if isinstance(outcome, str):
                left[key] = outcome
            else:
                work[key] = outcome
    if not work and not little:
        raise NothingToQuantizeError(_nothing(left, now))
    if little:
        quantized = f"{len(work)} nodes are quantized" if work else "nothing is quantized"
        logger.warning("%s, in float stay %s", quantized, _counted(little))
    able = {kind for approach, capability in capabilities.items() for kind in capability.op_types(approach)}
    told = {key: why for key, why in left.items() if key[1] in able or key[0] in selection.named}
    order = {name: place for place, name in enumerate(now)}
    in_order = dict(sorted(work.items(), key=lambda item: order[item[0][0]]))
    kept = frozenset((name, now[name]) for name in selection.kept if name in now)
    resolution = Resolution(in_order, told, capabilities, kept, selection.named, all_slower)
    _report(selection.named, resolution)
    return resolution


def _distinct(configs: Iterable[Any]) -> list[Any]:
    return list({id(config): config for config in configs}.values())


Outcome = NodeWork | str
Chosen = Mapping[OpKey, Any]


def _static(model: ir.Model, chosen: Chosen, capability: ProviderCapability) -> dict[OpKey, Outcome]:
    able, reasons = quantizable_nodes(model), unquantizable_nodes(model)
    found: dict[OpKey, Outcome] = {}
    alike: dict[tuple[object, ...], Outcome] = {}
    for key, config in chosen.items():
        if key not in able:
            found[key] = reasons.get(key, f"{key[1]} is not quantized statically")
            continue
        has_weight, per_channel = able[key].weight is not None, able[key].axis is not None
        like = id(config), key[1], has_weight, per_channel
        if like not in alike:
            options = capability.options(key[1], "static", has_weight=has_weight, per_channel=per_channel)
            alike[like] = _fitted(config, options, key, capability.provider)
        found[key] = _for_target(alike[like], able[key].node, capability)
    return found


def _dynamic(model: ir.Model, chosen: Chosen, capability: ProviderCapability) -> dict[OpKey, Outcome]:
    able = dynamic_nodes(model)
    nodes = {(str(node.name), node.op_type): node for node in model.graph.all_nodes()}
    found: dict[OpKey, Outcome] = {}
    for key, config in chosen.items():
        if (why := able.get(key, f"{key[1]} is not quantized dynamically")) is not None:
            found[key] = why
            continue
        outcome = _fitted(config, capability.options(key[1], "dynamic"), key, capability.provider)
        found[key] = _for_target(outcome, nodes[key], capability)
    return found


def _for_target(outcome: Outcome, node: ir.Node, capability: ProviderCapability) -> Outcome:
    """The same work with a weight that gives the same on all the CPUs it is for."""
    if isinstance(outcome, str) or capability.target.provider is not CPU or outcome.config.target_cpu != ANY:
        return outcome
    return replace(outcome, scheme=for_any_cpu(node, outcome.scheme))


def _slower(model: ir.Model, unnamed: Chosen, capability: ProviderCapability, approach: str) -> dict[OpKey, str]:
    """The nodes that are faster in float, and why: by a race on this machine, or else as the capability has it."""
    found = {key: why for key in unnamed if (why := capability.reason_for_float(key[1], approach))}
    race = dynamic_race(model) if approach == "dynamic" and capability.target.provider is CPU else None
    if race is None:
        return found
    nodes = {(str(node.name), node.op_type): node for node in model.graph.all_nodes()}
    able = {key: work for key, work in _dynamic(model, unnamed, capability).items() if not isinstance(work, str)}
    raced = {key: race.reason_for_float(nodes[key], work.scheme) for key, work in able.items()}
    fast = {key for key, told in raced.items() if told == ""}
    found = {key: why for key, why in found.items() if key not in fast}
    slow = found | {key: told for key, told in raced.items() if told}
    # A model that integers make no faster at all is quantized for its size.
    return slow if any(key not in slow or key[1] in STORED_TYPES for key in able) else found


def _stored(model: ir.Model, slower: Chosen, reasons: Mapping[OpKey, str]) -> dict[OpKey, Outcome]:
    """Weights in integers where that is done, for nodes that compute in float for ``reasons``."""
    able = storable_nodes(model) if slower else {}
    found: dict[OpKey, Outcome] = {}
    for key, config in slower.items():
        refusal = able.get(key, "its weight is not stored in integers then")
        work = NodeWork(OpScheme(STORED, mode=config.approach), config)
        found[key] = work if refusal is None else f"{reasons[key]}; {refusal}"
    return found


def _fitted(config: Any, options: Any, key: OpKey, provider: str) -> Outcome:
    scheme = fit(config, options, key[1], provider)
    return f"{provider} has no {config.approach} {key[1]}" if scheme is None else NodeWork(scheme, config)


def _weight_only(model: ir.Model, chosen: Chosen, capability: ProviderCapability) -> dict[OpKey, Outcome]:
    able, reasons = weight_only_nodes(model), left_in_float(model)
    found: dict[OpKey, Outcome] = {}
    for key, config in chosen.items():
        name, kind = key
        if name not in able:
            found[key] = reasons.get(name, f"{kind} has no weight that is quantized by itself")
            continue
        job = WeightJob(config.name, config.weight_scheme(), _options(config, able[name]))
        if able[name].node.graph is not model.graph and job.needs_data:
            found[key] = f"it is in the body of an If, Loop or Scan, where {config.name} cannot see its inputs"
        elif why := unfit_weight(job.scheme, capability.options(kind, "weight_only"), kind, capability.provider):
            found[key] = why
        else:
            found[key] = NodeWork(OpScheme(weight=job.scheme, mode="weight_only"), config, job)
    _check_ratios([config for config in _distinct(chosen.values()) if isinstance(config, RTNConfig)], able)
    return found


def _options(config: Any, node: MatrixNode) -> dict[str, Any]:
    own = ALGORITHMS[config.name].options_model.names(executor=False)
    options = {name: value for name, value in config.method().options.items() if name in own}
    ratios = getattr(config, "ratios", {})
    ratio = ratios.get(node.name, ratios.get(str(node.weight.name)))
    return options if ratio is None else {**options, "ratio": ratio}


def _check_ratios(configs: Collection[RTNConfig], able: Mapping[str, MatrixNode]) -> None:
    known = [*able, *(str(node.weight.name) for node in able.values())]
    for name in (name for config in configs for name in config.ratios if name not in known):
        raise ConfigError(f"RTNConfig.ratios: no weight or node is called {name!r}; {close_matches(name, known)}")


_APPROACHES: Mapping[str, Callable[[ir.Model, Chosen, ProviderCapability], dict[OpKey, Outcome]]] = {
    "weight_only": _weight_only,
    "static": _static,
    "dynamic": _dynamic,
}


def _report(named: Collection[str], resolution: Resolution) -> None:
    """Say why nodes that were asked for by name stay in float, and how many others do."""
    work, left, stored = resolution.work, resolution.left, resolution.stored
    done, reasons = {name for name, _ in work}, {name: why for (name, _), why in left.items()}
    for name in named:
        if name not in done:
            why = reasons.get(name, "simplifying the graph took it away (optimization_level)")
            logger.warning("%s stays in float: %s", name, why)
    told = f"; with weights in int8 compute in float {_counted(stored)}" if stored else ""
    logger.info("%d nodes are quantized%s%s", len(work) - len(stored), told, _in_float(left))


def _nothing(left: Mapping[OpKey, str], now: Mapping[str, str]) -> str:
    kinds = ", ".join(sorted(set(now.values()))) or "none"
    return f"nothing in the model would be quantized; it has nodes of the types {kinds}{_in_float(left)}"


def _in_float(left: Mapping[OpKey, str]) -> str:
    """The nodes left in float, as the end of a sentence."""
    return f"; in float stay {_counted(left)}" if left else ""


def _counted(reasons: Mapping[OpKey, str]) -> str:
    """Nodes by type and reason."""
    counts = Counter(f"{kind} ({why})" for (_, kind), why in reasons.items())
    return "; ".join(f"{count} {reason}" for reason, count in counts.most_common(_SHOWN))
