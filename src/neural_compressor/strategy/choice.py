"""Which strategy a configuration asks for."""

from __future__ import annotations

import logging

from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.strategy.base import STRATEGIES, Strategy
from neural_compressor.strategy.space import TuningSpace

logger = logging.getLogger("neural_compressor")
_DEFAULT = TuningCriterion().strategy


def strategy_for(conf: PostTrainingQuantConfig, space: TuningSpace) -> Strategy:
    """The strategy of ``conf``: conservative at quantization level 0, the one that is named at level 1; at level auto
    the one that is named, or ``auto`` where that is the default. An unknown name or option is an error."""
    named = conf.tuning_criterion.strategy
    kind = STRATEGIES[named]
    if conf.quant_level == 0:
        if named not in (_DEFAULT, "conservative"):
            logger.warning(
                "quant_level=0 tunes with the conservative strategy; strategy=%r takes quant_level 1 or 'auto'", named
            )
        kind = STRATEGIES["conservative"]
    elif conf.quant_level == "auto" and named == _DEFAULT:
        kind = STRATEGIES["auto"]
    options = conf.tuning_criterion.strategy_kwargs
    for name in options:
        if name not in kind.known_options:
            known = close_matches(name, kind.known_options) if kind.known_options else "it takes none"
            raise ConfigError(f"strategy_kwargs has {name!r}, which strategy {named!r} does not take; {known}")
    return kind(space, conf.seed, options)
