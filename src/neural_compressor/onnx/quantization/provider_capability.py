"""The execution provider a model is quantized for, the format of model it gets, and what it can run in that format."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.adaptor.capability import OnnxQuery
from neural_compressor.onnx.quantization.quant_types import QuantFormat
from neural_compressor.onnx.quantization.whole_model import setting
from neural_compressor.onnx.runtime.providers import Target, choose_target

logger = logging.getLogger("neural_compressor")


@dataclass(frozen=True)
class ProviderCapability:
    """A provider, and what it can run."""

    target: Target
    query: OnnxQuery

    @property
    def provider(self) -> str:
        """The name of the provider."""
        return self.target.provider.name

    @property
    def sessions(self) -> tuple[str, ...]:
        """The providers of sessions on this machine."""
        return self.target.sessions

    @property
    def quant_format(self) -> str:
        """The form of the quantized model."""
        return self.query.quant_format

    def op_types(self, mode: str) -> set[str]:
        """The types of node it can run in ``mode``."""
        return {kind for modes in self.query.entry.capabilities.values() for kind in modes.get(mode, ())}

    def options(self, op_type: str, mode: str, *, has_weight: bool = True, per_channel: bool = True) -> Any:
        """What a node of ``op_type`` can run with in ``mode``."""
        return self.query.node_configs(op_type, (mode,), has_weight=has_weight, per_channel=per_channel)

    def reason_for_float(self, op_type: str, mode: str) -> str:
        """Why a node of ``op_type`` is better left in float, unless it is meant; empty where it is not."""
        why = self.query.in_float_unless_named.get(mode, {}).get(op_type)
        return why or ""


def find_capability(configs: Sequence[Any], approach: str, graph_only: bool) -> ProviderCapability:
    """What the configurations of one approach are for.

    The default form of model gives way to the provider's own where it runs nothing in that form.
    """
    is_weight_only = approach == "weight_only"
    name = setting(configs, "providers")[0] if is_weight_only else setting(configs, "execution_provider")
    target = choose_target(name, graph_only=graph_only)
    own = OnnxQuery(target.provider.name)
    if approach == "dynamic":
        return ProviderCapability(target, own)
    wanted: QuantFormat = setting(configs, "quant_format")
    if wanted is QuantFormat.QOperator and not _runs(target.provider.name, wanted, approach):
        logger.warning("%s takes no %s models: the model is %s", target.provider.name, wanted, own.quant_format)
        return ProviderCapability(target, own)
    return ProviderCapability(target, OnnxQuery(target.provider.name, wanted.name))


def _runs(provider: str, form: QuantFormat, approach: str) -> bool:
    """Whether the provider quantizes anything with ``approach`` in models of that form."""
    try:
        capabilities = OnnxQuery(provider, form.name).entry.capabilities
    except ConfigError:
        return False
    return any(modes.get(approach) for modes in capabilities.values())
