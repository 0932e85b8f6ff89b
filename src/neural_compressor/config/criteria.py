"""Criteria of tuning: the promise, the objectives, strategy and budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.validators import as_list, at_least, finite, flag, non_negative, word
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches


class AccuracyCriterion(ConfigModel):
    """How much of the float model's accuracy may be lost: a share of it (relative) or so many points (absolute).

    A relative loss is at most 1, all of it. A negative loss is a gain that is asked for: -1 is twice as much as the float
    model has.

    >>> AccuracyCriterion(tolerable_loss=0.02).relative
    0.02
    """

    higher_is_better: Annotated[bool, BeforeValidator(flag)] = True
    criterion: Annotated[str, BeforeValidator(word(("relative", "absolute")))] = "relative"
    tolerable_loss: Annotated[float, BeforeValidator(finite)] = 0.01

    @model_validator(mode="after")
    def _share_of_the_whole(self) -> AccuracyCriterion:
        check_loss(self.criterion, self.tolerable_loss)
        return self

    @property
    def relative(self) -> float | None:
        """The tolerable loss where the criterion is relative, else None."""
        return self.tolerable_loss if self.criterion == "relative" else None

    @relative.setter
    def relative(self, loss: float) -> None:
        self._set("relative", loss)

    @property
    def absolute(self) -> float | None:
        """The tolerable loss where the criterion is absolute, else None."""
        return self.tolerable_loss if self.criterion == "absolute" else None

    @absolute.setter
    def absolute(self, loss: float) -> None:
        self._set("absolute", loss)

    def _set(self, criterion: str, loss: float) -> None:
        # Both at once: a loss that one criterion takes may be refused by the other.
        self.__dict__.update(type(self)(**{**dict(self), "criterion": criterion, "tolerable_loss": loss}).__dict__)
        self.model_fields_set.update(("criterion", "tolerable_loss"))


def check_loss(criterion: str, tolerable_loss: float) -> None:
    """Refuse a relative loss of more than everything, which nobody means."""
    if criterion == "relative" and tolerable_loss > 1:
        raise ConfigError(
            f"tolerable_loss: got {tolerable_loss:g} with criterion 'relative', which is {tolerable_loss:.0%} of the float "
            f"model's metric, expected a share from 0 to 1; did you mean {tolerable_loss / 100:g} ({tolerable_loss:g} "
            "percent), or criterion 'absolute'?"
        )


OBJECTIVES = {"performance": False, "accuracy": True, "modelsize": False, "footprint": False}
"""Objectives by name, with whether more of what is measured (latency, metric, bytes, bytes) is better."""

_SPEC_FIELDS = ("objective", "name", "weight", "higher_is_better")


@dataclass(frozen=True)
class Objective:
    """One thing to optimise, with its weight among several.

    ``higher_is_better`` speaks of what is measured: latency for ``performance``, the metric for ``accuracy``, bytes for
    ``modelsize`` and ``footprint``.
    """

    name: str
    weight: float = 1.0
    higher_is_better: bool = False


def objectives(spec: Any) -> tuple[Objective, ...]:
    """The objectives that ``spec`` describes: a name, a list of names or dicts, or one dict of lists.

    >>> [o.name for o in objectives(["accuracy", "modelsize"])]
    ['accuracy', 'modelsize']
    >>> objectives({"objective": ["accuracy", "performance"], "weight": [2, 1]})[0]
    Objective(name='accuracy', weight=2.0, higher_is_better=True)
    """
    parts = spec if isinstance(spec, list | tuple) else [spec]
    found = tuple(objective for part in parts for objective in _read(part))
    if not found:
        raise ConfigError(f"no objective given; known: {', '.join(OBJECTIVES)}")
    names = [objective.name for objective in found]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ConfigError(f"objective {', '.join(repeated)} is named more than once")
    return found


def _read(part: Any) -> list[Objective]:
    if isinstance(part, Objective):
        return [_objective(part.name, part.weight, part.higher_is_better)]
    if isinstance(part, str):
        return [_objective(part)]
    if not isinstance(part, Mapping):
        raise ConfigError(
            f"got {part!r}, expected the name of an objective, "
            "or a dict with 'objective', 'weight' and 'higher_is_better'"
        )
    for field in part:
        if field not in _SPEC_FIELDS:
            raise ConfigError(f"unknown field {field!r} of an objective; {close_matches(str(field), _SPEC_FIELDS)}")
    names = as_list(part.get("objective", part.get("name", [])))
    weights = _aligned("weight", part, names)
    directions = _aligned("higher_is_better", part, names)
    return [_objective(*values) for values in zip(names, weights, directions, strict=True)]


def _aligned(field: str, part: Mapping[str, Any], names: list[Any]) -> list[Any]:
    if part.get(field) is None:
        return [None] * len(names)
    values = as_list(part[field])
    if len(values) != len(names):
        raise ConfigError(f"{field} has {len(values)} values for {len(names)} objectives; give one for each")
    return values


def _objective(name: Any, weight: Any = None, higher_is_better: Any = None) -> Objective:
    if not isinstance(name, str) or name not in OBJECTIVES:
        raise ConfigError(f"unknown objective {name!r}; {close_matches(str(name), OBJECTIVES)}")
    weight = 1.0 if weight is None else weight
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight <= 0:
        raise ConfigError(f"the weight of objective {name!r} is {weight!r}, expected a finite number > 0")
    natural = OBJECTIVES[name]
    if higher_is_better is None:
        return Objective(name, float(weight), natural)
    if flag(higher_is_better) and not natural:
        raise ConfigError(
            f"objective {name!r} is measured as a cost: set its higher_is_better to False or leave it out"
        )
    return Objective(name, float(weight), higher_is_better)


def _strategy_name(value: Any) -> str:
    if isinstance(value, str) and value.strip():
        name = value.strip().lower()
        if name == "sigopt":
            raise ConfigError(
                "got 'sigopt', a service to which trials are sent; take 'tpe' or 'bayesian', which run here"
            )
        return name
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
