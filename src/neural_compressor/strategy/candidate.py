"""A plan as indices into the tuning space: cheap to compare, to hash and to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from neural_compressor.schemes import OpKey, OpScheme, Plan
from neural_compressor.strategy.space import OpSpace, TuningSpace

CALIBRATED_MODES = ("static", "weight_only")
"""Modes in which calibration data matter: ranges in static, the algorithms of weight-only quantization."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """``choices`` holds, for each op in the order of the space, the index of its scheme among the op's options."""

    choices: tuple[int, ...]
    calibration: int = 0
    recipes: tuple[int, ...] = ()

    def with_choices(self, changes: Mapping[int, int]) -> Candidate:
        """The candidate with the choices of some ops, by position, changed."""
        choices = list(self.choices)
        for position, choice in changes.items():
            choices[position] = choice
        return replace(self, choices=tuple(choices))

    def with_recipe(self, position: int, choice: int) -> Candidate:
        """The candidate with another value of one recipe."""
        return replace(self, recipes=(*self.recipes[:position], choice, *self.recipes[position + 1 :]))


class Candidates:
    """The candidates of one space, and the plans they stand for."""

    def __init__(self, space: TuningSpace) -> None:
        self.space = space
        self.keys: tuple[OpKey, ...] = tuple(space.ops)
        self.ops: tuple[OpSpace, ...] = tuple(space.ops.values())
        self.positions = {key: position for position, key in enumerate(self.keys)}
        #: The positions of ops that have a quantized option.
        self.quantizable = tuple(position for position, op in enumerate(self.ops) if op.quantized)

    def default(self) -> Candidate:
        """Every op with its best scheme."""
        return Candidate(tuple(op.options.index(op.default) for op in self.ops), 0, (0,) * len(self.space.recipes))

    def all_float(self) -> Candidate:
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

    def scheme(self, candidate: Candidate, position: int) -> OpScheme:
        """The scheme the candidate gives to an op."""
        return self.ops[position].options[candidate.choices[position]]

    def is_quantized(self, candidate: Candidate, position: int) -> bool:
        """Whether the candidate quantizes the op."""
        return candidate.choices[position] < len(self.ops[position].quantized)

    def is_fully_quantized(self, candidate: Candidate) -> bool:
        """Whether the candidate quantizes every op that can be."""
        return all(self.is_quantized(candidate, position) for position in self.quantizable)

    def needs_calibration(self, candidate: Candidate) -> bool:
        """Whether some op of the candidate takes anything from calibration data."""
        return any(scheme.mode in CALIBRATED_MODES for scheme in self._schemes(candidate))

    def canonical(self, candidate: Candidate) -> Candidate:
        """The one candidate that stands for all with the same effect: without calibration its size does not matter."""
        if candidate.calibration and not self.needs_calibration(candidate):
            return replace(candidate, calibration=0)
        return candidate

    def is_baseline(self, candidate: Candidate) -> bool:
        """Whether nothing is changed: every op in fp32."""
        return all(scheme.is_float and scheme.precision == "fp32" for scheme in self._schemes(candidate))

    def plan(self, candidate: Candidate) -> Plan:
        """The plan the candidate stands for."""
        recipes = zip(self.space.recipes.items(), candidate.recipes, strict=True)
        return Plan(
            dict(zip(self.keys, self._schemes(candidate), strict=True)),
            self.space.calibration_sizes[candidate.calibration],
            {name: values[choice] for (name, values), choice in recipes},
        )

    def _schemes(self, candidate: Candidate) -> Iterator[OpScheme]:
        return (op.options[choice] for op, choice in zip(self.ops, candidate.choices, strict=True))
