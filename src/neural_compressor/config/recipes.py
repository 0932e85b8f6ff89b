"""The recipes a user may ask for, and what they are in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neural_compressor.config.method_options import method_from_args
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Method, OpScheme, Plan

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


METHOD_RECIPES: Mapping[str, str] = {f"{name}_args": name for name in ("rtn", "gptq", "awq", "teq", "autoround")}
"""The recipes that are options of a method, with its name."""


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


def with_method_options(plan: Plan) -> Plan:
    """``plan`` with the recipes of :data:`METHOD_RECIPES` as options of the methods of its ops, and no longer as recipes.

    >>> gptq = OpScheme.from_dict({"weight": {"dtype": "int4", "algorithm": "gptq"}})
    >>> plan = with_method_options(Plan({("fc", "Linear"): gptq}, recipes={"gptq_args": {"actorder": True}}))
    >>> plan["fc", "Linear"].method, plan.recipes
    (Method(name='gptq', options={'act_order': True}), {})
    """
    options = {
        METHOD_RECIPES[recipe]: method_from_args(METHOD_RECIPES[recipe], args or {}).options
        for recipe, args in plan.recipes.items()
        if recipe in METHOD_RECIPES
    }

    def told(op: OpScheme) -> OpScheme:
        method = op.method
        if method is None or method.name not in options:
            return op
        # What is said of the op itself holds against what is said of all.
        return replace(op, method=Method(method.name, {**options[method.name], **method.options}))

    rest = {name: value for name, value in plan.recipes.items() if name not in METHOD_RECIPES}
    return replace(plan, ops={key: told(op) for key, op in plan.items()}, recipes=rest)
