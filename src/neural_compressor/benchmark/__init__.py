"""Throughput and latency of a model in several processes at once, each on cores of its own."""

from neural_compressor.benchmark.run import fit
from neural_compressor.benchmark.times import BenchmarkResult, InstanceTimes
from neural_compressor.config import BenchmarkConfig

__all__ = ["BenchmarkConfig", "BenchmarkResult", "InstanceTimes", "fit"]
