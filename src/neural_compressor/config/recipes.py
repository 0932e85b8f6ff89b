"""The recipes of the 2.x API: those a user may ask for, and what they mean in a plan."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.config.method_options import method_from_args
from neural_compressor.config.validators import as_list, word
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Method, OpKey, OpScheme, Pass, Plan, any_cpu_op

RECIPES: dict[str, Any] = {
    "smooth_quant": False,
    "smooth_quant_args": {},
    "fast_bias_correction": None,
    "weight_correction": False,
    "equalization": False,
    "range_search": False,
    "learned_rounding": False,
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
}
"""Recipes by name, with the value that asks for nothing; ``<algorithm>_args`` are recipes too (:func:`method_named`)."""


def method_named(recipe: str) -> str | None:
    """The registered algorithm whose options the recipe has; None where it is another recipe.

    >>> method_named("gptq_args"), method_named("smooth_quant")
    ('gptq', None)
    """
    algorithm = recipe.removesuffix("_args")
    return algorithm if algorithm != recipe and algorithm in ALGORITHMS else None


class Recipes(dict[str, Any]):
    """Recipes that were asked for; one that was not has the value that asks for nothing.

    >>> Recipes(layer_wise_quant=True)["smooth_quant"]
    False
    """

    def __missing__(self, name: str) -> Any:
        return {} if method_named(name) is not None else copy.copy(RECIPES[name])


def known_recipes(value: Any) -> Recipes:
    """Validate recipe names; values are for the framework that applies them (a list spans options to try).

    >>> known_recipes({"smooth_qant": True})
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: unknown recipe 'smooth_qant'; did you mean 'smooth_quant', ...
    """
    if value is None:
        return Recipes()
    if not isinstance(value, dict):
        raise ConfigError(f"got {value!r}, expected a dict of recipes by name")
    for name in value:
        if name not in RECIPES and method_named(str(name)) is None:
            known = [*RECIPES, *(f"{algorithm}_args" for algorithm in ALGORITHMS)]
            raise ConfigError(f"unknown recipe {name!r}; {close_matches(str(name), known)}")
    for name in value.keys() & _SWITCHES:
        for each in as_list(value[name]):
            _yes_or_no(name, {name: each})
    if value.get("smooth_quant_args") and "smooth_quant" not in value:
        raise ConfigError(
            "recipe smooth_quant_args has no effect without smooth_quant: add 'smooth_quant': True, or leave it out"
        )
    return Recipes(value)


_SWITCHES = {"smooth_quant", "equalization", "fast_bias_correction", "range_search", "weight_correction"}
_LAYOUT = ("add_qdq_pair_to_weight", "dedicated_qdq_pair", "optypes_to_exclude_output_quant")
TARGET_CPUS = ("any", "vnni")
"""``any``: the same numbers on every x86 CPU. ``vnni``: weights use all of int8, and overflow where there is no VNNI."""


def with_recipes(
    plan: Plan, recipes: Mapping[str, Any], adds_in_pairs: Mapping[str, Collection[OpKey]] | None = None
) -> Plan:
    """``plan`` with what ``recipes``, of one value each, ask for: as passes over the model and as options of its methods.

    ``adds_in_pairs`` has by mode the ops whose kernels add products in pairs, which overflow on CPUs without VNNI: their
    weights are made safe, unless the recipe ``target_cpu`` is ``vnni``.

    >>> with_recipes(Plan(), {"smooth_quant": True, "smooth_quant_args": {"alpha": 0.7}}).passes
    (Pass(name='smooth', options={'alpha': 0.7}),)
    """
    passes = {step.name: step for step in plan.passes}
    given = set(passes)
    if (level := recipes.get("graph_optimization_level")) is not None:
        passes["optimize"] = passes.get("optimize", Pass("optimize")).with_options(level=level)
    if _yes_or_no("smooth_quant", recipes):
        passes["smooth"] = Pass("smooth", _smoothing(recipes.get("smooth_quant_args") or {}))
    if _yes_or_no("equalization", recipes):
        passes["equalize"] = Pass("equalize")
    if recipes.get("fast_bias_correction") is not None:
        correct = _yes_or_no("fast_bias_correction", recipes)
        passes["correct_biases"] = Pass("correct_biases", {"required": True})
        if not correct:
            del passes["correct_biases"]
    if _yes_or_no("range_search", recipes):
        passes["search_ranges"] = Pass("search_ranges")
    if _yes_or_no("weight_correction", recipes):
        passes["correct_weights"] = Pass("correct_weights")
    if learned := recipes.get("learned_rounding"):
        passes["learn_rounding"] = learned_rounding_pass(learned)
    if passes.keys() - given:
        passes = {step.name: step for step in in_order(passes.values())}
    layout = {name: recipes[name] for name in _LAYOUT if recipes.get(name)}
    if types := layout.get("optypes_to_exclude_output_quant"):
        layout["optypes_to_exclude_output_quant"] = as_list(types)
    if layout:
        passes["qdq_layout"] = passes.get("qdq_layout", Pass("qdq_layout")).with_options(**layout)
    methods = {name: dict(args or {}) for recipe, args in recipes.items() if (name := method_named(recipe)) is not None}
    if "weight_layout" in passes and (level := _accuracy_level(methods)) is not None:
        passes["weight_layout"] = passes["weight_layout"].with_options(accuracy_level=level)
    options = {name: method_from_args(name, args).options for name, args in methods.items()}
    every = {"layer_wise": True} if recipes.get("layer_wise_quant") else {}
    ops = {key: _with_options(scheme, options, every) for key, scheme in plan.items()}
    if adds_in_pairs and word(TARGET_CPUS)(recipes.get("target_cpu", "any")) == "any":
        ops |= {key: any_cpu_op(s) for key, s in ops.items() if key in adds_in_pairs.get(s.mode, ())}
    return replace(plan, ops=ops, passes=tuple(passes.values()))


def _yes_or_no(name: str, recipes: Mapping[str, Any]) -> bool:
    """Whether the recipe ``name`` is asked for; a word such as ``"no"`` is not taken for a yes."""
    value = recipes.get(name, False)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise ConfigError(f"recipe {name} is True or False, not {value!r}")


_LAST = ("search_ranges", "correct_weights", "learn_rounding", "correct_biases")
"""Weights make up for inputs as they are rounded by then, and biases for both."""


def in_order(passes: Iterable[Pass]) -> tuple[Pass, ...]:
    """``passes``, with those behind the others that make up for what the others leave.

    >>> [step.name for step in in_order(map(Pass, ("correct_biases", "learn_rounding", "search_ranges", "fold")))]
    ['fold', 'search_ranges', 'learn_rounding', 'correct_biases']
    """
    return tuple(sorted(passes, key=lambda step: _LAST.index(step.name) if step.name in _LAST else -1))


def learned_rounding_pass(scope: Any) -> Pass:
    """What ``learned_rounding`` asks for: True, or over what the error is taken.

    >>> learned_rounding_pass("block")
    Pass(name='learn_rounding', options={'scope': 'block'})
    """
    return Pass("learn_rounding") if scope is True else Pass("learn_rounding", {"scope": learning_scope(scope)})


def learning_scope(value: Any) -> bool | str:
    """A valid value of ``learned_rounding``."""
    if isinstance(value, bool) or (isinstance(value, str) and value in ("layer", "block")):
        return value
    raise ConfigError(f"learned_rounding: got {value!r}, expected True, False, 'layer' or 'block'")


_SMOOTHING = {"enable_blockwise_loss": "do_blockwise"}
"""Options by another name, which earlier versions of 2.x have."""


def _smoothing(args: Any) -> Mapping[str, Any]:
    """The options of smoothing, of which 2.x keeps those of ``alpha="auto"`` in a dict of their own."""
    if not isinstance(args, Mapping) or not isinstance(args.get("auto_alpha_args", {}), Mapping):
        raise ConfigError(f"smooth_quant_args is {args!r}; expected a dict such as {{'alpha': 0.5}}")
    found = {**args, **args.get("auto_alpha_args", {})}
    return {_SMOOTHING.get(name, name): value for name, value in found.items() if name != "auto_alpha_args"}


def _accuracy_level(methods: Mapping[str, dict[str, Any]]) -> Any:
    """How exact products with weights are in an ONNX model, taken out of the arguments of methods that say so."""
    found = {name: args.pop("accuracy_level") for name, args in methods.items() if "accuracy_level" in args}
    if any(level != each for level in found.values() for each in found.values()):
        told = ", ".join(f"{name}_args {level!r}" for name, level in found.items())
        raise ConfigError(f"accuracy_level is one for all weights of a model, and recipes say {told}; choose one")
    return next(iter(found.values()), None)


def _with_options(scheme: OpScheme, options: Mapping[str, Mapping[str, Any]], every: Mapping[str, Any]) -> OpScheme:
    method = scheme.method
    if method is None:
        return scheme
    return replace(scheme, method=Method(method.name, {**every, **options.get(method.name, {}), **method.options}))
