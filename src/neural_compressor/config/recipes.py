"""The recipes a user may ask for."""

from __future__ import annotations

from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches

RECIPES: dict[str, Any] = {
    "smooth_quant": False,
    "smooth_quant_args": {},
    "fast_bias_correction": False,
    "weight_correction": False,
    "gemm_to_matmul": True,
    "graph_optimization_level": None,
    "first_conv_or_matmul_quantization": True,
    "last_conv_or_matmul_quantization": True,
    "pre_post_process_quantization": True,
    "add_qdq_pair_to_weight": False,
    "optypes_to_exclude_output_quant": [],
    "dedicated_qdq_pair": False,
    "layer_wise_quant": False,
    "target_cpu": "any",
    "rtn_args": {},
    "awq_args": {},
    "gptq_args": {},
    "teq_args": {},
    "autoround_args": {},
}
"""Recipes by name, with the value that asks for nothing."""


def known_recipes(value: Any) -> dict[str, Any]:
    """Validate recipe names; values are for the framework that applies them (a list spans options to try).

    >>> known_recipes({"smooth_qant": True})
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: unknown recipe 'smooth_qant'; did you mean 'smooth_quant', ...
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"got {value!r}, expected a dict of recipes by name")
    for name in value:
        if name not in RECIPES:
            raise ConfigError(f"unknown recipe {name!r}; {close_matches(str(name), RECIPES)}")
    return value
