"""The result of a benchmark: times, throughput and latency of each process, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from neural_compressor.report.quantities import shown_latency
from neural_compressor.report.terminal import make_console

QUANTILES = (50, 90, 99)


@dataclass(frozen=True)
class InstanceTimes:
    """The calls of one process: the seconds of each, and how many samples each had."""

    cores: tuple[int, ...]
    seconds: tuple[float, ...]
    samples: tuple[int, ...]
    returned: Any = None
    """What ``b_func`` gave in its last call, where that is a number."""

    @property
    def throughput(self) -> float:
        """Samples (or calls of ``b_func``) a second."""
        return sum(self.samples) / sum(self.seconds)

    @property
    def mean_ms(self) -> float:
        """The mean latency of a call in milliseconds."""
        return 1e3 * sum(self.seconds) / len(self.seconds)

    def quantile_ms(self, percent: float) -> float:
        """The latency in milliseconds that ``percent`` of the calls do not exceed, between calls by interpolation."""
        return 1e3 * float(np.percentile(self.seconds, percent))

    p50_ms = property(lambda self: self.quantile_ms(50))
    p90_ms = property(lambda self: self.quantile_ms(90))
    p99_ms = property(lambda self: self.quantile_ms(99))


@dataclass(frozen=True)
class BenchmarkResult:
    """The times of all instances, which ran at once. ``unit`` is what throughput counts.

    >>> one = InstanceTimes((0,), (0.1, 0.3), (4, 4))
    >>> result = BenchmarkResult((one, one), "samples")
    >>> round(result.throughput), round(one.mean_ms), round(one.p50_ms)
    (40, 200, 200)
    """

    instances: tuple[InstanceTimes, ...]
    unit: str

    @property
    def throughput(self) -> float:
        """That of all instances together."""
        return sum(each.throughput for each in self.instances)

    @property
    def latency_ms(self) -> float:
        """The mean latency of a call over all instances."""
        calls = [second for each in self.instances for second in each.seconds]
        return 1e3 * sum(calls) / len(calls)


def table(result: BenchmarkResult) -> Table:
    """One row an instance, and the sum."""
    found = Table(box=box.SIMPLE_HEAD, title="Benchmark", title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("instance", "cores", "calls", f"{result.unit}/s", "mean", *(f"p{percent}" for percent in QUANTILES)):
        found.add_column(name, justify="right", no_wrap=True)
    for number, each in enumerate(result.instances):
        times = [each.mean_ms, *map(each.quantile_ms, QUANTILES)]
        cells = [core_ranges(each.cores), str(len(each.seconds)), _rate(each.throughput), *map(shown_latency, times)]
        found.add_row(str(number), *cells, end_section=number == len(result.instances) - 1)
    found.add_row("all", "", "", _rate(result.throughput), shown_latency(result.latency_ms))
    return found


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def print_table(result: BenchmarkResult, console: Console | None = None) -> None:
    """Print it."""
    (console or make_console()).print(table(result))


def core_ranges(cores: Sequence[int]) -> str:
    """Numbers of cores as a person writes them.

    >>> core_ranges([0, 1, 2, 8])
    '0-2,8'
    """
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
