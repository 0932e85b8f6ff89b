"""The repeated blocks of a model, told by names: ``/layers.3/mlp/up`` is in block 3 of ``/layers.``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

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


def blocks_of_layers(weights: Mapping[str, str]) -> dict[str, Block]:
    """The block of each node by its name, or by that of its weight, in ``weights``, where it tells nothing.

    The last part of a name is the node, or the weight, of a layer: a layer is in a block where more is left than that.
    """
    found: dict[str, Block] = {}
    for names in (weights, {node: node for node in weights}):
        layers: dict[str, list[str]] = {}
        for node, name in names.items():
            layers.setdefault(re.sub(r"[./][^./]*$", "", name), []).append(node)
        for block, inside in repeated_blocks(layers).items():
            found |= dict.fromkeys((node for layer in inside for node in layers[layer]), block)
    return found


def _candidates(name: str) -> Iterator[Block]:
    """What may be the block of ``name``, outermost first."""
    return ((name[: match.start(1)], match[1]) for match in _NUMBER.finditer(name))
