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


PER_TENSOR = PerTensor()
PER_CHANNEL = PerChannel()
Granularity = PerTensor | PerChannel | PerGroup
