"""What the channels of activations look like, kept in memory that does not grow with the number of samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.runtime.feeds import feeds
from neural_compressor.onnx.runtime.session import make_session


@dataclass(frozen=True)
class ChannelStatistics:
    """Smallest and largest value, and mean square, of each channel over ``count`` places."""

    low: np.ndarray
    high: np.ndarray
    mean_square: np.ndarray
    count: int

    @classmethod
    def of(cls, vectors: np.ndarray) -> ChannelStatistics:
        """The statistics of ``vectors`` of shape (places, channels)."""
        square = np.mean(np.square(vectors, dtype=np.float64), axis=0)
        return cls(vectors.min(axis=0), vectors.max(axis=0), square, vectors.shape[0])

    @property
    def absmax(self) -> np.ndarray:
        """The largest magnitude of each channel."""
        return np.asarray(np.maximum(np.abs(self.low), np.abs(self.high)))

    def __add__(self, other: ChannelStatistics) -> ChannelStatistics:
        count = self.count + other.count
        square = (self.mean_square * self.count + other.mean_square * other.count) / count
        return ChannelStatistics(np.minimum(self.low, other.low), np.maximum(self.high, other.high), square, count)


def channel_statistics(
    model: ir.Model,
    axes: Mapping[str, int],
    samples: Iterable[Mapping[str, Any]],
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> dict[str, ChannelStatistics]:
    """Statistics of the values named in ``axes``, whose channels are on the axis given there."""
    names = list(axes)
    computed = {v.name for node in model.graph for v in node.outputs}
    session = make_session(model, outputs=[name for name in names if name in computed] or None, providers=providers)
    found: dict[str, ChannelStatistics] = {}
    for number, sample in enumerate(samples):
        fed = feeds(model, sample, number)
        try:
            results = session.run(None, fed)
        except Exception as error:  # the runtime's errors share no base class but this
            raise CalibrationError(f"the model does not run on sample {number} of the data: {error}") from error
        arrays = dict(zip((o.name for o in session.get_outputs()), results, strict=True)) | fed
        for name in names:
            array = np.asarray(arrays[name])
            vectors = np.moveaxis(array, axes[name], -1).reshape(-1, array.shape[axes[name]])
            if vectors.shape[0] == 0:
                continue
            seen = ChannelStatistics.of(vectors)
            if not np.isfinite(seen.mean_square).all():
                raise CalibrationError(f"sample {number}: {name!r} holds NaN or Inf, or overflows when squared")
            found[name] = found[name] + seen if name in found else seen
    lost = [name for name in names if name not in found]
    if lost:
        raise CalibrationError(f"the calibration data holds no values for {lost[0]!r}: every sample is empty there")
    return found
