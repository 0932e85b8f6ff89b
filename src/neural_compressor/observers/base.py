"""The contract of a range estimator, the registry of those there are, and which of them a scheme names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from array_api_compat import is_torch_array

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.registry import Registry
from neural_compressor.schemes import PER_TENSOR, PerChannel, PerTensor, TensorScheme, value_range
from neural_compressor.schemes.arrays import Array
from neural_compressor.schemes.ranges import scale_granularity

if TYPE_CHECKING:
    from typing_extensions import Self

Floats = npt.NDArray[np.floating[Any]]


class Observer(ABC):
    """Estimates the range of the tensors it is shown, without keeping them.

    Whatever it keeps does not grow with the number of tensors, and ``merge`` of observers that saw the parts of a data
    set gives what one observer of the whole would have kept: workers may share the work.

    With ``axis`` it keeps one range for each slice along that axis, else one range in all.
    ``neural_compressor.testing.ObserverContract`` checks an implementation.
    """

    def __init__(self, axis: int | None = None) -> None:
        self.axis = axis

    @abstractmethod
    def update(self, x: Array) -> None:
        """Take the values of a NumPy or torch array into account."""

    @abstractmethod
    def merge(self, other: Self) -> Self:
        """A new observer that has seen what this one saw and then what ``other`` saw."""

    @abstractmethod
    def range(self, scheme: TensorScheme) -> tuple[Floats, Floats]:
        """The range to quantize over with ``scheme``: float32 of shape ``()``, or one value a channel."""

    @property
    def constant(self) -> float | None:
        """The one value that all it was shown had; None where there were others, or it does not know."""
        return None

    def batch_range(self, x: Array) -> tuple[Floats, Floats]:
        """Smallest and largest value of each channel of ``x`` (one channel in all without an axis), checked."""
        granularity = PER_TENSOR if self.axis is None else PerChannel(self.axis)
        low, high = (to_numpy(side).reshape(-1) for side in value_range(x, granularity))
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise CalibrationError(
                "NaN or Inf reached calibration; look for an overflow in the model or bad values in the data"
            )
        return low, high

    def check_mergeable(self, other: Observer) -> None:
        """Refuse to merge observers of different kinds."""
        if type(other) is not type(self) or other.axis != self.axis:
            raise CalibrationError(
                f"a {type(self).__name__} over axis {self.axis} cannot be merged with a {type(other).__name__} over "
                f"axis {other.axis}"
            )

    def shaped(self, side: Floats) -> Floats:
        """A range side of shape ``(channels,)`` as :meth:`range` returns it."""
        side = side.astype(np.float32)
        return side[0] if self.axis is None else side


OBSERVERS: Registry[type[Observer]] = Registry("calibration algorithm", entry_point_group="neural_compressor.observers")


def make_observer(scheme: TensorScheme) -> Observer:
    """A fresh observer for ``scheme.algorithm`` over the granularity of ``scheme``.

    Of a format whose blocks have a scale of the tensor beside their own (nvfp4) that one is observed.

    >>> from neural_compressor.dtypes import dtype
    >>> type(make_observer(TensorScheme(dtype("uint8"), algorithm="kl"))).__name__
    'KLObserver'
    """
    observer = OBSERVERS[scheme.algorithm]
    fixed = scheme.dtype.has_tensor_scale or isinstance(scale_granularity(scheme), (PerTensor, PerChannel))
    if not fixed:
        what = scheme.granularity.name if scheme.dtype.block_size is None else scheme.dtype.name
        raise ConfigError(
            f"{what} takes its scales from each tensor it is applied to, so there is no range to observe beforehand; "
            "quantize dynamically, or observe per_tensor or per_channel with a data type without blocks"
        )
    return observer(scheme.granularity.axis if isinstance(scheme.granularity, PerChannel) else None)


def to_numpy(x: Array) -> npt.NDArray[Any]:
    """A small array of any library as NumPy."""
    return x.detach().cpu().numpy() if is_torch_array(x) else np.asarray(x)


def no_data() -> CalibrationError:
    """What :meth:`Observer.range` raises before the first value."""
    return CalibrationError("no data reached this observer; calibrate with at least one batch that runs through the op")


def one_value(low: Floats | None, high: Floats | None) -> float | None:
    """The value of a range over one channel that has no width."""
    single = low is not None and high is not None and low.size == 1 and low[0] == high[0]
    return float(low[0]) if low is not None and single else None


def same_channels(mine: int, theirs: int) -> None:
    """Refuse data with another number of channels than before."""
    if mine != theirs:
        raise CalibrationError(f"an observer of {mine} channels was shown {theirs}; the axis must keep its size")
