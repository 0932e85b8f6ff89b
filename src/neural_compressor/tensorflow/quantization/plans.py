"""Plans of configurations: the scheme of each op of a Keras model or SavedModel, and why the others stay in float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from neural_compressor.config.composed import config_of
from neural_compressor.config.composition import Composition
from neural_compressor.config.op_plans import config_request, plan_ops
from neural_compressor.config.resolver import op_space
from neural_compressor.errors import ConfigError, NothingToQuantizeError
from neural_compressor.schemes import OpKey, OpScheme, Pass, Plan
from neural_compressor.tensorflow.quantization.config import SmoothQuantConfig


@dataclass(frozen=True)
class Composed:
    """A configuration of ops, and passes over the whole model that come with it."""

    config: Composition
    passes: tuple[Pass, ...] = ()


def composed(config: Any) -> Composed:
    """One configuration, or a list of them that act together: smoothing goes before what quantizes."""
    each_given = list(config) if isinstance(config, (list, tuple)) else [config]
    read = [config_of(each, "tensorflow") for each in each_given]
    given = [part for each in read for part in (each.parts if isinstance(each, Composition) else (each,))]
    for each in given:
        if not isinstance(each, Composition) or each.framework not in ("tensorflow", ""):
            what = each.__name__ if isinstance(each, type) else type(each).__name__
            raise ConfigError(
                f"quant_config is a {what}; expected one of neural_compressor.tensorflow, such as StaticQuantConfig()"
            )
    if not given:
        raise ConfigError("quant_config is an empty list; expected a configuration such as StaticQuantConfig()")
    smoothing = [each for each in given if isinstance(each, SmoothQuantConfig)]
    others = [each for each in given if not isinstance(each, SmoothQuantConfig)]
    if not smoothing or not others:
        total: Composition = reduce(add, given)
        return Composed(total)
    if given[0] is not smoothing[0] or len(smoothing) > 1:
        raise ConfigError(
            "SmoothQuantConfig goes first in a list, and once: [SmoothQuantConfig(), StaticQuantConfig()]"
        )
    first = smoothing[0]
    own = [name for name in first.model_fields_set if name.startswith(("weight_", "act_"))]
    if own or first.local or first.white_list is not None:
        said = ", ".join(own) or "set_local or white_list"
        raise ConfigError(
            f"SmoothQuantConfig before another configuration only smooths, and {said} would have no effect: say it there"
        )
    total = reduce(add, others)
    return Composed(total, first.passes)


def plan_for(
    capability: Mapping[str, Any], wanted: Composed, calib_sampling_size: int = 100
) -> tuple[Plan, dict[OpKey, str]]:
    """What is ``wanted`` of a model with ``capability``, and the ops that stay in float with the reason."""
    config, opwise = wanted.config, capability["opwise"]
    planned = plan_ops(config, opwise, lambda key, given: _scheme(key, opwise[key], given.config))
    ops = planned.schemes
    left = {**capability.get("skipped", {}), **planned.left}
    left |= {key: "its configuration leaves it in float" for key, scheme in ops.items() if scheme.is_float}
    if not any(not scheme.is_float or scheme.precision != "fp32" for scheme in ops.values()):
        why = next(iter(planned.refusals), "the configuration leaves every op in float")
        if not opwise:
            why = "; ".join(f"{name!r}, {reason}" for (name, _), reason in left.items()) or "it has no ops"
        raise NothingToQuantizeError(f"nothing in the model would be quantized: {why}")
    static = any(scheme.mode == "static" for scheme in ops.values())
    steps = (*wanted.passes, *dict.fromkeys(step for part in config.parts for step in part.passes))
    return Plan(ops, calib_sampling_size, (*steps, *((Pass("correct_biases"),) if static else ()))), left


def _scheme(key: OpKey, configs: Sequence[Mapping[str, Any]], config: Any) -> tuple[OpScheme | None, str]:
    wanted: OpScheme = config.wanted
    return op_space(key, configs, config_request(config, wanted, configs)).nearest(key, wanted)
