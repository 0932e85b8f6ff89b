"""How tuning searches, and when it stops."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.objective import Objective, objectives
from neural_compressor.config.words import at_least, non_negative
from neural_compressor.errors import ConfigError


def _strategy_name(value: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value.strip().lower()
    raise ConfigError(f"got {value!r}, expected the name of a strategy, such as 'basic'")


def _options(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise ConfigError(f"got {value!r}, expected a dict of options by name")


class TuningCriterion(ConfigModel):
    """The strategy, its budget and what it optimises.

    ``timeout`` is in seconds; 0 stops at the first model that keeps the promise.

    >>> TuningCriterion(objective="modelsize").objective
    (Objective(name='modelsize', weight=1.0, higher_is_better=False),)
    """

    strategy: Annotated[str, BeforeValidator(_strategy_name)] = "basic"
    strategy_kwargs: Annotated[dict[str, Any], BeforeValidator(_options)] = Field(default_factory=dict)
    timeout: Annotated[float, BeforeValidator(non_negative)] = 0
    max_trials: Annotated[int, BeforeValidator(at_least(1))] = 100
    objective: Annotated[tuple[Objective, ...], BeforeValidator(objectives)] = (Objective("performance"),)
