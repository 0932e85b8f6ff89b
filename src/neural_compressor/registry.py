"""The one registry idiom: names to values, with aliases, entry points and helpful look-up errors."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from neural_compressor.errors import ConfigError

T = TypeVar("T")


def close_matches(name: str, known: Iterable[str]) -> str:
    """A sentence fragment that helps a user who mistyped ``name``."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"did you mean {', '.join(repr(n) for n in near)}? Known: {', '.join(names)}"
    return f"known: {', '.join(names)}"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first ``names`` of a list that may be long, for a message.

    >>> first_of(["a", "b", "c"]), first_of(["a", "b", "c", "d"])
    ('a, b, c', 'a, b, c, ...')
    """
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


class Registry(Generic[T]):
    """Named values of one kind.

    >>> colours: Registry[int] = Registry("colour")
    >>> colours.add("red", 1, aliases=("crimson",))
    1
    >>> colours["crimson"]
    1
    """

    def __init__(self, kind: str, entry_point_group: str | None = None) -> None:
        self.kind = kind
        self._group = entry_point_group
        self._items: dict[str, T] = {}
        self._aliases: dict[str, str] = {}
        self._unloaded: dict[str, EntryPoint] | None = None

    def add(self, name: str, item: T, aliases: Iterable[str] = (), replace: bool = False) -> T:
        """Register ``item`` under ``name``; a second registration of a name is an error unless ``replace``."""
        for key in (name, *aliases):
            if not replace and (key in self._items or key in self._aliases):
                raise ConfigError(f"{self.kind} {key!r} is already registered; pass replace=True to override it")
        self._items[name] = item
        self._aliases.update(dict.fromkeys(aliases, name))
        return item

    def register(self, name: str, *aliases: str) -> Callable[[T], T]:
        """Decorator form of :meth:`add`."""
        return lambda item: self.add(name, item, aliases)

    def _points(self) -> dict[str, EntryPoint]:
        """Entry points not loaded yet; each is imported only when it is asked for by name."""
        if self._unloaded is None:
            found = entry_points(group=self._group) if self._group else ()
            self._unloaded = {point.name: point for point in found if point.name not in self._items}
        return self._unloaded

    def __getitem__(self, name: str) -> T:
        key = self._aliases.get(name, name)
        if key not in self._items:
            if key not in self._points():
                raise ConfigError(f"unknown {self.kind} {name!r}; {close_matches(str(name), self.names())}")
            self._items[key] = self._points()[key].load()
            del self._points()[key]
        return self._items[key]

    def __contains__(self, name: object) -> bool:
        return name in self._items or name in self._aliases or name in self._points()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._items, *self._points()}))

    def names(self) -> list[str]:
        """Registered names, sorted, without aliases."""
        return list(self)
