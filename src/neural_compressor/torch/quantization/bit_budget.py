"""``target_bits`` of :class:`AutoRoundConfig`: which scheme each layer gets, so that weights have so many bits on average.

An option costs a layer the bits of its packed weight, scales included, and the relative squared error of its output when
each weight goes to the nearest value, times the gain g of the layer (:mod:`neural_compressor.torch.sensitivity`):
g * sum_i h_i |w_i - q_i|^2 / sum_i h_i |w_i|^2, with w_i the weights of input i and h_i the mean square of that input.
Without data in the configuration all h and g are 1, and so are those of experts that are fused into one parameter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neural_compressor.algorithms import ALGORITHMS, double_quant
from neural_compressor.config.composed import sum_of
from neural_compressor.config.composition import Composition
from neural_compressor.config.op_selector import Assignment, Tier
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpKey, OpScheme, Plan
from neural_compressor.torch.batches import layer_input, run_batches
from neural_compressor.torch.files.checkpoint_layers import layers_of_one_input
from neural_compressor.torch.files.streaming import is_empty
from neural_compressor.torch.hooks import evaluating, hooked
from neural_compressor.torch.modules.matrix_stack import parameter_stack
from neural_compressor.torch.modules.weight_only import matrix_of
from neural_compressor.torch.quantization.autoround_runs import named_batches
from neural_compressor.torch.quantization.config.autoround import RULES, AutoRoundConfig
from neural_compressor.torch.quantization.config.autoround_names import BUDGET_FIELDS
from neural_compressor.torch.quantization.config.autoround_schemes import scheme_fields
from neural_compressor.torch.sensitivity import op_gains
from neural_compressor.torch.structure.ops import find_ops, is_parameter

logger = logging.getLogger("neural_compressor")
_CHOSEN = ("dtype", "bits", "act_dtype", "act_bits", "scheme")
"""What an option says in place of the configuration."""


class Choice(NamedTuple):
    """What one option costs some layers."""

    bits: int
    error: float
    option: str


def with_chosen_schemes(model: nn.Module, config: Composition, plan_of: Callable[[Any], Plan]) -> Composition:
    """``config`` with a rule for each layer in place of a budget of bits; ``plan_of`` plans a configuration without one."""
    budgets = [part for part in config.parts if isinstance(part, AutoRoundConfig) and part.changed(*BUDGET_FIELDS)]
    if not budgets:
        return config
    if len(budgets) > 1:
        raise ConfigError("AutoRoundConfig.target_bits: two parts of a sum have a budget of bits; say it in one")
    (part,) = budgets
    target, options = _checked(part)
    if is_empty(model):
        raise ConfigError("AutoRoundConfig.target_bits: errors are of weights, and the model has none (meta device)")

    def instead(new: AutoRoundConfig) -> Composition:
        return sum_of(new if each is part else each for each in config.parts)

    plans = {option: plan_of(instead(_with_option(part, option, rules=True))) for option in options}
    found = _with_option(part, options[0], rules=True)
    ops, in_float = find_ops(model)
    given = instead(found).assign(dict(ops.keys()), in_float)
    own = {name for name, each in given.items() if _is_of(each, found)}
    open_ops = list(dict.fromkeys(key for plan in plans.values() for key in plan if key[0] in own))
    units = _fused(model, open_ops) if part.shared_layers is None else _units(open_ops, part.shared_layers)
    costs = _costs(model, part, open_ops, plans)
    choices = [_together([costs[key] for key in unit], unit) for unit in units]
    weights = sum(_matrix(model, key).numel() for key in open_ops)
    chosen = allot(choices, target * weights)
    for unit, choice in zip(units, chosen, strict=True):
        found.set_local([name for name, _ in unit], _with_option(part, choice.option, rules=False))
        logger.debug("%s for %s", choice.option, ", ".join(name for name, _ in unit))
    average = sum(choice.bits for choice in chosen) / max(weights, 1)
    counts = {option: sum(choice.option == option for choice in chosen) for option in options}
    spread = ", ".join(f"{option} {count}" for option, count in counts.items())
    logger.info("target_bits %s: %.3f bits a weight on average, scales included (%s)", target, average, spread)
    return instead(found)


def allot(units: Sequence[Sequence[Choice]], budget: float) -> list[Choice]:
    """A choice for each unit with as little error as fits in ``budget`` bits.

    All start with the fewest bits; then those are bought that take away the most error a bit, as long as they fit.

    >>> small, large = Choice(2, 1.0, "2 bits"), Choice(4, 0.5, "4 bits")
    >>> [found.option for found in allot([[small, large], [small, large._replace(error=0.1)]], 6)]
    ['2 bits', '4 bits']
    """
    chosen = [min(choices) for choices in units]
    spent = sum(choice.bits for choice in chosen)
    if spent > budget:
        raise ConfigError(
            f"AutoRoundConfig.target_bits: the smallest of the options takes {spent / budget:.3f} times the bits that there "
            "are, with its scales; give more, a larger group_size, or options with fewer bits"
        )
    offers = [(rate, unit, to) for unit, choices in enumerate(units) for rate, to in _upgrades(choices)]
    # Of one unit they come in the order of their bits: rates fall, and a sort keeps the order of equal ones.
    for _, unit, to in sorted(offers, key=lambda offer: -offer[0]):
        if spent + to.bits - chosen[unit].bits <= budget:
            spent += to.bits - chosen[unit].bits
            chosen[unit] = to
    return chosen


def _upgrades(choices: Sequence[Choice]) -> Iterator[tuple[float, Choice]]:
    """From the smallest on the next choice that takes away the most error for each bit more, with how much."""
    at = min(choices)
    while better := [each for each in choices if each.error < at.error and each.bits > at.bits]:
        rate, to = max(((at.error - each.error) / (each.bits - at.bits), each) for each in better)
        yield rate, to
        at = to


def _checked(part: AutoRoundConfig) -> tuple[float, tuple[str, ...]]:
    """The budget and the schemes to choose from; what goes only with both is refused alone."""
    if part.target_bits is None or part.options is None:
        said = next(iter(part.changed(*BUDGET_FIELDS)))
        raise ConfigError(f"AutoRoundConfig.{said}: schemes are chosen with target_bits and options; give both")
    for name in part.model_fields_set & part.changed(*_CHOSEN).keys():
        raise ConfigError(
            f"AutoRoundConfig.{name}: with target_bits it is one of options that says so, layer by layer; leave it out, "
            "or say it of some layers with layer_config"
        )
    if "group_size" in part.model_fields_set and all(map(_has_group_size, part.options)):
        raise ConfigError("AutoRoundConfig.group_size: all options have one of their own; leave it out")
    return part.target_bits, part.options


def _has_group_size(option: str) -> bool:
    return bool(scheme_fields(option).keys() & {"group_size", "dtype"})  # block formats have one


def _with_option(part: AutoRoundConfig, option: str, *, rules: bool) -> AutoRoundConfig:
    """The configuration with ``option`` as its scheme: of the whole model, or that of a rule."""
    without = {*BUDGET_FIELDS, *_CHOSEN} if rules else {*RULES, *_CHOSEN}
    without |= {"group_size"} if _has_group_size(option) else set()
    said = {name: getattr(part, name) for name in part.model_fields_set - without}
    return AutoRoundConfig(**said, scheme=option)


def _is_of(given: Assignment[Any], config: AutoRoundConfig) -> bool:
    """Whether an op has what ``config`` says of all layers, and not what a rule says."""
    if given.claim is None or given.claim.tier is Tier.LOCAL or not isinstance(given.config, AutoRoundConfig):
        return False
    return given.config.identity == config.alone().identity


def _fused(model: nn.Module, ops: Sequence[OpKey]) -> list[list[OpKey]]:
    """``ops`` one by one, but together those that engines multiply as one matrix, which have one scheme in a file."""
    groups = layers_of_one_input(model) or ()
    placed = {name: number for number, names in enumerate(groups) for name in names}
    units: dict[Any, list[OpKey]] = {}
    for key in ops:
        units.setdefault(placed.get(key[0], key), []).append(key)
    return list(units.values())


def _units(ops: Sequence[OpKey], shared: Sequence[Sequence[str]]) -> list[list[OpKey]]:
    """``ops`` one by one, but together those that ``shared`` names by how their names end, in each place of the model."""
    placed: dict[OpKey, Any] = {}
    for number, group in enumerate(shared):
        for text in group:
            end = text.removeprefix("*").removeprefix(".")
            named = [key for key in ops if key[0] == end or key[0].endswith(f".{end}")]
            if not named:
                raise ConfigError(
                    f"AutoRoundConfig.shared_layers: no layer that has a choice ends with {text!r}; such are "
                    f"{', '.join(name for name, _ in ops[:5])}"
                )
            for key in named:
                if key in placed:
                    raise ConfigError(f"AutoRoundConfig.shared_layers: layer {key[0]!r} is named twice")
                placed[key] = (number, key[0].removesuffix(end))
    units: dict[Any, list[OpKey]] = {}
    for key in ops:
        units.setdefault(placed.get(key, key), []).append(key)
    return list(units.values())


def _together(costs: Sequence[Mapping[str, Choice]], unit: Sequence[OpKey]) -> list[Choice]:
    """What the options that all layers of a unit can have cost them together."""
    common = [option for option in costs[0] if all(option in each for each in costs)]
    if not common:
        raise ConfigError(
            f"AutoRoundConfig.options: none does for all of {[name for name, _ in unit]}, which have one scheme; leave some "
            "of them out with layer_config, or say with shared_layers what has one"
        )
    parts = {option: [each[option] for each in costs] for option in common}
    return [Choice(sum(c.bits for c in of), sum(c.error for c in of), option) for option, of in parts.items()]


def _costs(
    model: nn.Module, part: AutoRoundConfig, ops: Sequence[OpKey], plans: Mapping[str, Plan]
) -> dict[OpKey, dict[str, Choice]]:
    squares: dict[OpKey, Tensor] = {}
    gains: dict[OpKey, float] = {}
    if part.dataset is not None:
        layers = [key for key in ops if not is_parameter(model, key[0])]
        with evaluating(model):
            squares = _mean_squares(model, part, layers)
            gains = op_gains(model, layers, named_batches(part, model), part.nsamples)
    found: dict[OpKey, dict[str, Choice]] = {}
    for key in ops:
        weight = _matrix(model, key)
        options = {option: plan[key] for option, plan in plans.items() if key in plan}
        found[key] = {
            option: _cost(weight, op, option, squares.get(key), gains.get(key, 1.0)) for option, op in options.items()
        }
    return found


def _cost(weight: Tensor, op: OpScheme, option: str, squares: Tensor | None, gain: float) -> Choice:
    assert op.weight is not None
    result = ALGORITHMS["rtn"](weight, replace(op.weight, algorithm="minmax", scales=None, zeros=None))
    result = replace(result, array=double_quant(result.array, op.weight.scales, op.weight.zeros, weight))
    of_inputs = torch.ones(weight.shape[1]) if squares is None else squares
    of_inputs = of_inputs.to(weight.device, torch.float32)
    noise = float(((result.dequantize() - weight).square() @ of_inputs).double().sum())
    signal = float((weight.square() @ of_inputs).double().sum())
    return Choice(result.array.nbytes_packed * 8, gain * noise / signal if signal else 0.0, option)


def _mean_squares(model: nn.Module, part: AutoRoundConfig, ops: Sequence[OpKey]) -> dict[OpKey, Tensor]:
    """By op the sum of squares of each input: relative errors are the same as with the mean."""
    sums: dict[OpKey, Tensor] = {}

    def add(key: OpKey, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        squares = layer_input((args, kwargs)).detach().flatten(0, -2).float().square().sum(0)
        sums[key] = sums[key] + squares if key in sums else squares

    with hooked({key: model.get_submodule(key[0]) for key in ops}, before=add):
        run_batches(model, named_batches(part, model), part.nsamples)
    return sums


def _matrix(model: nn.Module, key: OpKey) -> Tensor:
    """The weight of an op as (outputs, inputs) in float32."""
    return matrix_of(parameter_stack(model, key[0]) or model.get_submodule(key[0])).float().contiguous()
