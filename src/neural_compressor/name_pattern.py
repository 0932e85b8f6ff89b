"""Regular expressions for names of ops, matched in bounded time.

The matcher of Python's ``re`` goes back and tries again, which takes exponential time for ``(a+)+`` on a name that does
not match: a rule would hang the program. This one keeps the set of places that a part of the expression can end at, so
its time grows with the square of the name's length at most. It reads what ``re`` reads, less back-references,
conditions, and atomic and possessive groups, which are refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from neural_compressor.errors import ConfigError, FormatError

if sys.version_info >= (3, 11):
    from re import _parser as sre_parse  # type: ignore[attr-defined]
else:
    import sre_parse

Places = frozenset[int]
_LONGEST = 2000
_INNER: dict[str, Callable[[Any], list[Any]]] = {
    "BRANCH": lambda argument: list(argument[1]),
    "SUBPATTERN": lambda argument: [argument[3]],
    "MAX_REPEAT": lambda argument: [argument[2]],
    "MIN_REPEAT": lambda argument: [argument[2]],
    "ASSERT": lambda argument: [argument[1]],
    "ASSERT_NOT": lambda argument: [argument[1]],
}
"""The expressions inside of one, by its kind."""
_SINGLE = ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT", "FAILURE")


@dataclass(frozen=True)
class NamePattern:
    """A name or a regular expression that matches the whole of a name.

    What is no valid regular expression is a name and matches itself only; ``problem`` says why it is none.

    >>> NamePattern.of("fc[12]").matches("fc1"), NamePattern.of("fc(1").matches("fc(1")
    (True, True)
    >>> NamePattern.of("(a+)+b").matches("a" * 200)
    False
    """

    text: str
    tree: Any = None
    problem: str = ""

    @classmethod
    @lru_cache(maxsize=1024)
    def of(cls, text: str) -> NamePattern:
        """The pattern that ``text`` is; one that cannot be matched in bounded time is an error."""
        if len(text) > _LONGEST:
            raise ConfigError(f"{text[:40]!r}... has {len(text)} characters, expected at most {_LONGEST}")
        try:
            re.compile(text)
            tree = sre_parse.parse(text)
            _refuse_what_is_not_read(tree, text)
        except (re.error, OverflowError, RecursionError) as error:
            return cls(text, None, str(error) or type(error).__name__)
        return cls(text, tree)

    def matches(self, name: str) -> bool:
        """Whether this is ``name``, or matches the whole of it."""
        return name == self.text or len(name) in self._ends(name)

    def matches_start(self, name: str) -> bool:
        """Whether ``name`` starts with what the expression matches."""
        return bool(self._ends(name))

    def _ends(self, name: str) -> Places:
        if self.tree is None:
            return frozenset()
        return _Matcher(name, self.tree.state.flags).ends(self.tree, frozenset({0}))


def _refuse_what_is_not_read(items: Iterable[tuple[Any, Any]], text: str) -> None:
    for code, argument in items:
        if code.name in _INNER:
            for inner in _INNER[code.name](argument):
                _refuse_what_is_not_read(inner, text)
        elif code.name not in _SINGLE:
            raise ConfigError(
                f"the regular expression {text!r} has a part ({code.name.lower()}) that cannot be matched in bounded time; "
                "write it without back-references, conditions, atomic and possessive groups"
            )


class _Matcher:
    """Walks a parsed expression over one name; every method takes and gives places in the name."""

    def __init__(self, name: str, flags: int) -> None:
        self.name, self.flags = name, flags
        self.known: dict[tuple[int, Places, int], Places] = {}

    def ends(self, items: Iterable[tuple[Any, Any]], starts: Places) -> Places:
        """Where ``items``, one after the other, can end if they start at ``starts``."""
        for code, argument in items:
            step: Callable[[Any, Places], Places] = getattr(self, f"_{code.name.lower()}")
            starts = step(argument, starts)
        return starts

    # -- one character ----------------------------------------------------------------------------------------------

    def _where(self, fits: Callable[[str], bool], starts: Places) -> Places:
        return frozenset(at + 1 for at in starts if at < len(self.name) and fits(self.name[at]))

    def _cases(self, character: str) -> set[str]:
        folded = self.flags & re.IGNORECASE
        return {character, character.lower(), character.upper()} if folded else {character}

    def _literal(self, code: int, starts: Places) -> Places:
        return self._where(lambda c: chr(code) in self._cases(c) or c in self._cases(chr(code)), starts)

    def _not_literal(self, code: int, starts: Places) -> Places:
        return self._where(lambda c: not (chr(code) in self._cases(c) or c in self._cases(chr(code))), starts)

    def _any(self, _: Any, starts: Places) -> Places:
        return self._where(lambda c: c != "\n" or bool(self.flags & re.DOTALL), starts)

    def _in(self, members: list[tuple[Any, Any]], starts: Places) -> Places:
        negated = members[0][0].name == "NEGATE"
        parts = members[1:] if negated else members

        def found(character: str) -> bool:
            return any(self._member(code.name, given, c) for code, given in parts for c in self._cases(character))

        return self._where(lambda c: found(c) != negated, starts)

    def _member(self, code: str, given: Any, character: str) -> bool:
        if code == "LITERAL":
            return bool(ord(character) == given)
        if code == "RANGE":
            return bool(given[0] <= ord(character) <= given[1])
        name = given.name.removeprefix("CATEGORY_")  # DIGIT, NOT_WORD, ...
        letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[name.removeprefix("NOT_")]
        letter = letter.upper() if name.startswith("NOT_") else letter
        return re.match(f"\\{letter}", character, self.flags & re.ASCII) is not None

    # -- several ----------------------------------------------------------------------------------------------------

    def _branch(self, argument: tuple[Any, list[Any]], starts: Places) -> Places:
        return frozenset().union(*(self.ends(items, starts) for items in argument[1]))

    def _subpattern(self, argument: tuple[Any, int, int, Any], starts: Places) -> Places:
        _, added, removed, items = argument
        before, self.flags = self.flags, (self.flags | added) & ~removed
        found = self.ends(items, starts)
        self.flags = before
        return found

    def _max_repeat(self, argument: tuple[int, int, Any], starts: Places) -> Places:
        fewest, most, items = argument
        key = (id(items), starts, self.flags)
        if key in self.known:
            return self.known[key]
        for _ in range(fewest):
            after = self.ends(items, starts)
            # Places only move on, so a round that changes nothing is followed by others like it.
            if after == starts:
                break
            starts = after
        found, fresh, times = starts, starts, fewest
        while fresh and times < most:
            fresh = self.ends(items, fresh) - found
            found, times = found | fresh, times + 1
        self.known[key] = found
        return self.known[key]

    _min_repeat = _max_repeat

    def _failure(self, _: Any, starts: Places) -> Places:
        return frozenset()

    # -- assertions -------------------------------------------------------------------------------------------------

    def _assert(self, argument: tuple[int, Any], starts: Places) -> Places:
        return frozenset(at for at in starts if self._holds(argument, at))

    def _assert_not(self, argument: tuple[int, Any], starts: Places) -> Places:
        return frozenset(at for at in starts if not self._holds(argument, at))

    def _holds(self, argument: tuple[int, Any], at: int) -> bool:
        direction, items = argument
        if direction > 0:
            return bool(self.ends(items, frozenset({at})))
        width = items.getwidth()[0]  # what is behind has a fixed width
        return at >= width and at in self.ends(items, frozenset({at - width}))

    def _at(self, code: Any, starts: Places) -> Places:
        last, multiline = len(self.name), self.flags & re.MULTILINE
        lines = {i + 1 for i, c in enumerate(self.name) if c == "\n"} if multiline else set()
        ends = {i for i, c in enumerate(self.name) if c == "\n" and (multiline or i == last - 1)} | {last}
        word = [re.match(r"\w", c, self.flags & re.ASCII) is not None for c in self.name]
        edges = {i for i in range(last + 1) if (i > 0 and word[i - 1]) != (i < last and word[i])}
        fitting = {
            "AT_BEGINNING": {0} | lines,
            "AT_BEGINNING_STRING": {0},
            "AT_END": ends,
            "AT_END_STRING": {last},
            "AT_BOUNDARY": edges,
            "AT_NON_BOUNDARY": set(range(last + 1)) - edges,
        }
        return starts & fitting[code.name]


def file_pattern(text: str, where: str) -> NamePattern:
    """The pattern that stands in a file; one that is no regular expression is an error that says ``where`` it stands."""
    try:
        found = NamePattern.of(text)
    except ConfigError as error:
        raise FormatError(f"{where}: {error}") from error
    if found.problem:
        raise FormatError(f"{where}: the pattern {text!r} is malformed: {found.problem}")
    return found
