"""The usual reporter of a tuning run: progress and result on the terminal, the evidence in an HTML report.

The evidence includes what a run depended on beside its arguments: the machine, the versions, the day.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.config.base import ConfigModel, plain
from neural_compressor.config.composition import Composition
from neural_compressor.kernel_timings import cpu_model
from neural_compressor.report.html import keep_report
from neural_compressor.report.terminal import TuningProgress, print_result
from neural_compressor.tuning.reporter import Reporter
from neural_compressor.tuning.result import TuningResult

_SAVED = "quantized"
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


@dataclass(frozen=True)
class RunReport(Reporter):
    """Progress and result on the terminal, unless it is ``quiet``, and an HTML report in the workspace."""

    quiet: bool = False

    def running(self, title: str, trials: int) -> TuningProgress:
        """A bar, or a line for each step."""
        return TuningProgress(trials, quiet=self.quiet, title=title)

    def keep(self, result: TuningResult, adaptor: Adaptor, conf: ConfigModel, workspace: Path) -> None:
        """Write the HTML report, with how the run was made and how its model is loaded."""
        add_evidence(result, adaptor, conf)
        result.report = keep_report(result, workspace)

    def show(self, result: TuningResult) -> None:
        """Print the trials and the verdict."""
        if not self.quiet:
            print_result(result)


def add_evidence(result: TuningResult, adaptor: Adaptor, conf: ConfigModel) -> None:
    """Add to the metadata of ``result``.

    ``environment`` (date, machine, versions), ``configuration`` (what was set, not the defaults), ``batch_size`` of the
    example that latencies and shares of time are of, ``samples_seen`` in calibration, and ``loading``: lines of Python that
    load the model.
    """
    path = result.metadata.get("best_model")
    saving = "" if path else f'# q_model: what was returned\nq_model.save("{_SAVED}")\n'
    result.metadata |= {
        "environment": environment(),
        "configuration": as_given(conf),
        "batch_size": _batch_size(adaptor.example),
        "samples_seen": dict(getattr(adaptor, "samples_seen", {})),
        "loading": saving + adaptor.load_snippet(path or _SAVED),
    }


def as_given(value: Any) -> Any:
    """A configuration as plain data: the fields that somebody set; what has no plain form by the name of its type.

    >>> from neural_compressor.config import PostTrainingQuantConfig
    >>> as_given(PostTrainingQuantConfig(approach="dynamic", example_inputs=object()))
    {'approach': 'dynamic', 'example_inputs': 'object'}
    """
    if isinstance(value, Composition):
        return str(value)
    if isinstance(value, ConfigModel):
        fields = type(value).model_fields
        return {name: as_given(getattr(value, name)) for name in fields if name in value.model_fields_set}
    if isinstance(value, Mapping):
        return {str(key): as_given(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_given(item) for item in value]
    value = plain(value)
    return value if value is None or isinstance(value, str | int | float | dict) else type(value).__name__


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


def _batch_size(example: Any) -> int | None:
    """The first dimension of the first array of an example."""
    if isinstance(example, Mapping):
        example = list(example.values())
    if isinstance(example, list | tuple):
        return next((size for item in example if (size := _batch_size(item)) is not None), None)
    shape = getattr(example, "shape", ())
    return int(shape[0]) if shape else None
