"""Schemes of ops by configurations of the 3.x API: which part of a sum claims an op, and what the op gets.

Fronts of frameworks say how the scheme of one op is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from neural_compressor.adaptor.capability import FLOAT_PRECISIONS
from neural_compressor.config.composition import Composition
from neural_compressor.config.op_request import Request, wanting
from neural_compressor.config.op_selector import Assignment, Claim, Tier
from neural_compressor.config.validators import as_list
from neural_compressor.errors import CapabilityError, ConfigError
from neural_compressor.schemes import OpKey, OpScheme

SchemeOf = Callable[[OpKey, Assignment[Any]], tuple[OpScheme | None, str]]
"""The scheme of an op under what it is given, or None and the reason."""


@dataclass
class PlannedOps:
    """The ``schemes`` of ops, ``left`` why others stay in float, ``refusals`` what could not be had, one for each claim, and
    ``assigned`` what each op was given, by name."""

    schemes: dict[OpKey, OpScheme] = field(default_factory=dict)
    left: dict[OpKey, str] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    assigned: Mapping[str, Assignment[Any]] = field(default_factory=dict)


def plan_ops(
    config: Composition, ops: Iterable[OpKey], scheme_of: SchemeOf, in_float: Mapping[OpKey, str] | None = None
) -> PlannedOps:
    """What each of ``ops`` gets of ``config``; ``in_float`` are others, which stay so whatever it says, with the reason.

    What the framework cannot run leaves an op in float; a rule of its own that no op could follow is an error.
    """
    keys = list(ops)
    planned = PlannedOps(assigned=config.assign(dict(keys), in_float))
    refused: dict[int, tuple[Claim[Any], str]] = {}
    served: set[int] = set()
    for key in keys:
        given = planned.assigned[key[0]]
        if given.config is None or given.claim is None:
            planned.left[key] = "no part of the configuration claims it"
            continue
        try:
            scheme, reason = scheme_of(key, given)
        except CapabilityError as error:
            scheme, reason = None, str(error)
        if scheme is not None:
            planned.schemes[key] = scheme
        else:
            planned.left[key] = reason
        if scheme is not None or not given.config.quantizes:
            served.add(id(given.claim))
        else:
            refused.setdefault(id(given.claim), (given.claim, reason))
    for claim, reason in (pair for place, pair in refused.items() if place not in served):
        if claim.tier > Tier.EVERYTHING:
            raise ConfigError(f"{claim} asks for what cannot be done: {reason}")
    planned.refusals = [reason for _, reason in refused.values()]
    return planned


def config_request(
    config: Any,
    wanted: OpScheme,
    configs: Sequence[Mapping[str, Any]],
    said: Mapping[tuple[str, str], Any] | None = None,
) -> Request:
    """What ``config``, which wants the scheme ``wanted``, asks of an op that its framework runs with ``configs``.

    ``said`` is what of it the user set; by default what the configuration says of that.
    """
    if not any("weight" in each for each in configs):
        wanted = replace(wanted, weight=None, method=None)
    if not wanted.is_float and wanted.weight is not None and all(map(_looks_up, configs)):
        wanted = replace(wanted, activation=None)  # what is said of activations is not about it
    said = config.said if said is None else said
    request = (
        Request() if wanted.is_float else wanting(wanted, said, type(config).__name__, getattr(config, "left_open", ()))
    )
    return replace(request, excluded_precisions=tuple(getattr(config, "excluded_precisions", ())))


def _looks_up(config: Mapping[str, Any]) -> bool:
    """Whether an op so run reads no values that could be quantized."""
    return set(as_list(config["activation"]["dtype"])) <= {*FLOAT_PRECISIONS}
