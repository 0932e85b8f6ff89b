"""From a scheme to the observer its algorithm names."""

from __future__ import annotations

from neural_compressor.errors import ConfigError
from neural_compressor.observers.base import OBSERVERS, Observer
from neural_compressor.schemes import PerChannel, PerGroup, TensorScheme
from neural_compressor.schemes.ranges import scale_granularity


def make_observer(scheme: TensorScheme) -> Observer:
    """A fresh observer for ``scheme.algorithm`` over the granularity of ``scheme``.

    >>> from neural_compressor.dtypes import dtype
    >>> type(make_observer(TensorScheme(dtype("uint8"), algorithm="kl"))).__name__
    'KLObserver'
    """
    observer = OBSERVERS[scheme.algorithm]
    if isinstance(scale_granularity(scheme), PerGroup):
        what = scheme.granularity.name if scheme.dtype.block_size is None else scheme.dtype.name
        raise ConfigError(
            f"{what} takes its scales from each tensor it is applied to, so there is no range to observe beforehand; "
            "quantize dynamically, or observe per_tensor or per_channel with a data type without blocks"
        )
    return observer(scheme.granularity.axis if isinstance(scheme.granularity, PerChannel) else None)
