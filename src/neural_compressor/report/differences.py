"""Differences between the plans of trials, in place of whole plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neural_compressor.schemes import OpScheme, Plan
from neural_compressor.tuning.result import Trial

_NAMED = 3
"""How many ops a change names."""
_NAME = "name"
"""Where a method as plain data has its name."""
_UNSET = "not set"


def differences(trials: Sequence[Trial]) -> list[str]:
    """For each trial what differs from the one before or from the first, whichever is nearer; empty for the first.

    >>> from neural_compressor.schemes import Pass
    >>> plans = [Plan(passes=[Pass("smooth", {"alpha": alpha})]) for alpha in (0.4, 0.6)]
    >>> differences([Trial(n, "", plan, None, 0.0, True, 1.0, 1.0) for n, plan in enumerate(plans, 1)])
    ['', 'from 1: smooth.alpha: 0.4 → 0.6']
    """
    texts = []
    for place, trial in enumerate(trials):
        others = [trials[place - 1], trials[0]] if place else []
        told = [(changes(other.plan, trial.plan), other.number) for other in others]
        found, number = min(told, key=lambda each: sum(map(len, each[0])), default=([], 0))
        texts.append(f"from {number}: {'; '.join(found) or 'nothing'}" if place else "")
    return texts


def changes(old: Plan, new: Plan) -> list[str]:
    """The changes from one plan to another; ops that change alike are told together."""
    alike: dict[str, list[str]] = {}
    for key in dict.fromkeys([*old, *new]):
        change = _scheme_change(old.ops.get(key, OpScheme()), new.ops.get(key, OpScheme()))
        if change:
            alike.setdefault(change, []).append(key[0])
    told = [f"{_names(names)}: {change}" for change, names in alike.items()]
    if old.calib_sampling_size != new.calib_sampling_size:
        told.append(f"calibration samples: {old.calib_sampling_size} → {new.calib_sampling_size}")
    before, after = ({each.name: each.options for each in plan.passes} for plan in (old, new))
    return told + _value_changes(before, after)


def _scheme_change(old: OpScheme, new: OpScheme) -> str:
    if old == new:
        return ""
    if old.is_float or new.is_float or old.mode != new.mode:
        return f"{_label(old)} → {_label(new)}"
    return "; ".join(_value_changes(old.to_dict(), new.to_dict()))


def _label(scheme: OpScheme) -> str:
    return scheme.precision if scheme.is_float else f"{scheme.mode} {scheme.precision}".replace("_", "-")


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _value_changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The values that differ. Where two methods are different ones, that alone: they share no options."""
    names = [plan.get(_NAME) for plan in (old, new)]
    if all(isinstance(name, str) for name in names) and names[0] != names[1]:
        return [f"{prefix.rstrip('.') or _NAME}: {names[0]} → {names[1]}"]
    told = []
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key, _UNSET), new.get(key, _UNSET)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            told += _value_changes(before, after, f"{prefix}{key}.")
        elif before != after:
            told.append(f"{prefix}{key}: {before} → {after}")
    return told
