"""The capability of a model: what each of its nodes can run with on an execution provider, and why others stay in float.

It is the same for ``fit``, ``quantize`` and ``autotune``; what is asked of each node meets it in :mod:`config.resolver`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.config.op_options import op_options
from neural_compressor.config.validators import as_list
from neural_compressor.errors import QuantizationError
from neural_compressor.onnx.graph.blocks import repeated_blocks
from neural_compressor.onnx.graph.matrix_nodes import left_in_float, small_matrices, weight_only_nodes
from neural_compressor.onnx.graph.ops import before_logarithm, quantizable_nodes, unquantizable_nodes
from neural_compressor.onnx.graph.queries import constant
from neural_compressor.onnx.graph.sum_order import adds_in_pairs
from neural_compressor.onnx.methods.dynamic import dynamic_nodes, dynamic_race
from neural_compressor.onnx.passes.store_weights import STORED_TYPES, storable_nodes
from neural_compressor.onnx.runtime.capability import ProviderCapability
from neural_compressor.onnx.runtime.providers import CPU
from neural_compressor.schemes import OpKey, OpScheme

MODES = ("static", "dynamic", "weight_only")
_MATRIX_TYPES = ("MatMul", "Gemm", "Gather")


@dataclass(frozen=True)
class ModelCapability:
    """What the nodes of ``model``, as plans name them, can run with; ``providers`` has one for each mode asked for."""

    model: ir.Model
    providers: Mapping[str, ProviderCapability]

    @cached_property
    def nodes(self) -> dict[OpKey, ir.Node]:
        """All nodes, in the order they run."""
        return {(str(node.name), node.op_type): node for node in self.model.graph.all_nodes()}

    @cached_property
    def refusals(self) -> dict[str, dict[OpKey, str]]:
        """By mode why nodes cannot be quantized in it, whatever the provider has."""
        static, no_static = self._static, unquantizable_nodes(self.model)
        dynamic = dynamic_nodes(self.model)
        matrices, no_matrix = weight_only_nodes(self.model), left_in_float(self.model)
        found: dict[str, dict[OpKey, str]] = {mode: {} for mode in MODES}
        for key in self.nodes:
            if key not in static:
                found["static"][key] = no_static.get(key, f"{key[1]} is not quantized statically")
            if (why := dynamic.get(key, f"{key[1]} is not quantized dynamically")) is not None:
                found["dynamic"][key] = why
            if key[0] not in matrices or key[1] not in _MATRIX_TYPES:
                found["weight_only"][key] = no_matrix.get(key[0], f"{key[1]} has no weight that is quantized by itself")
        return found

    @cached_property
    def opwise(self) -> dict[OpKey, list[dict[str, Any]]]:
        """What each node that can be quantized can run with, in the form of the framework YAML."""
        found = {key: self._configs(key) for key in self.nodes}
        return {key: each for key, each in found.items() if any("quant_mode" in c["activation"] for c in each)}

    @cached_property
    def skipped(self) -> dict[OpKey, str]:
        """Why nodes with weights, or of types that can be quantized, cannot be."""
        types = {kind for each in self._queries for kind in each.quantizable_types()}
        found: dict[OpKey, str] = {}
        for key, node in self.nodes.items():
            if key in self.opwise:
                continue
            refused = [self.refusals[mode].get(key) for mode in self.providers]
            generic = (f"{key[1]} is not quantized", f"{key[1]} has no weight")
            told = [why for why in refused if why and not why.startswith(generic)]
            if key[1] not in types:
                if any(map(_is_weight, node.inputs)):
                    found[key] = f"the framework YAML lists no quantized {key[1]}"
            elif told:
                found[key] = told[0]
            elif None in refused:
                found[key] = f"{self._any.name} runs no {key[1]} of this kind in integers"
        return found

    def in_float_unless_named(
        self, mode: str, keys: Collection[OpKey] | None = None, raced: Mapping[OpKey, OpScheme] | None = None
    ) -> dict[Any, str]:
        """The op types, and the ops of ``keys``, quantized in ``mode`` only where a user names them, with the reason.

        A reason of an op goes before that of its type, and may be empty. ``raced`` are dynamic schemes to race against
        float on this machine; by default those that come first.
        """
        asked = self.opwise if keys is None else keys
        if mode == "weight_only":
            names = {key[0]: key for key in asked if key not in self.refusals[mode]}
            return {names[name]: why for name, why in small_matrices(self.model, names).items()}
        found: dict[Any, str] = {**self.providers[mode].query.in_float_unless_named.get(mode, {})}
        if mode == "dynamic":
            found |= self._raced(self._first_dynamic() if raced is None else raced)
        return found | self.spectra

    def is_inner(self, key: OpKey) -> bool:
        """Whether a node is in the body of an If, Loop or Scan, where nobody sees its inputs."""
        return self.nodes[key].graph is not self.model.graph

    def adds_in_pairs(self) -> dict[str, set[OpKey]]:
        """By mode the nodes whose kernels on a CPU add products in pairs."""
        modes = [m for m in ("static", "dynamic") if m in self.providers and self.providers[m].target.provider is CPU]
        return {mode: {key for key in self.opwise if adds_in_pairs(self.nodes[key], mode)} for mode in modes}

    def check_finite(self) -> None:
        """Refuse weights that are no numbers; only what is quantized, since masks rightly hold infinities."""
        matrices = weight_only_nodes(self.model)
        for value in (*(info.weight for info in self._static.values()), *(m.weight for m in matrices.values())):
            array = constant(value)
            if value is not None and array is not None and not np.isfinite(array.astype(np.float32, copy=False)).all():
                raise QuantizationError(
                    f"the weight {value.name!r} holds NaN or Inf: the model is broken before quantization"
                )

    def blocks(self) -> list[list[OpKey]]:
        """Nodes grouped by the repeated parts of the model that their names tell of, such as ``/layers.3/``."""
        keys = {key[0]: key for key in self.opwise}
        return [[keys[name] for name in names] for names in repeated_blocks(keys).values() if len(names) > 1]

    @property
    def _any(self) -> ProviderCapability:
        return next(iter(self.providers.values()))

    @cached_property
    def _queries(self) -> list[Any]:
        return list({id(each.query): each.query for each in self.providers.values()}.values())

    @cached_property
    def _storable(self) -> dict[OpKey, str | None]:
        return storable_nodes(self.model)

    @cached_property
    def spectra(self) -> dict[OpKey, str]:
        """The nodes that a logarithm reads, with the reason to leave them in float."""
        return before_logarithm(self.model)

    @cached_property
    def _static(self) -> Mapping[OpKey, Any]:
        return quantizable_nodes(self.model)

    def _configs(self, key: OpKey) -> list[dict[str, Any]]:
        info = self._static.get(key)
        stored = self._storable[key] is None and key not in self.spectra if key in self._storable else None
        found: list[dict[str, Any]] = []
        for query in self._queries:
            modes = [m for m, each in self.providers.items() if each.query is query and key not in self.refusals[m]]
            if key[1] not in query.quantizable_types():
                continue
            found += query.node_configs(
                key[1],
                modes,
                has_weight=info.weight is not None if info is not None else True,
                per_channel=info is None or info.axis is not None,
                stored=stored,
            )
        if self.is_inner(key):
            found = [each for config in found if (each := _without_data(config)) is not None]
        return found

    def _first_dynamic(self) -> dict[OpKey, OpScheme]:
        found: dict[OpKey, OpScheme] = {}
        for key in self.opwise:
            options = () if key in self.refusals["dynamic"] else op_options(self.opwise[key])
            able = [each for each in options if each.mode == "dynamic" and each.activation is not None]
            found |= {key: able[0]} if able else {}
        return found

    def _raced(self, schemes: Mapping[OpKey, OpScheme]) -> dict[OpKey, str]:
        """What races on this machine say of ops in place of the fixed reasons: empty where integers are faster."""
        capability = self.providers["dynamic"]
        race = dynamic_race(self.model) if capability.target.provider is CPU and schemes else None
        if race is None:
            return {}
        told = {key: race.reason_for_float(self.nodes[key], scheme) for key, scheme in schemes.items()}
        raced = {key: why for key, why in told.items() if why is not None}
        fixed = capability.query.in_float_unless_named.get("dynamic", {})
        slow = {key for key in schemes if raced.get(key, fixed.get(key[1], ""))}
        # A model that integers make no faster at all is quantized for its size.
        if any(key not in slow or key[1] in STORED_TYPES for key in schemes):
            return raced
        return {key: why for key, why in raced.items() if not why}


def _without_data(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """``config`` less methods that must have seen inputs, which inside an If, Loop or Scan nobody sees; None for nothing."""
    if config["activation"].get("quant_mode") != "weight_only":
        return dict(config)
    listed = [name for name in as_list(config["weight"]["algorithm"]) if name in ALGORITHMS]
    names = [name for name in listed if not ALGORITHMS[name].needs_statistics]
    return {**config, "weight": {**config["weight"], "algorithm": names}} if names else None


def _is_weight(value: ir.Value | None) -> bool:
    tensor = None if value is None else value.const_value
    return tensor is not None and tensor.dtype.is_floating_point() and len(tensor.shape) > 1 and tensor.size > 1
