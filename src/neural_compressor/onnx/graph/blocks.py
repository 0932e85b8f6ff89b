"""The repeated blocks of a model, told by names: ``/layers.3/mlp/up`` is in block 3 of ``/layers.``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_NUMBER = re.compile(r"[./_](\d+)(?=[./])")

Block = tuple[str, str]
"""What stands before the number of a block, and the number."""


def repeated_blocks(names: Iterable[str]) -> dict[Block, list[str]]:
    """``names`` by the block they are in, in their order; a block that is the only one of its kind is none.

    >>> repeated_blocks(["/a_1/layers.0/up", "/a_1/layers.0/down", "/a_1/layers.1/up", "/head"])
    {('/a_1/layers.', '0'): ['/a_1/layers.0/up', '/a_1/layers.0/down'], ('/a_1/layers.', '1'): ['/a_1/layers.1/up']}
    """
    numbers: dict[str, set[str]] = {}
    listed = list(names)
    for name in listed:
        for stem, number in _candidates(name):
            numbers.setdefault(stem, set()).add(number)
    found: dict[Block, list[str]] = {}
    for name in listed:
        block = next((block for block in _candidates(name) if len(numbers[block[0]]) > 1), None)
        if block is not None:
            found.setdefault(block, []).append(name)
    return found


def _candidates(name: str) -> Iterator[Block]:
    """What may be the block of ``name``, outermost first."""
    return ((name[: match.start(1)], match[1]) for match in _NUMBER.finditer(name))
