"""Selectors of ops (by name, regular expression or type), and which configuration an op gets when several select it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, TypeVar

from neural_compressor.config.validators import as_list
from neural_compressor.errors import ConfigError
from neural_compressor.name_pattern import NamePattern
from neural_compressor.schemes import OpKey

T = TypeVar("T")


OpNames = str | type | Sequence[str | type]
"""What a rule may call the ops it is about."""


@dataclass(frozen=True)
class OpSelector:
    """What a rule speaks of.

    A string is, in this order, the name of an op (then it means that op alone, whatever characters it has), the class name
    of a type of op, or a regular expression that matches the whole of a name, as :mod:`neural_compressor.name_pattern` reads
    them. ``is_type`` says that a class was given, or ``{"type": name}``.

    >>> ops = {"fc1": "Linear", "fc10": "Linear", "conv": "Conv1d"}
    >>> [OpSelector(text).select(ops) for text in ("fc1", "Conv1d", "fc.*")]
    [['fc1'], ['conv'], ['fc1', 'fc10']]
    """

    text: str
    is_type: bool = False

    def __post_init__(self) -> None:
        NamePattern.of(self.text)  # what cannot be matched in bounded time is refused here

    def select(self, ops: Mapping[str, str]) -> list[str]:
        """The names of the ops meant among ``ops``, a mapping of names to type names."""
        if self.text in ops and not self.is_type:
            return [self.text]
        found = [name for name, kind in ops.items() if kind == self.text]
        if not found and not self.is_type:
            pattern = NamePattern.of(self.text)
            found = [name for name in ops if pattern.matches(name)]
        return found

    def alternatives(self, ops: Mapping[str, str]) -> str:
        """What the user may have meant, for a selector that matches nothing; a model has too many ops to list them all."""
        types = sorted(set(ops.values()))
        known: Iterable[str] = types if self.is_type else [*ops, *types]
        near = difflib.get_close_matches(self.text, known, n=3, cutoff=0.5)
        guess = f"did you mean {', '.join(map(repr, near))}? " if near else ""
        first = ", ".join(list(ops)[:5]) + (f", ... ({len(ops)} in all)" if len(ops) > 5 else "")
        problem = NamePattern.of(self.text).problem
        invalid = f"as a regular expression it is not valid ({problem}). " if problem and not self.is_type else ""
        return f"{invalid}{guess}Types: {', '.join(types) or 'none'}. Ops: {first or 'none'}"

    def to_plain(self) -> str | dict[str, str]:
        """The form in dicts and JSON files."""
        return {"type": self.text} if self.is_type else self.text

    def __str__(self) -> str:
        return f"type {self.text!r}" if self.is_type else repr(self.text)


def selectors(op: Any) -> tuple[OpSelector, ...]:
    """The selectors that ``op`` stands for: a string, a class, what :meth:`OpSelector.to_plain` writes, or a list of those.

    >>> selectors(["fc1", int])
    (OpSelector(text='fc1', is_type=False), OpSelector(text='int', is_type=True))
    """
    return tuple(dict.fromkeys(_selector(item) for item in as_list(op)))


def _selector(op: Any) -> OpSelector:
    if isinstance(op, OpSelector):
        return op
    if isinstance(op, type):
        return OpSelector(op.__name__, is_type=True)
    if isinstance(op, Mapping) and set(op) == {"type"} and isinstance(op["type"], str):
        return OpSelector(op["type"], is_type=True)
    if isinstance(op, str) and op:
        return OpSelector(op)
    raise ConfigError(f"got {op!r}, expected the name of an op, a regular expression, a type of op, or a list of those")


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


def assign(
    claims: Iterable[Claim[T]], ops: Mapping[str, str], in_float: Mapping[OpKey, str] | None = None
) -> dict[str, Assignment[T]]:
    """For each of ``ops`` (type names by name) the claim that wins.

    A local rule beats a white list, and a white list beats a claim on everything. Of two local rules, and of two white
    lists, the later wins; of two claims on everything the first. A selector that matches nothing is an error, but one that
    wants in float what is ``in_float`` anyhow, which says why.

    >>> two = [Claim("rtn", "RTN"), Claim("hqq", "HQQ", Tier.LOCAL, OpSelector("b"))]
    >>> {name: given.config for name, given in assign(two, {"a": "Linear", "b": "Linear"}).items()}
    {'a': 'rtn', 'b': 'hqq'}
    """
    winners: dict[str, Claim[T]] = {}
    for claim in claims:
        for name in _claimed(claim, ops, in_float or {}):
            held = winners.get(name)
            if held is None or claim.tier > held.tier or claim.tier == held.tier > Tier.EVERYTHING:
                winners[name] = claim
    return {name: Assignment(winners[name].config, winners[name]) if name in winners else Assignment() for name in ops}


def _claimed(claim: Claim[T], ops: Mapping[str, str], in_float: Mapping[OpKey, str]) -> Iterable[str]:
    if claim.selector is None:
        return ops
    if found := claim.selector.select(ops):
        return found
    meant = set(claim.selector.select(dict(in_float.keys())))
    if meant and not getattr(claim.config, "quantizes", True):
        return ()
    why = next((f"{key[0]!r} stays in float: {reason}" for key, reason in in_float.items() if key[0] in meant), None)
    raise ConfigError(f"{claim} matches no op of the model; {why or claim.selector.alternatives(ops)}")


def type_names(ops: Mapping[str, Any]) -> dict[str, str]:
    """``ops`` with classes replaced by their names."""
    return {name: kind.__name__ if isinstance(kind, type) else str(kind) for name, kind in ops.items()}
