"""The tuning space: for each op of the model, the schemes it may run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from neural_compressor.schemes import OpKey, OpScheme, Plan


@dataclass(frozen=True)
class OpSpace:
    """The admitted schemes of one op: ``quantized`` ones best first, then ``floats`` (bf16, fp16, fp32 as admitted).

    An op that a rule keeps in float has no ``quantized`` option, and ``reason`` says why.
    """

    quantized: tuple[OpScheme, ...]
    floats: tuple[OpScheme, ...]
    reason: str = ""

    @property
    def default(self) -> OpScheme:
        """The best quantized scheme, or the float one where there is none."""
        return self.quantized[0] if self.quantized else self.floats[-1]

    @cached_property
    def options(self) -> tuple[OpScheme, ...]:
        """Everything the op may run with."""
        return self.quantized + self.floats

    def in_precision(self, name: str) -> OpScheme | None:
        """The float option of that precision, if admitted."""
        return next((s for s in self.floats if s.precision == name), None)


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
