"""YAML of a user, read without running anything in it and within bounds."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C where PyYAML has it
_LONGEST = 4_000_000
_DEEPEST = 100
_MOST = 1_000_000
# An op type, precision or section with what follows it on its line.
_KEY = re.compile(r"""(['"]?)[^\s'"#:{}\[\],&*!|>%@`-][^'"#:{}\[\],]*\1\s*:(?:\s+(?P<value>.*))?$""")


def read_yaml(text: str) -> Any:
    """What ``text`` says; an error (``yaml.YAMLError``) where it says nothing, or more than can be read.

    A key that stands deeper than the key before it, whose value is complete, is taken to stand beside it, as in the text
    that this is for::

        fp32: ['*']
          int4: {'static': {...}}
    """
    if len(text) > _LONGEST:
        raise yaml.YAMLError(f"it has {len(text)} characters, and {_LONGEST} are read at most")
    try:
        return _load(text)
    except yaml.YAMLError:
        levelled = "".join(_levelled(text))
        if levelled == text:
            raise
        try:
            return _load(levelled)
        except yaml.YAMLError:
            pass  # the error of what the user wrote says more
        raise


def _load(text: str) -> Any:
    _check_bounds(text)
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # a value that its tag does not admit
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error


def _check_bounds(text: str) -> None:
    """Refuse what is nested so deep that building it overflows the stack, and aliases that multiply without end."""
    sizes: dict[str, int] = {}
    opened: list[tuple[str | None, int]] = []
    total = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, total))
            if len(opened) > _DEEPEST:
                raise yaml.YAMLError(f"it is nested more than {_DEEPEST} levels deep")
        elif isinstance(event, yaml.AliasEvent):
            total += sizes.get(str(event.anchor), 0)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = total + 1 - before
        total += 1
        if total > _MOST:
            raise yaml.YAMLError(f"with its aliases written out it holds more than {_MOST} values")


class _StrictLoader(_Loader):  # type: ignore[misc]
    """Refuses a key written twice in one mapping, of which plain YAML silently keeps the last."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._checked: set[int] = set()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if id(node) not in self._checked:  # after the first time the keys it takes over stand among its own
            self._checked.add(id(node))
            _refuse_repetitions(node)
        super().flatten_mapping(node)


def _refuse_repetitions(node: yaml.MappingNode) -> None:
    seen: set[Hashable] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice in one mapping", key.start_mark
                )
            seen.add(key.value)


def _levelled(text: str) -> Iterator[str]:
    """The lines of ``text``, with a key that nothing above opens a level for on the level of the key above."""
    depth, complete_at, deeper_than, shift = 0, -1, 0, 0
    for line in text.splitlines(keepends=True):
        content = line.strip()
        if not content or content.startswith("#"):
            yield line
            continue
        indent = len(line) - len(line.lstrip(" "))
        inside = depth > 0
        depth += _opened(content)
        if inside:  # between brackets indentation says nothing
            yield line
            continue
        if indent < deeper_than:
            shift = 0
        key = _KEY.fullmatch(content.split(" #")[0].rstrip())
        if key and shift == 0 and 0 <= complete_at < indent:
            deeper_than, shift = indent, indent - complete_at
        yield line[shift:]
        complete_at = indent - shift if key and not _opens_level(key["value"] or "") else -1


def _opened(content: str) -> int:
    """How many more brackets a line opens than it closes, outside of quotes and comments."""
    bare = re.sub(r"""'[^']*'|"(?:[^"\\]|\\.)*"|(?:^|\s)#.*""", "", content)
    return sum(map(bare.count, "[{")) - sum(map(bare.count, "]}"))


def _opens_level(value: str) -> bool:
    """Whether what stands behind a key leaves its value to the lines below."""
    rest = re.sub(r"^([&!]\S*\s*)+", "", value)
    return not rest or rest[0] in "|>"
