"""What tuning optimises among the models that keep the promise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neural_compressor.config.words import as_list, flag
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches

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
