"""From configurations to a plan: the scheme of each op of a Keras model, and why the others stay in float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from neural_compressor.config.composition import Composition
from neural_compressor.config.op_selector import Tier
from neural_compressor.config.resolver import op_space, wanting
from neural_compressor.errors import CapabilityError, ConfigError, NothingToQuantizeError
from neural_compressor.schemes import OpKey, OpScheme, Plan


def composed(config: Any) -> Composition:
    """One configuration, or a list of them that act together."""
    given = list(config) if isinstance(config, (list, tuple)) else [config]
    for each in given:
        if not isinstance(each, Composition) or each.framework not in ("tensorflow", ""):
            what = each.__name__ if isinstance(each, type) else type(each).__name__
            raise ConfigError(
                f"quant_config is a {what}; expected one of neural_compressor.tensorflow, such as StaticQuantConfig()"
            )
    if not given:
        raise ConfigError("quant_config is an empty list; expected a configuration such as StaticQuantConfig()")
    found: Composition = reduce(add, given)
    return found


def plan_for(
    capability: Mapping[str, Any], config: Composition, calib_sampling_size: int = 100
) -> tuple[Plan, dict[OpKey, str]]:
    """What ``config`` makes of a model with ``capability``, and the ops that stay in float with the reason."""
    opwise = capability["opwise"]
    assigned = config.assign(dict(opwise.keys()))
    ops: dict[OpKey, OpScheme] = {}
    left: dict[OpKey, str] = dict(capability.get("skipped", {}))
    served, refused = set[int](), dict[int, tuple[Any, str]]()
    for key, configs in opwise.items():
        given = assigned[key[0]]
        if given.config is None or given.claim is None:
            left[key] = "no part of the configuration claims it"
            continue
        scheme, reason = _scheme(key, configs, given.config)
        if scheme is None:
            left[key] = reason
            refused.setdefault(id(given.claim), (given.claim, reason))
        else:
            served.add(id(given.claim))
            if scheme.is_float:
                left[key] = "its configuration leaves it in float"
            ops[key] = scheme
    for place, (claim, reason) in refused.items():
        if place not in served and claim.tier > Tier.EVERYTHING:
            raise ConfigError(f"{claim} asks for what cannot be done: {reason}")
    if not any(not scheme.is_float or scheme.precision != "fp32" for scheme in ops.values()):
        why = next((reason for _, reason in refused.values()), "the configuration leaves every op in float")
        raise NothingToQuantizeError(f"nothing in the model would be quantized: {why}")
    return Plan(ops, calib_sampling_size, passes(config)), left


def passes(config: Composition) -> Sequence[Any]:
    """What the parts of a configuration do to the whole model."""
    return tuple(dict.fromkeys(step for part in config.parts for step in part.passes))


def _scheme(key: OpKey, configs: Sequence[Mapping[str, Any]], config: Any) -> tuple[OpScheme | None, str]:
    wanted: OpScheme = config.wanted
    if wanted.is_float:
        space = op_space(key, configs, wanting(replace(wanted, mode="static"), {}, type(config).__name__))
        found = space.in_precision(wanted.precision)
        return found, f"the framework YAML lists no {key[1]} in {wanted.precision}"
    if not any("weight" in each for each in configs):
        wanted = replace(wanted, weight=None)
    request = wanting(wanted, config.said, type(config).__name__)
    request = replace(request, excluded_precisions=tuple(getattr(config, "excluded_precisions", ())))
    try:
        space = op_space(key, configs, request)
    except CapabilityError as error:
        return None, str(error)
    return (space.quantized[0], "") if space.quantized else (None, space.reason)
