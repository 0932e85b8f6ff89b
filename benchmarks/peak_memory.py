"""Peak memory of this process."""

from __future__ import annotations

import resource
from pathlib import Path


def peak_mib() -> float:
    """The largest resident size so far, in MiB.

    The kernel's ``VmHWM`` starts anew when a program starts; ``ru_maxrss`` also remembers the process it was started from.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
