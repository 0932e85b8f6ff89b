"""The capability of an execution provider: what the framework YAML lists, and what of it a node of a model admits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

import neural_compressor.adaptor
from neural_compressor.adaptor.capability import FLOAT_PRECISIONS, op_configs
from neural_compressor.adaptor.framework_yaml import read_entries
from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.runtime.providers import Target

YAML = Path(neural_compressor.adaptor.__file__).with_name("onnxrt.yaml")
IN_FLOAT_UNLESS_NAMED = "in_float_unless_named"
"""What an entry of the YAML calls the op types that are slower in integers, and compute in float."""


class OnnxQuery(QueryBackendCapability):
    """Reads ``adaptor/onnxrt.yaml`` for a provider and a form of quantized model, with a user's file laid over it."""

    def __init__(self, provider: str, quant_format: str | None = None, overlay: str | Path | None = None) -> None:
        super().__init__(YAML, ort.__version__, overlay=overlay, backend=provider, quant_format=quant_format)
        self.provider = provider

    def known_op_types(self) -> Collection[str]:
        entries = read_entries(self.path)
        listed = [types for entry in entries for types in entry.op_types.values()]
        able = [types for entry in entries for modes in entry.capabilities.values() for types in modes.values()]
        return {schema.name for schema in onnx.defs.get_all_schemas()}.union(*listed, *able)

    @property
    def quant_format(self) -> str:
        """The form of quantized model the entry speaks of."""
        return self.entry.formats[0]

    @property
    def in_float_unless_named(self) -> Mapping[str, Mapping[str, str]]:
        """By mode the op types that compute in integers only where a user names them, with the reason."""
        found: Mapping[str, Mapping[str, str]] = self.entry.recipes.get(IN_FLOAT_UNLESS_NAMED, {})
        return found

    def _one_zero_point(self, op_type: str, config: dict[str, Any]) -> list[dict[str, Any]]:
        """``config`` less zero points for each channel of an unsigned Conv: the runtime would dequantize it at every run."""
        weight = config.get("weight", {})
        if self.provider != "CPUExecutionProvider" or op_type != "Conv" or "uint8" not in weight.get("dtype", ()):
            return [config]
        shared = {"sym": weight.get("granularity", ()), "asym": ("per_tensor",)}
        return [
            {
                **config,
                "weight": {
                    **weight,
                    "scheme": [scheme],
                    "granularity": [g for g in weight["granularity"] if g in known],
                },
                "activation": dict(config["activation"]),
            }
            for scheme, known in shared.items()
            if scheme in weight["scheme"]
        ]

    def node_configs(
        self,
        op_type: str,
        modes: Collection[str],
        *,
        has_weight: bool,
        per_channel: bool,
        stored: bool | None = None,
    ) -> list[dict[str, Any]]:
        """What a node can run with: of what the YAML lists for its type, the ``modes`` it admits, and the float ones.

        ``stored`` says, of a node that might have its weight in integers and compute in float, whether it may.
        """
        kept = []
        every = (
            part for config in op_configs(self, op_type, has_weight) for part in self._one_zero_point(op_type, config)
        )
        for config in every:
            activation = config["activation"]
            mode = activation.get("quant_mode")
            if mode is not None and stored is not None:
                admitted = {True: stored, False: mode in modes}
                activation["dtype"] = [kind for kind in activation["dtype"] if admitted[kind in FLOAT_PRECISIONS]]
            if activation["dtype"] and (stored is not None or mode in (None, *modes)):
                kept.append(config)
        for config in () if per_channel else kept:
            weight = config.get("weight", {})
            if "per_tensor" in weight.get("granularity", ()):
                weight["granularity"] = ["per_tensor"]
        return kept


@dataclass(frozen=True)
class ProviderCapability:
    """A provider, and what it can run in one form of quantized model."""

    target: Target
    query: OnnxQuery

    @property
    def name(self) -> str:
        """The name of the provider."""
        return self.target.provider.name

    @property
    def quant_format(self) -> str:
        """The form of the quantized model."""
        return self.query.quant_format

    def op_types(self, mode: str) -> set[str]:
        """The types of node it can run in ``mode``."""
        return {kind for modes in self.query.entry.capabilities.values() for kind in modes.get(mode, ())}


def runs_in(provider: str, quant_format: str, mode: str) -> bool:
    """Whether a provider quantizes anything in ``mode`` in models of that form."""
    try:
        capabilities = OnnxQuery(provider, quant_format).entry.capabilities
    except ConfigError:
        return False
    return any(modes.get(mode) for modes in capabilities.values())
