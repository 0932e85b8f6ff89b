"""Timings of kernels on this machine, kept from one process to the next.

Which kernel is fastest differs from CPU to CPU and from version to version, so it is measured where it runs. What was
measured is kept in the user's cache folder, in one file for each CPU, instruction set and set of versions: the next
process neither measures again nor decides otherwise. A cache that cannot be read or written costs a measurement and is
no error.
"""

from __future__ import annotations

import functools
import json
import math
import os
import platform
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path


class KernelTimings:
    """Numbers by name, in memory and in a JSON file; ``path=None`` keeps them in memory only.

    >>> timings = KernelTimings(None)
    >>> timings.put("int4 576x576, 1 row", 12.5)
    >>> timings.get("int4 576x576, 1 row"), timings.get("int4 576x576, 2 rows")
    (12.5, None)
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._values: dict[str, float] | None = None

    @classmethod
    def of_machine(cls, instructions: str, versions: Mapping[str, str]) -> KernelTimings:
        """What was measured on this CPU with ``instructions`` (say ``"AVX2"``) and ``versions`` of the libraries."""
        parts = [cpu_model(), instructions, *(f"{name}-{version}" for name, version in sorted(versions.items()))]
        folder = cache_folder()
        if not folder.is_absolute():  # there is no home: nothing is kept
            return cls(None)
        return cls(folder / f"kernels-{_file_name('_'.join(parts))}.json")

    def get(self, key: str) -> float | None:
        """The number kept as ``key``."""
        return self._all().get(key)

    def put(self, key: str, value: float) -> None:
        """Keep ``value`` as ``key``, here and for processes to come."""
        self._all()[key] = float(value)
        if self.path is not None:
            # Another process may have measured something else in the meantime.
            self._values = {**_read(self.path), **self._all()}
            _write(self.path, self._values)

    def _all(self) -> dict[str, float]:
        if self._values is None:
            self._values = {} if self.path is None else _read(self.path)
        return self._values


def cache_folder() -> Path:
    """Where the toolkit keeps what it can make again: ``$XDG_CACHE_HOME`` or ``~/.cache``, then its own name."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The specification of these folders: a path that is not absolute is to be ignored.
    base = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~")) / ".cache"
    return base / "open-neural-compressor"


@functools.cache
def cpu_model() -> str:
    """The name the CPU gives itself, or its architecture."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine() or "unknown"


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:200]


def _read(path: Path) -> dict[str, float]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    numbers = {key: value for key, value in found.items() if type(value) in (int, float)}
    return {key: float(value) for key, value in numbers.items() if abs(value) < 1e300 and math.isfinite(value)}


def _write(path: Path, values: Mapping[str, float]) -> None:
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=path.stem, suffix=".tmp", delete=False
        ) as file:
            temporary = file.name
            json.dump(values, file, indent=0, sort_keys=True)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
