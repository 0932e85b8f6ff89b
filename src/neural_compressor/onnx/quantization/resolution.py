"""Resolution of configurations to a plan: what is done to each node of a model, and why others stay in float."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neural_compressor.config.composition import Composition
from neural_compressor.config.op_request import Request, wanting
from neural_compressor.config.resolver import resolve as resolve_requests
from neural_compressor.config.validators import as_list
from neural_compressor.errors import CapabilityError, ConfigError, NothingToQuantizeError
from neural_compressor.onnx.adaptor.capability import ModelCapability
from neural_compressor.onnx.executor import CalibrationData, Executor, RunOptions
from neural_compressor.onnx.graph.matrix_nodes import MatrixNode, weight_only_nodes
from neural_compressor.onnx.graph.sum_order import ANY, for_any_cpu
from neural_compressor.onnx.methods.weight_only.method import needs_data
from neural_compressor.onnx.passes.store_weights import STORED, is_stored, storable_nodes
from neural_compressor.onnx.quantization.config import IntegerConfig, RTNConfig
from neural_compressor.onnx.quantization.plans import find_capability, find_reader, make_plan, optimize_pass
from neural_compressor.onnx.quantization.selection import Selection, select
from neural_compressor.onnx.quantization.source_model import node_types
from neural_compressor.onnx.runtime.capability import ProviderCapability
from neural_compressor.onnx.runtime.data_reader import Samples, rewound
from neural_compressor.onnx.runtime.providers import CPU
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, OpScheme, Plan, float_op

logger = logging.getLogger("neural_compressor")
_SHOWN = 8
_MODES = ("weight_only", "static", "dynamic")


Outcome = OpScheme | CapabilityError | str
"""The scheme of a node, or why it has none."""


@dataclass(frozen=True)
class Resolution:
    """``plan`` is what a configuration does to a model on ``capabilities``; these and the ``readers`` of data are by mode.

    ``left`` says why nodes stay in float, ``slower`` why some of those of the plan compute in float.
    """

    plan: Plan
    capabilities: Mapping[str, ProviderCapability]
    left: Mapping[OpKey, str]
    slower: Mapping[OpKey, str] = field(default_factory=dict)
    readers: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def quantized(self) -> dict[OpKey, OpScheme]:
        """The nodes that the plan does something to."""
        return {key: scheme for key, scheme in self.plan.items() if not scheme.is_float}

    @property
    def stored(self) -> dict[OpKey, str]:
        """The nodes that have their weights stored in integers, and why they compute in float."""
        return {key: self.slower[key] for key, scheme in self.plan.items() if is_stored(key, scheme)}

    @property
    def reasons(self) -> dict[OpKey, str]:
        """Why nodes compute in float."""
        kept = {key: "kept in float" for key, scheme in self.plan.items() if scheme.is_float}
        return {**kept, **self.left, **self.stored}

    def run_options(self, samples: dict[int, Samples]) -> RunOptions:
        """What its plan is run with; ``samples`` keeps those of readers that were asked before."""
        for reader in self.readers.values():
            if id(reader) not in samples:
                rewound(reader)  # it may have been gone over before; one that cannot start anew is taken as it is
                samples[id(reader)] = Samples(reader)
        data = {mode: CalibrationData(samples[id(reader)], reader) for mode, reader in self.readers.items()}
        return RunOptions(self.capabilities, data, self.reasons)


def resolve(
    config: Composition, executor: Executor, level: Any = None, reader: Any = None, graph_only: bool = False
) -> Resolution:
    """What ``config`` does to the nodes of the executor's model, of what their execution provider can run.

    A rule or a name that matches no node, a value that the provider has not, and a configuration that leaves every node
    in float are errors. ``graph_only`` admits providers that do not run here. Nodes that are slower in integers have their
    weights stored in them and compute in float, and matrices too small to matter are not quantized by themselves, unless
    they are named. The same goes for what a logarithm reads. ``reader`` serves configurations without data of their own.
    """
    optimize = optimize_pass(config, level)
    model = executor.float_model([optimize])
    given, now = node_types(executor.source), node_types(model)
    # Rules are about the model as it was given and as it is, so that a node can be named that simplifying takes away.
    selection = select(config, given | {name: kind for name, kind in now.items() if name not in given})
    chosen = {
        mode: {(name, now[name]): each for name, each in selection.of(mode).items() if name in now} for mode in _MODES
    }
    capabilities = {
        mode: find_capability(_distinct(configs.values()), mode, graph_only)
        for mode, configs in chosen.items()
        if configs
    }
    nodes = _Nodes(ModelCapability(model, capabilities), selection)
    for mode in capabilities:
        nodes.resolve(mode, chosen[mode])
    left = {(name, now[name]): why for name, why in selection.left.items() if name in now} | nodes.left
    if not nodes.schemes and not nodes.little:
        raise NothingToQuantizeError(_nothing(left, now))
    if nodes.little:
        quantized = f"{len(nodes.schemes)} nodes are quantized" if nodes.schemes else "nothing is quantized"
        logger.warning("%s, in float stay %s", quantized, _counted(nodes.little))
    able = {kind for mode, capability in capabilities.items() for kind in capability.op_types(mode)}
    told = {key: why for key, why in left.items() if key[1] in able or key[0] in selection.named}
    kept = {(name, now[name]) for name in selection.kept if name in now}
    schemes = {key: float_op() for key in kept} | nodes.schemes
    order = {name: place for place, name in enumerate(now)}
    ops = dict(sorted(schemes.items(), key=lambda item: order[item[0][0]]))
    configs = {
        mode: _distinct(each for key, each in chosen[mode].items() if _computes(key, nodes.schemes))
        for mode in capabilities
    }
    plan = make_plan(ops, optimize, configs, capabilities, selection.named)
    readers = {mode: found for mode, each in configs.items() if (found := find_reader(each, reader)) is not None}
    resolution = Resolution(plan, capabilities, told, nodes.slower, readers, str(config))
    _report(selection.named, resolution)
    return resolution


def _computes(key: OpKey, schemes: Mapping[OpKey, OpScheme]) -> bool:
    return key in schemes and not is_stored(key, schemes[key])


class _Nodes:
    """What becomes of the nodes of a model, mode after mode."""

    def __init__(self, capability: ModelCapability, selection: Selection) -> None:
        self.capability, self.selection = capability, selection
        self.schemes: dict[OpKey, OpScheme] = {}
        self.left: dict[OpKey, str] = {}
        self.little: dict[OpKey, str] = {}
        self.slower: dict[OpKey, str] = {}

    def resolve(self, mode: str, chosen: Mapping[OpKey, Any]) -> None:
        """Find what the nodes ``chosen`` for one mode get, each from its configuration."""
        found = self._fitted(mode, chosen)
        slower, in_float = self._better_in_float(mode, chosen, found)
        self.left |= in_float
        for key, outcome in found.items():
            if key in slower or key in in_float:
                continue
            if isinstance(outcome, CapabilityError):
                raise outcome
            if isinstance(outcome, str):
                self.left[key] = outcome
            else:
                self.schemes[key] = outcome
                if is_stored(key, outcome):
                    self.slower[key] = self.capability.in_float_unless_named(mode, (), {}).get(key[1], "")
        able = storable_nodes(self.capability.model) if slower else {}
        for key, why in slower.items():
            refusal = able.get(key, "its weight is not stored in integers then")
            if refusal is None:
                self.schemes[key], self.slower[key] = OpScheme(STORED, mode=mode), why
            else:
                self.left[key] = f"{why}; {refusal}"
                self.slower[key] = why

    def _better_in_float(
        self, mode: str, chosen: Mapping[OpKey, Any], found: Mapping[OpKey, Outcome]
    ) -> tuple[dict[OpKey, str], dict[OpKey, str]]:
        """Of the nodes that nobody named those that are slower in integers, and those better left as they are."""
        unnamed = [key for key in chosen if key[0] not in self.selection.meant]
        raced = {key: scheme for key in unnamed if isinstance(scheme := found[key], OpScheme)}
        told = self.capability.in_float_unless_named(mode, unnamed, raced)
        reasons = {key: told.get(key, told.get(key[1], "")) for key in unnamed}
        apart = told if mode == "weight_only" else self.capability.spectra
        in_float = {key: why for key, why in reasons.items() if why and key in apart}
        if mode == "weight_only":
            self.little = in_float
        return {key: why for key, why in reasons.items() if why and key not in in_float}, in_float

    def _fitted(self, mode: str, chosen: Mapping[OpKey, Any]) -> dict[OpKey, Outcome]:
        """The scheme that each configuration gets of what the provider has, or why it gets none."""
        found: dict[OpKey, Outcome] = {}
        provider = self.capability.providers[mode].name
        on_cpu = self.capability.providers[mode].target.provider is CPU
        alike: dict[tuple[object, ...], Outcome] = {}
        matrices = weight_only_nodes(self.capability.model) if mode == "weight_only" else {}
        for key, config in chosen.items():
            if why := self.capability.refusals[mode].get(key):
                found[key] = why
                continue
            configs = [c for c in self.capability.opwise.get(key, ()) if c["activation"].get("quant_mode") == mode]
            request = _request(config, configs, matrices.get(key[0]))
            if not configs:
                found[key] = f"{provider} has no {mode} {key[1]}"
            elif mode == "weight_only" and self.capability.is_inner(key) and needs_data(config.op_scheme()):
                found[key] = f"it is in the body of an If, Loop or Scan, where {config.name} cannot see its inputs"
            else:
                like = repr(configs), request
                if like not in alike:
                    alike[like] = _first({"opwise": self.capability.opwise}, key, request)
                outcome = alike[like]
                if isinstance(outcome, OpScheme) and on_cpu and getattr(config, "target_cpu", None) == ANY:
                    outcome = for_any_cpu(self.capability.nodes[key], outcome)
                found[key] = outcome
        if mode == "weight_only":
            _check_ratios(_distinct(chosen.values()), matrices)
            refused = {key: each for key, each in found.items() if isinstance(each, CapabilityError)}
            if refused and any(isinstance(each, OpScheme) for each in found.values()):
                # Where it fits some matrices, those that it does not fit are told of as others that stay in float.
                found |= {key: str(each) for key, each in refused.items()}
        return found


def _first(capability: Mapping[str, Any], key: OpKey, request: Request) -> Outcome:
    """The best that a node can run with, as the request admits."""
    try:
        space = resolve_requests(capability, {key: request})[key]
    except CapabilityError as error:
        return error
    return space.quantized[0] if space.quantized else space.reason


def _request(config: Any, configs: Sequence[Mapping[str, Any]], node: MatrixNode | None) -> Request:
    """What a configuration asks of a node."""
    source = type(config).__name__
    if not isinstance(config, IntegerConfig):
        names = () if node is None else (str(node.weight.name), node.name)
        return wanting(config.op_scheme(names), config.said(), source)
    scheme = config.op_scheme(has_weight=any("weight" in each for each in configs))
    if not any("scheme" in each["activation"] for each in configs):  # what it reads stays in float
        scheme = replace(scheme, activation=None)
    said = config.said()
    if config.per_channel and any(
        "per_channel" in as_list(each["weight"]["granularity"]) for each in configs if "weight" in each
    ):
        said["weight", "granularity"] = "per_channel"  # where the node admits it, it is not given up for anything else
    return wanting(scheme, said, source)


def _check_ratios(configs: Iterable[Any], able: Mapping[str, MatrixNode]) -> None:
    known = [*able, *(str(node.weight.name) for node in able.values())]
    rules = (config for config in configs if isinstance(config, RTNConfig))
    for name in (name for config in rules for name in config.ratios if name not in known):
        raise ConfigError(f"RTNConfig.ratios: no weight or node is called {name!r}; {close_matches(name, known)}")


def _distinct(configs: Iterable[Any]) -> list[Any]:
    return list({id(config): config for config in configs}.values())


def _report(named: Collection[str], resolution: Resolution) -> None:
    """Say why nodes that were asked for by name stay in float, and how many others do."""
    quantized, left, stored = resolution.quantized, resolution.left, resolution.stored
    done, reasons = {name for name, _ in quantized}, {name: why for (name, _), why in left.items()}
    for name in named:
        if name not in done:
            why = reasons.get(name, "simplifying the graph took it away (optimization_level)")
            logger.warning("%s stays in float: %s", name, why)
    told = f"; with weights in int8 compute in float {_counted(stored)}" if stored else ""
    logger.info("%d nodes are quantized%s%s", len(quantized) - len(stored), told, _in_float(left))


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
