"""A race of kernels on this machine: each does the same work, and how long it takes is measured once and remembered."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata

import torch

from neural_compressor.kernel_timings import KernelTimings

Work = Callable[[], object]

_SECONDS = 0.03
"""About how long the works of one race are repeated."""
_ROUNDS = (3, 15)
_EVICTED_BYTES = 8 << 20
"""What is written between two calls, so that no work finds its weight in the caches nearest to the core."""


class Race:
    """Measures works against each other; what is in ``timings`` is not measured again.

    >>> race = Race(KernelTimings(None))
    >>> times = race.microseconds({"one": lambda: (lambda: sum(range(10))), "other": lambda: (lambda: sum(range(9)))})
    >>> sorted(times) == ["one", "other"] and times == race.microseconds({"one": None, "other": None})
    True
    """

    def __init__(self, timings: KernelTimings, clock: Callable[[], float] = time.perf_counter) -> None:
        self.timings = timings
        self._clock = clock

    def microseconds(self, makers: Mapping[str, Callable[[], Work]]) -> dict[str, float]:
        """The time of each work by its key; ``makers`` prepare works, and are called only where something is unknown."""
        known = {key: value for key in makers if (value := self.timings.get(key)) is not None}
        if len(known) < len(makers):
            # All of them run again: times taken in turn can be compared, those of different moments less.
            known = self._measured({key: make() for key, make in makers.items()})
            for key, value in known.items():
                self.timings.put(key, value)
        return known

    def _measured(self, works: Mapping[str, Work]) -> dict[str, float]:
        evicted = torch.zeros(_EVICTED_BYTES, dtype=torch.uint8)
        best = dict.fromkeys(works, float("inf"))
        with torch.no_grad():
            once = sum(self._once(work) for work in works.values())  # the first call of a kernel prepares it
            once = sum(self._once(work) for work in works.values()) if once < _SECONDS else once
            rounds = min(max(int(_SECONDS / max(once, 1e-9)), _ROUNDS[0]), _ROUNDS[1])
            for _ in range(rounds):
                for key, work in works.items():
                    evicted.add_(1)
                    # The least is what the work takes: everything else the machine does only adds to it.
                    best[key] = min(best[key], self._once(work))
        return {key: value * 1e6 for key, value in best.items()}

    def _once(self, work: Work) -> float:
        start = self._clock()
        work()
        return self._clock() - start


@functools.cache
def machine_race() -> Race:
    """The race whose results are kept for this CPU and these versions."""
    versions = {"torch": str(torch.__version__)}
    with suppress(metadata.PackageNotFoundError):
        versions["onnxruntime"] = metadata.version("onnxruntime")
    return Race(KernelTimings.of_machine(instructions(), versions))


@functools.cache
def instructions() -> str:
    """The instructions for matrix products that torch finds in this CPU."""
    extra = {
        "VNNI": torch.cpu._is_vnni_supported(),
        "BF16": torch.cpu._is_avx512_bf16_supported(),
        "AMX": torch.cpu._is_amx_tile_supported(),
    }
    return "-".join([torch.backends.cpu.get_cpu_capability(), *(name for name, has in extra.items() if has)])


_racing: list[Callable[[], Race | None]] = [machine_race]


def current_race() -> Race | None:
    """The race that decides now; None where fixed tables do."""
    return _racing[-1]()


@contextmanager
def racing(race: Race | None) -> Iterator[None]:
    """Let ``race`` decide between kernels, or with None the fixed tables: the same choice on every machine of a class.

    >>> with racing(None):
    ...     current_race() is None
    True
    """
    _racing.append(lambda: race)
    try:
        yield
    finally:
        _racing.pop()
