"""The recipes of a plan, as settings of what applies them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from neural_compressor.config.method_options import method_from_args
from neural_compressor.config.words import as_list, word
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.sum_order import ANY, TARGET_CPUS
from neural_compressor.onnx.passes.corrections import Corrections
from neural_compressor.registry import close_matches

_SMOOTHING = ("alpha", "folding", "op_types", "calib_iter", "scales_per_op")
_ALGORITHMS = ("rtn", "gptq", "awq")
"""The weight-only algorithms whose arguments are a recipe."""
_STATIC, _ANY = ("static",), ("static", "dynamic", "weight_only")
APPLIED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("smooth_quant", "smooth_quant_args", "fast_bias_correction", "weight_correction"), _STATIC),
    **dict.fromkeys(("add_qdq_pair_to_weight", "dedicated_qdq_pair", "optypes_to_exclude_output_quant"), _STATIC),
    **dict.fromkeys(("layer_wise_quant", *(f"{name}_args" for name in _ALGORITHMS)), ("weight_only",)),
    "target_cpu": ("static", "dynamic"),
    "graph_optimization_level": _ANY,
    "gemm_to_matmul": _ANY,  # a Gemm is quantized as it is, so there is nothing to do either way
}
"""The recipes that the adaptor applies, with the modes of quantization they are about."""


@dataclass(frozen=True)
class Recipes:
    """``smoothing`` is None where nothing is smoothed; ``algorithms`` are the options of weight-only algorithms."""

    smoothing: Mapping[str, Any] | None = None
    add_qdq_pair_to_weight: bool = False
    dedicated_qdq_pair: bool = False
    quantize_bias: bool = True
    optypes_to_exclude_output_quant: tuple[str, ...] = ()
    corrections: Corrections = field(default_factory=Corrections)
    layer_wise: bool = False
    target_cpu: str = ANY
    algorithms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, asked: Mapping[str, Any], needed: Mapping[str, Any]) -> Recipes:
        """What a plan asks for, and what the execution provider needs in any case."""
        smoothing = _known("smooth_quant_args", asked.get("smooth_quant_args") or {}, _SMOOTHING)
        return cls(
            smoothing=smoothing if asked.get("smooth_quant") else None,
            add_qdq_pair_to_weight=bool(asked.get("add_qdq_pair_to_weight") or needed.get("add_qdq_pair_to_weight")),
            dedicated_qdq_pair=bool(asked.get("dedicated_qdq_pair") or needed.get("dedicated_qdq_pair")),
            quantize_bias=bool(needed.get("quantize_bias", True)),
            optypes_to_exclude_output_quant=tuple(as_list(asked.get("optypes_to_exclude_output_quant") or [])),
            corrections=Corrections(
                bias=bool(asked.get("fast_bias_correction")), weight=bool(asked.get("weight_correction"))
            ),
            layer_wise=bool(asked.get("layer_wise_quant")),
            target_cpu=word(TARGET_CPUS)(asked.get("target_cpu", ANY)),
            algorithms={name: method_from_args(name, asked.get(f"{name}_args") or {}).options for name in _ALGORITHMS},
        )

    @property
    def smoothing_key(self) -> str:
        """Equal where the smoothed models are; empty where nothing is smoothed."""
        return "" if self.smoothing is None else json.dumps(self.smoothing, sort_keys=True, default=list)


def _known(recipe: str, given: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    for name in given:
        if name not in names:
            raise ConfigError(f"recipe {recipe} has no {name!r}; {close_matches(str(name), names)}")
    return dict(given)
