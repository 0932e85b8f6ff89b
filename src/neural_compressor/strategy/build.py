"""The tuning space, built of a model's capability and a user's configuration."""

from __future__ import annotations

import difflib
import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from neural_compressor.adaptor.capability import FLOAT_PRECISIONS
from neural_compressor.config import PostTrainingQuantConfig, QuantizationAwareTrainingConfig
from neural_compressor.config.op_request import MODES_OF, requested
from neural_compressor.config.op_rule import OpRule, read_rules
from neural_compressor.config.quantization import MixedPrecisionConfig
from neural_compressor.config.recipes import RECIPES, method_named
from neural_compressor.config.resolver import OpSpace, resolve
from neural_compressor.config.validators import as_list, listed
from neural_compressor.errors import CapabilityError, ConfigError
from neural_compressor.name_pattern import NamePattern
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey
from neural_compressor.strategy.space import TuningSpace

_LISTED = 20
_EDGES = {"first_conv_or_matmul_quantization": 0, "last_conv_or_matmul_quantization": -1}
_OUTSIDE = "pre_post_process_quantization"
logger = logging.getLogger("neural_compressor")

Conf = PostTrainingQuantConfig | QuantizationAwareTrainingConfig


def build_space(capability: Mapping[str, Any], conf: Conf, has_data: bool = True) -> TuningSpace:
    """The schemes each op of a model may run with, as the capability and ``conf`` admit.

    A rule that matches no op, a value the capability does not admit, and a model with nothing to quantize are errors.
    Beside what every capability has, ``capability['recipes']`` may name the recipes the framework applies (perhaps with
    the modes they are about), ``capability['done_anyway']`` those that it needs no asking for,
    ``capability['passes']`` the passes of a plan where nothing is asked for,
    ``capability['adds_in_pairs']`` by mode the ops that overflow on some CPUs unless their weights are made safe,
    ``capability['quantizable_types']`` every op type its YAML can quantize, ``capability['unseen']`` what a rule may speak
    of that could not be looked for, and ``capability['in_float_unless_named']``
    by mode the op types, or single ops, that compute in float where no rule speaks of them, with the reason: what they may
    have is a quantized weight.
    """
    opwise: Mapping[OpKey, Sequence[Mapping[str, Any]]] = capability["opwise"]
    matching = matching_rules(capability, conf)
    requests = {
        key: requested(
            rules,
            _approach(conf),
            has_weight=any(config.get("weight") for config in opwise[key]),
            excluded_precisions=conf.excluded_precisions,
            reduce_range=conf.reduce_range,
            has_data=has_data,
        )
        for key, rules in matching.items()
    }
    ops = resolve(capability, requests, named={key for key, rules in matching.items() if rules})
    if isinstance(conf, PostTrainingQuantConfig):
        ops |= _kept_by_recipe(ops, conf.recipes)
    if not any(op.default.precision != "fp32" for op in ops.values()):
        raise _nothing_to_quantize(capability, ops, _approach(conf))
    _tell_stored(ops, capability.get("in_float_unless_named", {}))
    space = TuningSpace(ops=ops, blocks=blocks_of(capability, ops))
    if isinstance(conf, QuantizationAwareTrainingConfig):
        return space
    applied = set(capability.get("recipes", ()))
    _check_methods_are_used(ops, conf.recipes)
    recipes = {
        name: tuple(as_list(value)) for name, value in conf.recipes.items() if name in applied or method_named(name)
    }
    return replace(
        space,
        calibration_sizes=tuple(conf.calibration_sampling_size),
        recipes=recipes,
        passes=tuple(capability.get("passes", ())),
        adds_in_pairs=capability.get("adds_in_pairs", {}),
    )


def matching_rules(capability: Mapping[str, Any], conf: Conf | MixedPrecisionConfig) -> dict[OpKey, tuple[OpRule, ...]]:
    """The rules that speak of each op, the ones that win last; one that matches nothing is an error."""
    type_rules = read_rules("op_type_dict", conf.op_type_dict)
    name_rules = read_rules("op_name_dict", conf.op_name_dict)
    _check_every_rule_matches(capability, type_rules, name_rules)
    return {
        (name, kind): (*(r for r in type_rules if r.matches(kind)), *(r for r in name_rules if r.matches(name)))
        for name, kind in capability["opwise"]
    }


def blocks_of(capability: Mapping[str, Any], ops: Collection[OpKey]) -> tuple[tuple[OpKey, ...], ...]:
    """The blocks of the model, each as far as it is made of ``ops``."""
    blocks = (tuple(tuple(key) for key in block if tuple(key) in ops) for block in capability.get("blocks", ()))
    return tuple(block for block in blocks if block)


def _tell_stored(ops: Mapping[OpKey, OpSpace], float_reasons: Mapping[str, Mapping[Any, str]]) -> None:
    """Say how many ops have nothing but their weights quantized, and why."""
    stored = {key[1]: op.default for key, op in ops.items() if op.quantized and op.default.activation is None}
    for kind, scheme in stored.items():
        if why := float_reasons.get(scheme.mode, {}).get(kind):
            count = sum(key[1] == kind and op.default == scheme for key, op in ops.items())
            logger.info("with weights in %s compute in float %d %s (%s)", scheme.precision, count, kind, why)


def _approach(conf: Conf) -> str:
    """Ranges learnt in training are static ones."""
    return conf.approach if isinstance(conf, PostTrainingQuantConfig) else "static"


def unapplied_recipes(capability: Mapping[str, Any], conf: PostTrainingQuantConfig) -> tuple[str, ...]:
    """The recipes the user asks for and neither the framework nor :func:`build_space` applies.

    Where ``capability['recipes']`` gives the modes that each is about, one of them must be of the user's approach.
    """
    known = capability.get("recipes", ())
    about: Mapping[str, Collection[str]] = known if isinstance(known, Mapping) else {}
    modes = MODES_OF[conf.approach]
    applied = {name for name in known if set(about.get(name, modes)) & set(modes)} | {*_EDGES, _OUTSIDE}
    applied |= set(capability.get("done_anyway", ()))
    # No to what is done only where it can be is as good as nothing said, where it is not done at all.
    usual = {name: RECIPES.get(name, {}) for name in conf.recipes}
    asked = {name: value for name, value in conf.recipes.items() if value != (usual[name] or False)}
    applied |= {name for name in asked if method_named(name) and "weight_only" in modes}
    return tuple(name for name, value in asked.items() if value != usual[name] and name not in applied)


def _check_methods_are_used(ops: Mapping[OpKey, OpSpace], recipes: Mapping[str, Any]) -> None:
    used = {scheme.method.name for op in ops.values() for scheme in op.quantized if scheme.method is not None}
    for recipe, args in recipes.items():
        name = method_named(recipe)
        if name is not None and args and used and name not in used:
            raise ConfigError(
                f"recipe {recipe} has no effect: weights are found by {', '.join(sorted(used))}; ask for {name} in a rule "
                f"({{'weight': {{'algorithm': {name!r}}}}}), or leave the recipe out"
            )


def _kept_by_recipe(ops: Mapping[OpKey, OpSpace], recipes: Mapping[str, Any]) -> dict[OpKey, OpSpace]:
    """What recipes keep in float: the first or last convolution or matrix product, or what is before and behind them.

    Ops are in the order they run.
    """
    for name in (*_EDGES, _OUTSIDE):
        if not isinstance(recipes.get(name, True), bool):
            raise ConfigError(f"recipe {name} is True or False, not {recipes[name]!r}")
    asked = [name for name in (*_EDGES, _OUTSIDE) if recipes.get(name) is False]
    keys = list(ops)
    products = [key for key in keys if re.search("conv|linear|matmul|gemm|dense", key[1], re.IGNORECASE)]
    if not products:
        if asked:
            raise ConfigError(
                f"recipe {asked[0]}=False has no effect: no op is a convolution or matrix product; leave it out"
            )
        return {}
    kept = {products[position]: name for name, position in _EDGES.items() if recipes.get(name) is False}
    if recipes.get(_OUTSIDE) is False:
        outside = [*keys[: keys.index(products[0])], *keys[keys.index(products[-1]) + 1 :]]
        if not outside:
            raise ConfigError(
                f"recipe {_OUTSIDE}=False has no effect: no op that can be quantized is before the first convolution or "
                "matrix product, or behind the last; leave it out"
            )
        kept |= dict.fromkeys(outside, _OUTSIDE)
    return {key: replace(ops[key], quantized=(), reason=f"recipe {name}=False") for key, name in kept.items()}


def _check_every_rule_matches(
    capability: Mapping[str, Any], type_rules: Sequence[OpRule], name_rules: Sequence[OpRule]
) -> None:
    keys = [*capability["opwise"], *capability.get("skipped", {})]
    has_weight = {key: any(c.get("weight") for c in configs) for key, configs in capability["opwise"].items()}
    for what, part, rules in (("type", 1, type_rules), ("name", 0, name_rules)):
        known = {key[part] for key in keys}
        for rule in rules:
            if not any(rule.matches(text) for text in known):
                problem = NamePattern.of(rule.key).problem
                read = f"; as a regular expression this one is not valid: {problem}" if problem else ", matched whole"
                raise ConfigError(
                    f"{rule} matches no op {what} of the model (keys are names or regular expressions{read}); "
                    f"{_suggestion(rule.key, known)}{capability.get('unseen', '')}"
                )
            matched = [key for key in capability["opwise"] if rule.matches(key[part])]
            if matched and _only_about_weights(rule) and not any(has_weight[key] for key in matched):
                raise CapabilityError(
                    f"{rule} speaks of the weight, and no op it matches has one: {listed(matched[:5])}"
                )


def _suggestion(key: str, known: Collection[str]) -> str:
    """Close matches; a large model has too many names to list them all."""
    names = sorted(known)
    if len(names) <= _LISTED:
        return close_matches(key, names)
    near = difflib.get_close_matches(key, names, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"the first are {', '.join(names[:_LISTED])}"
    return f"the model has {len(names)}; {hint}"


def _only_about_weights(rule: OpRule) -> bool:
    """Whether the rule says nothing to an op without a weight (one that asks for float does)."""
    return all(
        tensor == "weight" and not (field == "dtype" and set(values) <= set(FLOAT_PRECISIONS))
        for tensor, field, values in rule.constraints
    )


def _nothing_to_quantize(capability: Mapping[str, Any], ops: Mapping[OpKey, OpSpace], approach: str) -> ConfigError:
    quantizable = capability.get("quantizable_types") or capability.get("optypewise", {})
    reasons = {kind: op.reason for (_, kind), op in ops.items() if op.reason}
    reasons |= {kind: why for (_, kind), why in capability.get("skipped", {}).items()}
    counts = Counter(kind for _, kind in [*ops, *capability.get("skipped", {})])
    has = ", ".join(f"{n} {kind}" + (f" ({reasons[kind]})" if kind in reasons else "") for kind, n in counts.items())
    return ConfigError(
        f"nothing in the model can be quantized with approach {approach!r}. "
        f"The model has: {has or 'no ops'}. "
        f"Op types the framework YAML can quantize: {', '.join(sorted(quantizable)) or 'none'}"
    )
