"""How a scale follows from the largest magnitude it is for: headroom, rounding to powers of two or to those of a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from neural_compressor.dtypes import DType
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes.arrays import Array, array_namespace, as_bits, like
from neural_compressor.schemes.grid import step_size

VALUES = ("maxabs", "opt", "unit")
"""The largest magnitude, the scale of least squared error near it, or 1 whatever the values are."""
LARGEST_POWER = 2.0**126


@dataclass(frozen=True)
class DeviceScales:
    """The scales that a device multiplies with at no cost, ascending, and the full scale of types it reads otherwise."""

    scales: tuple[float, ...]
    full_scale: Mapping[str, float]

    @property
    def has_every_power(self) -> bool:
        """Whether they are all powers of two from the first to the last, and rounding goes to the next within these."""
        return all(2 * one == other for one, other in pairwise(self.scales))


DEVICE_SCALES = {
    "gaudi2": DeviceScales((1 / 256, 1 / 16, 1.0, 16.0), {"fp8_e4m3": 240.0}),
    "gaudi3": DeviceScales(tuple(2.0**e for e in range(-55, 8)), {}),
}
ROUNDINGS = ("none", "pow2", *DEVICE_SCALES)


@dataclass(frozen=True)
class Scaling:
    """``scale = rounded(maxabs / (full scale * backoff))``, rounded up to a power of two, or to a scale of a device.

    A ``backoff`` below 1 leaves headroom for values larger than those seen.

    >>> from neural_compressor.dtypes import dtype
    >>> float(Scaling(rounding="pow2", backoff=0.5).scale(np.float32(300.0), dtype("fp8_e4m3")))
    2.0
    """

    value: str = "maxabs"
    rounding: str = "none"
    backoff: float = 1.0

    def __post_init__(self) -> None:
        for name, known in (("value", VALUES), ("rounding", ROUNDINGS)):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"scaling {name} {getattr(self, name)!r}; {close_matches(getattr(self, name), known)}"
                )
        if isinstance(self.backoff, bool) or not isinstance(self.backoff, int | float) or not 0 < self.backoff <= 1:
            raise ConfigError(f"the backoff of a scale is above 0 and at most 1, got {self.backoff!r}")

    @property
    def admits_few(self) -> bool:
        """Whether not every scale is admitted."""
        return self.rounding != "none" or self.value == "unit"

    def scale(self, magnitude: Array, kind: DType) -> Array:
        """The scales for parts of a tensor whose largest magnitudes are these; 1 where one is zero."""
        xp = array_namespace(magnitude)
        if self.value == "unit":
            return self.rounded(xp.ones_like(magnitude))
        return self.rounded(step_size(magnitude, self.full_scale(kind)))

    def full_scale(self, kind: DType) -> float:
        """What the largest magnitude becomes: the largest number of the type, as the device has it, less the headroom."""
        device = DEVICE_SCALES.get(self.rounding)
        return (kind.peak if device is None else device.full_scale.get(kind.name, kind.peak)) * self.backoff

    def rounded(self, scale: Array) -> Array:
        """The smallest admitted scales that are not below these, or the largest one there is."""
        if self.rounding == "none":
            return scale
        if self.rounding == "pow2":
            return _power_of_two(scale)
        xp = array_namespace(scale)
        known = like(np.asarray(DEVICE_SCALES[self.rounding].scales, dtype=np.float32), scale)
        place = xp.clip(xp.searchsorted(known, xp.reshape(scale, (-1,))), None, known.shape[0] - 1)
        return xp.reshape(xp.take(known, place, axis=0), scale.shape)

    def candidates(self, scale: Array) -> Iterator[Array]:
        """What a search for the best scale tries, given that of the largest magnitude with headroom."""
        steps = range(-16, 65) if self.rounding == "none" else range(-16, 65, 8)
        for eighths in steps:
            yield self.rounded(scale * 2.0 ** (-eighths / 8))

    def to_dict(self) -> dict[str, Any]:
        """What plans store."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Scaling:
        """Read what :meth:`to_dict` writes."""
        if not isinstance(data, Mapping):
            raise ConfigError(f"the scaling of a tensor is {data!r}; expected value, rounding and backoff")
        for field in data:
            if field not in ("value", "rounding", "backoff"):
                raise ConfigError(
                    f"unknown field {field!r} of a scaling; {close_matches(field, ('value', 'rounding', 'backoff'))}"
                )
        return cls(**data)


def _power_of_two(x: Array) -> Array:
    """The smallest powers of two not below positive float32 numbers: their exponent, one more if there is a fraction."""
    xp = array_namespace(x)
    bits = as_bits(xp.reshape(xp.clip(xp.astype(x, xp.float32, copy=False), None, LARGEST_POWER), (-1,)), xp.int32)
    return xp.reshape(as_bits((bits + 0x7FFFFF) & 0x7F800000, xp.float32), x.shape)
