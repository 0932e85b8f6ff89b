"""Ops in bf16 or fp16: the space of it, and the strategy that takes ops back to fp32 where accuracy asks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neural_compressor.adaptor.capability import FLOAT_PRECISIONS
from neural_compressor.config.criteria import TuningCriterion
from neural_compressor.config.op_request import Request, requested
from neural_compressor.config.op_rule import OpRule
from neural_compressor.config.process_options import usual_seed
from neural_compressor.config.quantization import MixedPrecisionConfig
from neural_compressor.config.resolver import OpSpace, op_space
from neural_compressor.config.validators import listed
from neural_compressor.errors import CapabilityError, ConfigError
from neural_compressor.schemes import OpKey
from neural_compressor.strategy.base import STRATEGIES, Strategy, known_options
from neural_compressor.strategy.basic import variation_steps
from neural_compressor.strategy.build import blocks_of, matching_rules
from neural_compressor.strategy.fallback import fallback_steps
from neural_compressor.strategy.search import Search, SearchStrategy, Step, Steps
from neural_compressor.strategy.space import TuningSpace

NAME = "auto_mixed_precision"


def mixed_precision_space(capability: Mapping[str, Any], conf: MixedPrecisionConfig) -> TuningSpace:
    """The precisions of ``conf`` for every op that the framework runs in them, and fp32 to fall back to."""
    rules = matching_rules(capability, conf)
    ops = {key: _precisions_of(key, configs, rules[key], conf) for key, configs in capability["opwise"].items()}
    if not any(op.quantized for op in ops.values()):
        kinds = listed(dict.fromkeys(kind for _, kind in ops)) or "none"
        raise ConfigError(
            f"nothing in the model can run in {' or '.join(conf.precisions)}: the framework YAML lists none of its ops "
            f"({kinds}) there, or rules and excluded_precisions keep them in fp32"
        )
    return TuningSpace(ops=ops, blocks=blocks_of(capability, ops))


def _precisions_of(
    key: OpKey, configs: Sequence[Mapping[str, Any]], rules: Sequence[OpRule], conf: MixedPrecisionConfig
) -> OpSpace:
    asked = requested(rules, "static", has_weight=any(config.get("weight") for config in configs)).constraints
    for constraint in asked:
        if constraint.field != "dtype" or not set(constraint.values) <= set(FLOAT_PRECISIONS):
            raise ConfigError(
                f"{constraint.source} speaks of {constraint.tensor} {constraint.field} {listed(constraint.values)}; "
                f"with mixed precision a rule names a dtype among {listed(FLOAT_PRECISIONS)}"
            )
    floats = op_space(key, configs, Request(excluded_precisions=tuple(conf.excluded_precisions))).floats
    single = floats[-1]
    lower = [op for name in conf.precisions for op in floats if op.precision == name]
    admitted = [op for op in (*lower, single) if all(constraint.admits(op) for constraint in asked)]
    if not admitted:
        raise CapabilityError(
            f"{asked[-1].source} asks op {key[0]!r} of type {key[1]!r} for a precision that it does not run in; it has: "
            f"{listed([op.precision for op in (*lower, single)])}"
        )
    lower = [op for op in admitted if op.precision != "fp32"]
    why = str(asked[-1].source) if asked else f"the framework YAML lists no {key[1]} in {' or '.join(conf.precisions)}"
    return OpSpace(tuple(lower), (single,), "" if lower else why)


@STRATEGIES.register(NAME)
class AutoMixedPrecisionStrategy(SearchStrategy):
    """All ops in the lowest precision, then in the others; then back to fp32: op types, blocks, single ops, and the ops
    that helped most, one more at each step. At ``quant_level`` 0 types alone fall back, at 1 ops alone."""

    quant_level: str | int = "auto"

    def steps(self) -> Steps:
        """Precisions, then fall-back."""
        level = self.quant_level
        yield from variation_steps(self.search)
        if level != 1:
            yield from _type_fallback(self.search)
        if level != 0:
            yield from fallback_steps(self.search)


def _type_fallback(search: Search) -> Steps:
    base, types = search.best_quantized(), search.grid.by_type()
    back = {kind: {p: len(search.grid.ops[p].options) - 1 for p in members} for kind, members in types.items()}
    yield [Step(base.with_choices(positions), f"{kind} to fp32") for kind, positions in back.items()]


def mixed_precision_strategy(conf: MixedPrecisionConfig, space: TuningSpace) -> Strategy:
    """The strategy that ``conf`` names, or the one that is made for this where it names none."""
    named = conf.tuning_criterion.strategy
    kind = STRATEGIES[NAME if named == TuningCriterion().strategy else named]
    strategy = kind(space, usual_seed(), known_options(kind, named, conf.tuning_criterion.strategy_kwargs))
    if isinstance(strategy, AutoMixedPrecisionStrategy):
        strategy.quant_level = conf.quant_level
    elif conf.changed("quant_level"):
        raise ConfigError(f"quant_level={conf.quant_level!r} is for strategy {NAME!r}, not {named!r}; leave it out")
    return strategy
