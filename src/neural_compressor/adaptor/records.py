"""Records of the ops of a model: how they run, as tables and reports show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any


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
