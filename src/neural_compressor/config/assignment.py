"""Which configuration each op gets when several speak of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar

from neural_compressor.config.op_selector import OpSelector
from neural_compressor.errors import ConfigError

T = TypeVar("T")


class Tier(IntEnum):
    """How closely a claim speaks of an op; the closer one wins."""

    EVERYTHING = 0
    WHITE_LIST = 1
    LOCAL = 2


@dataclass(frozen=True)
class Claim(Generic[T]):
    """A configuration and the ops it asks for; all of them without a selector. ``owner`` is who asks."""

    config: T
    owner: str
    tier: Tier = Tier.EVERYTHING
    selector: OpSelector | None = None

    def __str__(self) -> str:
        if self.tier is Tier.LOCAL:
            return f"local rule {self.selector} of {self.owner}"
        return self.owner if self.selector is None else f"white_list entry {self.selector} of {self.owner}"


@dataclass(frozen=True)
class Assignment(Generic[T]):
    """What an op gets, and the claim that says so. Both are None where no configuration claims the op."""

    config: T | None = None
    claim: Claim[T] | None = None

    @property
    def explicit(self) -> bool:
        """Whether a local rule or a white list speaks of the op."""
        return self.claim is not None and self.claim.tier > Tier.EVERYTHING


def assign(claims: Iterable[Claim[T]], ops: Mapping[str, str]) -> dict[str, Assignment[T]]:
    """For each of ``ops`` (type names by name) the claim that wins.

    A local rule beats a white list, and a white list beats a claim on everything. Of two local rules, and of two white
    lists, the later wins; of two claims on everything the first. A selector that matches nothing is an error.

    >>> two = [Claim("rtn", "RTN"), Claim("hqq", "HQQ", Tier.LOCAL, OpSelector("b"))]
    >>> {name: given.config for name, given in assign(two, {"a": "Linear", "b": "Linear"}).items()}
    {'a': 'rtn', 'b': 'hqq'}
    """
    winners: dict[str, Claim[T]] = {}
    for claim in claims:
        for name in _claimed(claim, ops):
            held = winners.get(name)
            if held is None or claim.tier > held.tier or claim.tier == held.tier > Tier.EVERYTHING:
                winners[name] = claim
    return {name: Assignment(winners[name].config, winners[name]) if name in winners else Assignment() for name in ops}


def _claimed(claim: Claim[T], ops: Mapping[str, str]) -> Iterable[str]:
    if claim.selector is None:
        return ops
    found = claim.selector.select(ops)
    if not found:
        raise ConfigError(f"{claim} matches no op of the model; {claim.selector.alternatives(ops)}")
    return found


def type_names(ops: Mapping[str, Any]) -> dict[str, str]:
    """``ops`` with classes replaced by their names."""
    return {name: kind.__name__ if isinstance(kind, type) else str(kind) for name, kind in ops.items()}
