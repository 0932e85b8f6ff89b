"""Latency and memory of a call."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def median_latencies_ms(
    *calls: Callable[[], Any], warmup: int = 2, min_runs: int = 5, max_runs: int = 200, budget_s: float = 0.3
) -> list[float]:
    """The median time of each of ``calls`` in milliseconds: a few warm-up calls, then at least ``min_runs`` timed ones,
    more while ``budget_s`` lasts. They take turns, so that what else the machine does hits all alike.

    >>> 1.0 < median_latencies_ms(lambda: time.sleep(0.002), budget_s=0.01)[0] < 500.0
    True
    """
    for _ in range(warmup):
        for call in calls:
            call()
    times: list[list[float]] = [[] for _ in calls]
    started = time.perf_counter()
    while len(times[0]) < min_runs or (len(times[0]) < max_runs and time.perf_counter() - started < budget_s):
        for call, taken in zip(calls, times, strict=True):
            begun = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begun)
    return [1e3 * statistics.median(taken) for taken in times]


def footprint_bytes(call: Callable[[], Any]) -> int | None:
    """How much resident memory grows at its peak while ``call`` runs; None where the system does not tell."""
    if sys.platform == "linux" and (growth := _linux_growth(call)) is not None:
        return growth
    return _rusage_growth(call)


def _linux_growth(call: Callable[[], Any]) -> int | None:
    """Growth of VmHWM after the kernel was asked to restart it at the present size."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
        before = _status_bytes("VmRSS")
    except OSError:
        return None
    call()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no field {field}")


def _rusage_growth(call: Callable[[], Any]) -> int | None:
    """Growth of the highest size ever: an underestimate where the process was larger before."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit
