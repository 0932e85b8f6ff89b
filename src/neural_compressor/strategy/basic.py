"""The basic strategy: quantized options first, then back to float op by op; and auto, which starts with op types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from neural_compressor.schemes import OpScheme, PerChannel, PerGroup, TensorScheme
from neural_compressor.strategy.base import STRATEGIES
from neural_compressor.strategy.conservative import conservative_steps
from neural_compressor.strategy.fallback import fallback_steps
from neural_compressor.strategy.search import Search, SearchStrategy, Step, Steps
from neural_compressor.strategy.space import Grid, OpSpace, Point

FIELDS = (
    "activation algorithm",
    "activation scheme",
    "weight granularity",
    "weight scheme",
    "weight algorithm",
    "method",
    "activation granularity",
    "activation dtype",
    "weight dtype",
    "mode",
)
"""What can vary, the cheapest and least drastic first."""

Change = tuple[str, str]
"""A field and its new value."""


@STRATEGIES.register("basic")
class BasicStrategy(SearchStrategy):
    """Options that are varied together for all ops, then for one op type at a time; static ranges before dynamic ones;
    calibration sizes and recipes; then, in bf16, fp16 and fp32 as admitted, fall-back of blocks, of single ops, and of
    the ops that helped most, one more at each step."""

    def steps(self) -> Steps:
        """Quantized options, then fall-back."""
        return basic_steps(self.search)


@STRATEGIES.register("auto")
class AutoStrategy(SearchStrategy):
    """Everything quantized by default; if that loses too much, op types one after another; then the basic strategy. All
    three share what was tried."""

    def steps(self) -> Steps:
        """The three parts, over one search."""
        yield Step(self.search.grid.default(), "default")
        yield from conservative_steps(self.search)
        yield from basic_steps(self.search)


def basic_steps(search: Search) -> Steps:
    """Quantized options, the default first; then fall-back from the best of them."""
    yield from variation_steps(search)
    yield from fallback_steps(search)


def variation_steps(search: Search) -> Steps:
    """The default plan, then what can be changed of it: all ops at once, calibration, recipes, single op types.

    One field at a time; what comes later starts from the best so far.
    """
    grid = search.grid
    yield Step(grid.default(), "default")
    yield _mode_steps(grid)
    base = search.best_quantized()
    sizes = grid.space.calibration_sizes
    yield [Step(replace(base, calibration=i), f"{size} calibration samples") for i, size in enumerate(sizes)]
    for position, (name, values) in enumerate(grid.space.recipes.items()):
        base = search.best_quantized()
        yield [Step(base.with_recipe(position, i), f"recipe {name}={value}") for i, value in enumerate(values)]
    yield _type_steps(grid, search.best_quantized())


def _mode_steps(grid: Grid) -> Iterator[Step]:
    for mode in modes(grid):
        base = in_mode(grid, mode)
        yield Step(base, f"all ops: {mode}")
        members = [p for p in grid.quantizable if grid.scheme(base, p).mode == mode]
        for change, positions in joint_changes(grid, base, members).items():
            if change[0] != "mode":
                yield Step(base.with_choices(positions), f"{mode} ops: {' '.join(change)}")


def _type_steps(grid: Grid, base: Point) -> Iterator[Step]:
    for kind, members in grid.by_type().items():
        for change, positions in joint_changes(grid, base, members).items():
            yield Step(base.with_choices(positions), f"{kind}: {' '.join(change)}")


def modes(grid: Grid) -> tuple[str, ...]:
    """The quantization modes the space has, in the order of preference."""
    found = {option.mode for op in grid.ops for option in op.quantized}
    return tuple(mode for mode in ("static", "dynamic", "weight_only") if mode in found)


def in_mode(grid: Grid, mode: str) -> Point:
    """Every op with its first option of that mode, or its default where it has none."""
    default = grid.default()
    first = {
        position: next((i for i, option in enumerate(op.quantized) if option.mode == mode), default.choices[position])
        for position, op in enumerate(grid.ops)
    }
    return default.with_choices(first)


def joint_changes(grid: Grid, base: Point, members: Iterable[int]) -> dict[Change, dict[int, int]]:
    """For each change of one field, the ops among ``members`` that admit it, with their new choices."""
    known: dict[tuple[int, int], dict[Change, int]] = {}
    joint: dict[Change, dict[int, int]] = {}
    for position in members:
        op, choice = grid.ops[position], base.choices[position]
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
