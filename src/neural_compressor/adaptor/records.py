"""Records of the ops of a model: how they run, as tables and reports show them, and the tensors that were inspected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neural_compressor.paths import write_errors


@dataclass(frozen=True)
class Node:
    """What a model runs under a name, where the framework has no nodes of its own."""

    name: str
    op_type: str


@dataclass(frozen=True)
class OpRecord:
    """One op of a quantized model, as tables and reports show it.

    ``kernel`` names what runs the op; ``simulated`` says that it is float arithmetic on quantized values.
    ``reason`` is filled where the op stays in float, and where it is simulated: why, and what would help; also where an
    optimisation of it was given up. SQNR values are in dB; None where nothing was quantized. ``time_share`` is the part of
    a run of the quantized model that the op takes, ``float_time_share`` the same of the float model; None where nobody
    measured it.
    """

    name: str
    op_type: str
    precision: str
    activation: str = "fp32"
    mode: str = "float"
    kernel: str = "float"
    simulated: bool = False
    reason: str = ""
    weight_sqnr: float | None = None
    output_sqnr: float | None = None
    size_bytes: int = 0
    time_share: float | None = None
    float_time_share: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def with_time_shares(
    records: Iterable[OpRecord], before: Mapping[str, float], after: Mapping[str, float]
) -> list[OpRecord]:
    """``records`` with the shares of the float model (``before``) and of the quantized one (``after``), by name."""
    return [replace(op, time_share=after.get(op.name), float_time_share=before.get(op.name)) for op in records]


def save_inspected(found: Mapping[str, Any], workspace: Path) -> None:
    """Write what ``inspect_tensor`` of an adaptor found into the workspace, as one file of arrays."""
    folder = workspace / "inspect_saved"
    flat = {f"weight/{op}/{n}": a for op, arrays in found.get("weight", {}).items() for n, a in arrays.items()}
    for index, ops in enumerate(found.get("activation", []), start=1):
        flat |= {f"activation{index}/{op}/{n}": a for op, arrays in ops.items() for n, a in arrays.items()}
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "inspect_result.npz", **flat)
