"""The tuning space: for each op of the model, the schemes it may run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neural_compressor.config.resolver import OpSpace
from neural_compressor.schemes import OpKey, Plan

__all__ = ["OpSpace", "TuningSpace"]


@dataclass(frozen=True)
class TuningSpace:
    """Everything a plan can vary: schemes op by op, the number of calibration samples, recipes."""

    ops: Mapping[OpKey, OpSpace]
    calibration_sizes: tuple[int, ...] = (100,)
    blocks: tuple[tuple[OpKey, ...], ...] = ()
    recipes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def default_plan(self) -> Plan:
        """Every op with its best admitted scheme."""
        recipes = {name: values[0] for name, values in self.recipes.items()}
        return Plan({key: op.default for key, op in self.ops.items()}, self.calibration_sizes[0], recipes)
