"""The cores of the machine, and the share that each process of a benchmark is pinned to."""

from __future__ import annotations

import os
from pathlib import Path

from neural_compressor.config import BenchmarkConfig
from neural_compressor.errors import ConfigError

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def available() -> list[int]:
    """The cores that this process may use: one of each physical core first, then those that share one with them."""
    if not hasattr(os, "sched_getaffinity"):
        return list(range(os.cpu_count() or 1))
    seen: dict[str, int] = {}
    places = []
    for core in sorted(os.sched_getaffinity(0)):
        shared = _siblings(core)
        seen[shared] = seen.get(shared, -1) + 1
        places.append((seen[shared], core))
    return [core for _, core in sorted(places)]


def shares(config: BenchmarkConfig, cores: list[int]) -> list[list[int]]:
    """The cores of each instance, no core twice.

    >>> shares(BenchmarkConfig(num_of_instance=2), [0, 1, 2, 3, 4])
    [[0, 1], [2, 3]]
    """
    count = config.num_of_instance
    each = config.cores_per_instance or len(cores) // count
    if not each or each * count > len(cores):
        wanted = "one core" if config.cores_per_instance is None else f"cores_per_instance={each}"
        raise ConfigError(
            f"BenchmarkConfig: num_of_instance={count} with {wanted} each takes {max(each, 1) * count} cores, and this "
            f"process may use {len(cores)}; ask for fewer"
        )
    threads = config.intra_num_of_threads
    if threads is not None and threads > each:
        raise ConfigError(
            f"BenchmarkConfig.intra_num_of_threads: got {threads}, and an instance has {each} cores; they would wait for "
            "each other"
        )
    return [cores[place : place + each] for place in range(0, each * count, each)]


def _siblings(core: int) -> str:
    try:
        return Path(_TOPOLOGY.format(core)).read_text().strip()
    except OSError:  # the system does not tell
        return str(core)
