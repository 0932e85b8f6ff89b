"""Over which part of a tensor one scale holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PerTensor:
    """One scale: shape ``()``."""

    name = "per_tensor"


@dataclass(frozen=True)
class PerChannel:
    """One scale a slice along ``axis``: shape ``(x.shape[axis],)``."""

    axis: int = 0
    name = "per_channel"


@dataclass(frozen=True)
class PerGroup:
    """One scale a run of ``size`` values along the last axis: shape ``(*x.shape[:-1], ceil(x.shape[-1] / size))``.

    Where ``size`` does not divide the axis the last group is shorter.
    """

    size: int
    name = "per_group"


@dataclass(frozen=True)
class PerToken:
    """One scale a run of the whole last axis: shape ``x.shape[:-1]``.

    For activations, whose scales are found when they are there: each token has its own.
    """

    name = "per_token"


@dataclass(frozen=True)
class PerBlock:
    """One scale a block of ``rows`` by ``columns`` of a matrix: shape ``(ceil(rows / r), ceil(columns / c))``.

    Blocks at the lower and right edge may be smaller.
    """

    rows: int = 128
    columns: int = 128
    name = "per_block"


PER_TENSOR = PerTensor()
PER_CHANNEL = PerChannel()
PER_TOKEN = PerToken()


def in_groups(size: int) -> PerGroup | PerChannel:
    """One scale for ``size`` values along the last axis; with -1 for all of them, which is one a channel."""
    return PER_CHANNEL if size == -1 else PerGroup(size)


Granularity = PerTensor | PerChannel | PerGroup | PerToken | PerBlock
GRANULARITIES = tuple(kind.name for kind in (PerTensor, PerChannel, PerGroup, PerToken, PerBlock))
"""What granularities are called in configurations and framework YAML."""
