"""Layers in small floats whose tensors or configuration are changed at random: read, or refused by an error of ours."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from neural_compressor.errors import NeuralCompressorError
from neural_compressor.formats import FORMATS, CheckpointFormat, QuantizedLinear, format_of
from neural_compressor.testing import FormatContract

torch = pytest.importorskip("torch")
VALUES = [
    None,
    True,
    0,
    -1,
    3,
    "x",
    [],
    {},
    [1, 2],
    {"a": 1},
    1e9,
    "Linear",
    float("nan"),
    ["re:("],
    [None],
    16,
    32,
    10**30,
]
NAMES = [name for name in FORMATS.names() if QuantizedLinear in FORMATS[name].takes]


class Layers(FormatContract):
    """Not collected: its name does not begin with Test."""

    def __init__(self, form: CheckpointFormat) -> None:
        self.form = form

    def make_format(self) -> CheckpointFormat:
        return self.form


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield (*place, key)
        yield from places(part, (*place, key))


def with_another_value(block: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    block = copy.deepcopy(block)
    place = chance.choice(list(places(block)))
    owner: Any = block
    for key in place[:-1]:
        owner = owner[key]
    if isinstance(owner, dict) and chance.random() < 0.2:
        owner.pop(place[-1])
    else:
        owner[place[-1]] = copy.deepcopy(chance.choice(VALUES))
    return block


def with_another_tensor(tensors: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    part = chance.choice(list(tensors))
    x = tensors[part]
    changed = [
        None,
        torch.zeros(0),
        x.reshape(-1),
        x[None],
        x.to(torch.float16),
        x.to(torch.int64),
        x[..., :0] if x.ndim else x,
        torch.full_like(x.float(), float("nan")),
    ]
    new = chance.choice(changed)
    rest = {name: tensor for name, tensor in tensors.items() if name != part}
    return rest if new is None else {**rest, part: new}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_our_own_errors(name: str) -> None:
    chance, suite = random.Random(name), Layers(FORMATS[name])
    for layer in suite.storable():
        if not isinstance(layer, QuantizedLinear):
            continue
        stored = FORMATS[name].compress(suite.in_torch(torch, layer))
        block = FORMATS[name].config({"a.fc": layer.spec}, ["lm_head"])
        for _ in range(40):
            in_block = chance.random() < 0.7
            tensors = stored if in_block else with_another_tensor(stored, chance)
            config = with_another_value(block, chance) if in_block else block
            with suppress(NeuralCompressorError):
                format_of(config).decompress(tensors, config, "a.fc").dequantize()
