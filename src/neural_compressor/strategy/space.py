"""The tuning space: for each op of the model, the schemes it may run with; and plans as points of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.config.recipes import with_recipes
from neural_compressor.config.resolver import OpSpace
from neural_compressor.schemes import OpKey, OpScheme, Pass, Plan

CALIBRATED_MODES = ("static", "weight_only")
"""Modes in which calibration data matter: ranges in static, the algorithms of weight-only quantization."""

__all__ = ["OpSpace", "TuningSpace"]


@dataclass(frozen=True)
class TuningSpace:
    """Everything a plan can vary: schemes op by op, the number of calibration samples, recipes. ``passes`` all have.

    ``adds_in_pairs`` has by mode the ops that overflow on some CPUs, unless their weights are made safe.
    """

    ops: Mapping[OpKey, OpSpace]
    calibration_sizes: tuple[int, ...] = (100,)
    blocks: tuple[tuple[OpKey, ...], ...] = ()
    recipes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    passes: tuple[Pass, ...] = ()
    adds_in_pairs: Mapping[str, Collection[OpKey]] = field(default_factory=dict)

    def default_plan(self) -> Plan:
        """Every op with its best admitted scheme."""
        recipes = {name: values[0] for name, values in self.recipes.items()}
        ops = {key: op.default for key, op in self.ops.items()}
        return self.plan(ops, self.calibration_sizes[0], recipes)

    def plan(self, ops: Mapping[OpKey, OpScheme], size: int, recipes: Mapping[str, Any]) -> Plan:
        """The plan of these choices."""
        return with_recipes(Plan(ops, size, self.passes), recipes, self.adds_in_pairs)

    def explained(self, record: OpRecord) -> OpRecord:
        """``record`` with the rule, or the race of kernels, that keeps its op in float, where one does."""
        op = self.ops.get((record.name, record.op_type))
        return replace(record, reason=op.reason) if record.mode == "float" and op and op.reason else record


@dataclass(frozen=True, slots=True)
class Point:
    """``choices`` holds, for each op in the order of the space, the index of its scheme among the op's options."""

    choices: tuple[int, ...]
    calibration: int = 0
    recipes: tuple[int, ...] = ()

    def with_choices(self, changes: Mapping[int, int]) -> Point:
        """The point with the choices of some ops, by position, changed."""
        choices = list(self.choices)
        for position, choice in changes.items():
            choices[position] = choice
        return replace(self, choices=tuple(choices))

    def with_recipe(self, position: int, choice: int) -> Point:
        """The point with another value of one recipe."""
        return replace(self, recipes=(*self.recipes[:position], choice, *self.recipes[position + 1 :]))


class Grid:
    """The points of one space, and the plans they stand for."""

    def __init__(self, space: TuningSpace) -> None:
        self.space = space
        self.keys: tuple[OpKey, ...] = tuple(space.ops)
        self.ops: tuple[OpSpace, ...] = tuple(space.ops.values())
        self.positions = {key: position for position, key in enumerate(self.keys)}
        #: The positions of ops that have a quantized option.
        self.quantizable = tuple(position for position, op in enumerate(self.ops) if op.quantized)

    def default(self) -> Point:
        """Every op with its best scheme."""
        return Point(tuple(op.options.index(op.default) for op in self.ops), 0, (0,) * len(self.space.recipes))

    def all_float(self) -> Point:
        """Every op in the last of its float precisions, which is fp32 unless a rule names another."""
        return replace(self.default(), choices=tuple(len(op.options) - 1 for op in self.ops))

    def by_type(self) -> dict[str, list[int]]:
        """The positions of quantizable ops by op type."""
        types: dict[str, list[int]] = {}
        for position in self.quantizable:
            types.setdefault(self.keys[position][1], []).append(position)
        return types

    def float_choice(self, position: int, precision: str) -> int | None:
        """The index of an op's float option of that precision, if admitted."""
        scheme = self.ops[position].in_precision(precision)
        return None if scheme is None else self.ops[position].options.index(scheme)

    def scheme(self, point: Point, position: int) -> OpScheme:
        """The scheme the point gives to an op."""
        return self.ops[position].options[point.choices[position]]

    def is_quantized(self, point: Point, position: int) -> bool:
        """Whether the point quantizes the op."""
        return point.choices[position] < len(self.ops[position].quantized)

    def is_fully_quantized(self, point: Point) -> bool:
        """Whether the point quantizes every op that can be."""
        return all(self.is_quantized(point, position) for position in self.quantizable)

    def needs_calibration(self, point: Point) -> bool:
        """Whether some op of the point takes anything from calibration data."""
        return any(scheme.mode in CALIBRATED_MODES for scheme in self._schemes(point))

    def canonical(self, point: Point) -> Point:
        """The one point that stands for all with the same effect: without calibration its size does not matter."""
        if point.calibration and not self.needs_calibration(point):
            return replace(point, calibration=0)
        return point

    def is_baseline(self, point: Point) -> bool:
        """Whether nothing is changed: every op in fp32."""
        return all(scheme.is_float and scheme.precision == "fp32" for scheme in self._schemes(point))

    def plan(self, point: Point) -> Plan:
        """The plan the point stands for."""
        recipes = zip(self.space.recipes.items(), point.recipes, strict=True)
        return self.space.plan(
            dict(zip(self.keys, self._schemes(point), strict=True)),
            self.space.calibration_sizes[point.calibration],
            {name: values[choice] for (name, values), choice in recipes},
        )

    def _schemes(self, point: Point) -> Iterator[OpScheme]:
        return (op.options[choice] for op, choice in zip(self.ops, point.choices, strict=True))
