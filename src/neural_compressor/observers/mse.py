"""The range over which quantization makes the least squared error."""

from __future__ import annotations

import numpy as np

from neural_compressor.observers.base import OBSERVERS, Floats
from neural_compressor.observers.histogram import HistogramObserver
from neural_compressor.observers.threshold_search import best_ends, best_symmetric, quantized_rows
from neural_compressor.schemes import TensorScheme


@OBSERVERS.register("mse")
class MSEObserver(HistogramObserver):
    """Clips where rounding and clipping together cost least, for whatever data type the scheme has.

    >>> from neural_compressor.dtypes import dtype
    >>> observer = MSEObserver()
    >>> observer.update(np.append(np.linspace(-1, 1, 10_000), 10.0).astype(np.float32))
    >>> bool(observer.range(TensorScheme(dtype("int4")))[1] < 5)
    True
    """

    def range(self, scheme: TensorScheme) -> tuple[Floats, Floats]:
        seen = self.seen()
        centres, counts = seen.centres[:, seen.filled], seen.counts[:, seen.filled]

        def loss(low: Floats, high: Floats) -> Floats:
            error = quantized_rows(centres, low, high, scheme) - centres
            total: Floats = np.sum(counts * error**2, axis=1)
            return total

        low, high = best_symmetric(seen, loss)
        if not scheme.symmetric:
            low, high = best_ends(seen, loss, low, high)
        return self.shaped(low), self.shaped(high)
