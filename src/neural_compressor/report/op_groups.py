"""Ops of a quantized model grouped by what computes them and why, for tables and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neural_compressor.adaptor.records import OpRecord

INTEGERS, SIMULATED, FLOAT = "integers", "simulated", "float"


@dataclass(frozen=True)
class OpGroup:
    """Ops of one type that run alike. ``why`` is the kernel of those in integers, and the reason of the others."""

    how: str
    op_type: str
    why: str
    names: tuple[str, ...]


def runs_as(op: OpRecord) -> str:
    """``"integers"``, ``"simulated"`` (float arithmetic on rounded values) or ``"float"``."""
    return FLOAT if op.mode == "float" else SIMULATED if op.simulated else INTEGERS


def op_groups(ops: Sequence[OpRecord]) -> list[OpGroup]:
    """What computes in integers, then what is simulated, then what stays in float; the largest groups first."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for op in ops:
        how = runs_as(op)
        names.setdefault((how, op.op_type, op.kernel if how == INTEGERS else op.reason), []).append(op.name)
    groups = [OpGroup(*key, tuple(found)) for key, found in names.items()]
    order = (INTEGERS, SIMULATED, FLOAT)
    return sorted(groups, key=lambda group: (order.index(group.how), -len(group.names)))
