"""Quantized options one field at a time: first for all ops together, then op type by op type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from neural_compressor.schemes import OpScheme, PerChannel, PerGroup, TensorScheme
from neural_compressor.strategy.candidate import Candidate, Candidates
from neural_compressor.strategy.search import Search, Step, Steps
from neural_compressor.strategy.space import OpSpace

FIELDS = (
    "activation algorithm",
    "activation scheme",
    "weight granularity",
    "weight scheme",
    "weight algorithm",
    "activation granularity",
    "activation dtype",
    "weight dtype",
    "mode",
)
"""What can vary, the cheapest and least drastic first."""

Change = tuple[str, str]
"""A field and its new value."""


def variation_steps(search: Search) -> Steps:
    """The default plan, then what can be changed of it: all ops at once, calibration, recipes, single op types."""
    candidates = search.candidates
    yield Step(candidates.default(), "default")
    for mode in modes(candidates):
        base = in_mode(candidates, mode)
        yield Step(base, f"all ops: {mode}")
        members = [p for p in candidates.quantizable if candidates.scheme(base, p).mode == mode]
        for change, positions in joint_changes(candidates, base, members).items():
            if change[0] != "mode":
                yield Step(base.with_choices(positions), f"{mode} ops: {' '.join(change)}")
    yield from _calibration_steps(search)
    yield from _recipe_steps(search)
    base = search.best_quantized()
    for kind, members in candidates.by_type().items():
        for change, positions in joint_changes(candidates, base, members).items():
            yield Step(base.with_choices(positions), f"{kind}: {' '.join(change)}")


def modes(candidates: Candidates) -> tuple[str, ...]:
    """The quantization modes the space has, in the order of preference."""
    found = {option.mode for op in candidates.ops for option in op.quantized}
    return tuple(mode for mode in ("static", "dynamic", "weight_only") if mode in found)


def in_mode(candidates: Candidates, mode: str) -> Candidate:
    """Every op with its first option of that mode, or its default where it has none."""
    default = candidates.default()
    first = {
        position: next((i for i, option in enumerate(op.quantized) if option.mode == mode), default.choices[position])
        for position, op in enumerate(candidates.ops)
    }
    return default.with_choices(first)


def joint_changes(candidates: Candidates, base: Candidate, members: Iterable[int]) -> dict[Change, dict[int, int]]:
    """For each change of one field, the ops among ``members`` that admit it, with their new choices."""
    known: dict[tuple[int, int], dict[Change, int]] = {}
    joint: dict[Change, dict[int, int]] = {}
    for position in members:
        op, choice = candidates.ops[position], base.choices[position]
        # ops of one type share their space, so that what can change is found once for all of them
        if (id(op), choice) not in known:
            known[id(op), choice] = _single_changes(op, choice)
        for change, new in known[id(op), choice].items():
            joint.setdefault(change, {})[position] = new
    return dict(sorted(joint.items(), key=lambda item: FIELDS.index(item[0][0])))


def _single_changes(op: OpSpace, choice: int) -> dict[Change, int]:
    """The quantized options that differ from ``choice`` in one field; of another mode, the first."""
    if choice >= len(op.quantized):
        return {}
    base, changes = _fields(op.quantized[choice]), dict[Change, int]()
    for index, option in enumerate(op.quantized):
        fields = _fields(option)
        differing = [name for name in FIELDS if fields[name] != base[name]]
        if "mode" in differing:
            changes.setdefault(("mode", fields["mode"]), index)
        elif len(differing) == 1:
            changes[differing[0], fields[differing[0]]] = index
    return changes


def _fields(option: OpScheme) -> dict[str, str]:
    fields = {"mode": option.mode, "method": "" if option.method is None else str(option.method)}
    for name, tensor in (("weight", option.weight), ("activation", option.activation)):
        for field, value in _tensor_fields(tensor).items():
            fields[f"{name} {field}"] = value
    return fields


def _tensor_fields(tensor: TensorScheme | None) -> dict[str, str]:
    if tensor is None:
        return dict.fromkeys(("dtype", "scheme", "granularity", "algorithm"), "")
    group = tensor.granularity
    if isinstance(group, PerGroup):
        extent = f"{group.name} of {group.size}"
    else:
        extent = f"{group.name} {group.axis}" if isinstance(group, PerChannel) and group.axis else group.name
    return {
        "dtype": tensor.dtype.name,
        "scheme": "sym" if tensor.symmetric else "asym",
        "granularity": extent,
        "algorithm": tensor.algorithm,
    }


def _calibration_steps(search: Search) -> Steps:
    base = search.best_quantized()
    for index, size in enumerate(search.candidates.space.calibration_sizes):
        yield Step(replace(base, calibration=index), f"{size} calibration samples")


def _recipe_steps(search: Search) -> Steps:
    recipes: dict[str, tuple[Any, ...]] = dict(search.candidates.space.recipes)
    for position, (name, values) in enumerate(recipes.items()):
        base = search.best_quantized()
        for index, value in enumerate(values):
            yield Step(base.with_recipe(position, index), f"recipe {name}={value}")
