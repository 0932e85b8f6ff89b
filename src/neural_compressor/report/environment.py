"""What a run depended on beside its arguments: the machine, the versions, the day."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from neural_compressor.kernel_timings import cpu_model

_DISTRIBUTION = "open-neural-compressor"
_FRAMEWORKS = ("numpy", "torch", "onnx", "onnxruntime", "transformers")
_CPUINFO = Path("/proc/cpuinfo")
_INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "bf16",
    "amx_int8": "AMX int8",
    "amx_bf16": "AMX bf16",
    "asimd": "NEON",
    "asimddp": "dot product",
    "i8mm": "int8 matrices",
    "sve": "SVE",
}


def environment() -> dict[str, Any]:
    """``date`` (UTC), ``machine`` and ``versions`` as plain data; of the frameworks those that are in use."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": {
            "CPU": cpu_model(),
            "instructions": instructions() or platform.machine(),
            "threads": _threads(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            _DISTRIBUTION: _version(_DISTRIBUTION),
            "python": platform.python_version(),
            **{name: _version(name) for name in _FRAMEWORKS if name in sys.modules},
        },
    }


def instructions() -> str:
    """The instruction sets of the CPU that matter to integer kernels; empty where the system does not tell."""
    try:
        found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _CPUINFO.read_text(), re.MULTILINE)
    except OSError:
        return ""
    flags = set(found.group(1).split()) if found else set()
    return ", ".join(name for flag, name in _INSTRUCTIONS.items() if flag in flags)


def _threads() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch = sys.modules.get("torch")
    told = "" if torch is None else f", {torch.get_num_threads()} used by torch"
    return f"{usable} usable{told}"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(name), "__version__", "unknown"))
