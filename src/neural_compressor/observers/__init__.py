"""Streaming estimators of the range of tensors: constant memory, mergeable across workers."""

from neural_compressor.observers.base import OBSERVERS, Observer, make_observer
from neural_compressor.observers.histogram import Histogram
from neural_compressor.observers.kl import KLObserver
from neural_compressor.observers.minmax import MinMaxObserver, MovingAverageObserver
from neural_compressor.observers.mse import MSEObserver
from neural_compressor.observers.percentile import PercentileObserver

__all__ = [
    "OBSERVERS",
    "Histogram",
    "KLObserver",
    "MSEObserver",
    "MinMaxObserver",
    "MovingAverageObserver",
    "Observer",
    "PercentileObserver",
    "make_observer",
]
