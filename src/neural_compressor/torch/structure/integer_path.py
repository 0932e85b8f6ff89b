"""Which op reads the integers of which other one: between the two lies only what integers go through.

Where nothing is between two products that would need floats, the first rounds its result and the second takes the codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Place = TypeVar("Place")
Op = TypeVar("Op")

_EAGER = {
    *("relu", "relu6", "add", "iadd", "maxpool2d", "flatten", "view", "reshape"),
    *("identity", "dropout", "batchnorm", "batchnorm1d", "batchnorm2d", "batchnorm3d"),  # gone by the time it counts
}
_COMPILED = _EAGER | {
    *("hardtanh", "hardswish", "silu", "gelu", "leakyrelu", "tanh", "avgpool2d", "adaptiveavgpool2d"),
}
"""Modules and functions, without regard to how they are spelled, that are computed in one kernel with the product before
them or hand integers on: by the modules of an eager model, and in what Inductor compiles."""


def hands_on(name: str, compiled: bool = False) -> bool:
    """Whether integers go through what is called so: a class of modules, a function or an operator of ATen.

    >>> hands_on("MaxPool2d"), hands_on("max_pool2d"), hands_on("__add__"), hands_on("softmax")
    (True, True, True, False)
    >>> hands_on("silu_"), hands_on("silu_", compiled=True)
    (False, True)
    """
    return name.lower().replace("_", "") in (_COMPILED if compiled else _EAGER)


def sources(
    reads: Mapping[Op, Place], owner: Callable[[Place], Op | None], through: Callable[[Place], Place | None]
) -> dict[Op, Op]:
    """``{op: the op whose integers it can read}``.

    ``reads`` has the place of each op's input, ``owner`` says which op writes to a place, and ``through`` where what
    writes there reads from, if integers go through it.
    """
    found: dict[Op, Op] = {}
    for op, start in reads.items():
        at: Place | None = start
        while at is not None and owner(at) is None:
            at = through(at)
        source = None if at is None else owner(at)
        if source is not None:
            found[op] = source
    return found
