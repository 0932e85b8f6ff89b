"""Resident memory of the process, and the peak that a call adds to it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neural_compressor.errors import NeuralCompressorError

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def footprint_bytes(call: Callable[[], Any]) -> int | None:
    """How much resident memory grows at its peak while ``call`` runs; None where the system does not tell.

    What is garbage by now is given back first: were it freed while ``call`` runs, the call would seem to need as much less.
    """
    gc.collect()
    give_back_freed_memory()
    if sys.platform == "linux" and (growth := _linux_growth(call)) is not None:
        return growth
    return _rusage_growth(call)


def resident_bytes() -> int:
    """The resident memory of the process."""
    if sys.platform != "linux":
        raise NeuralCompressorError(
            f"the resident memory of a process is read from {_STATUS}, which {sys.platform} has not"
        )
    return _status_bytes("VmRSS")


def give_back_freed_memory() -> None:
    """Return to the system what was freed: the C library of Linux keeps it for the next allocation, piece by piece."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


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
