"""Back to float where quantization hurts: blocks, single ops, then the ops whose fall-back helps most, added up."""

from __future__ import annotations

import math
from collections.abc import Iterable

from neural_compressor.config.words import FLOAT_PRECISIONS
from neural_compressor.strategy.candidate import Candidate
from neural_compressor.strategy.search import Search, Step, Steps


def fallback_steps(search: Search) -> Steps:
    """For each float precision the space has, the cheapest first; all start from the best plan that quantizes all ops.

    They share that start, and not what falling back finds, so that a later stage can find fewer ops in float.
    """
    base = search.best_quantized()
    for precision in FLOAT_PRECISIONS:
        yield from _block_steps(search, base, precision)
        targets = _targets(search, base, precision, range(len(base.choices)))
        impact: dict[int, float] = {}
        for position, choice in targets.items():
            outcome = yield Step(
                base.with_choices({position: choice}), f"{search.candidates.keys[position][0]} to {precision}"
            )
            impact[position] = math.inf if math.isnan(outcome.loss) else outcome.loss
        yield from _accumulated_steps(base, targets, impact, precision)


def _block_steps(search: Search, base: Candidate, precision: str) -> Steps:
    positions = search.candidates.positions
    for number, block in enumerate(search.candidates.space.blocks, start=1):
        targets = _targets(search, base, precision, [positions[key] for key in block])
        if targets:
            yield Step(base.with_choices(targets), f"block {number} to {precision}")


def _accumulated_steps(base: Candidate, targets: dict[int, int], impact: dict[int, float], precision: str) -> Steps:
    """Ops join in the order of the loss that is left when they alone fall back."""
    candidate = base
    for count, position in enumerate(sorted(targets, key=lambda p: (impact[p], p)), start=1):
        candidate = candidate.with_choices({position: targets[position]})
        yield Step(candidate, f"{count} ops to {precision}")


def _targets(search: Search, base: Candidate, precision: str, positions: Iterable[int]) -> dict[int, int]:
    """The quantized ops of ``base`` that admit ``precision``, with the choice that takes them there."""
    found = {}
    for position in positions:
        choice = search.candidates.float_choice(position, precision)
        if choice is not None and search.candidates.is_quantized(base, position):
            found[position] = choice
    return found
