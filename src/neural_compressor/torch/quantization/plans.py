"""Plans of configurations: the scheme of each op of a model, and why the others stay in float."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from torch.fx import GraphModule

from neural_compressor.adaptor.tensor_options import OpConfig
from neural_compressor.algorithms import needs_data
from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import Composition
from neural_compressor.config.op_plans import config_request, plan_ops
from neural_compressor.config.op_request import Request
from neural_compressor.config.op_selector import Assignment
from neural_compressor.config.recipes import in_order
from neural_compressor.config.resolver import OpSpace, op_space
from neural_compressor.errors import ConfigError, NothingToQuantizeError
from neural_compressor.schemes import OpKey, OpScheme, Pass, Plan
from neural_compressor.torch.capability import PyTorchQuery, opwise
from neural_compressor.torch.executor import CORRECT_BIASES, USUAL_PASSES
from neural_compressor.torch.modules.function_products import opened_products, product_ops
from neural_compressor.torch.passes.model_pass import PASSES
from neural_compressor.torch.plan_check import check
from neural_compressor.torch.pt2e.exported import is_exported
from neural_compressor.torch.pt2e.graph_race import slower_in_graph
from neural_compressor.torch.pt2e.ops import find_graph_ops, graph_opwise
from neural_compressor.torch.quantization.bit_budget import with_chosen_schemes
from neural_compressor.torch.quantization.config import FP8Config
from neural_compressor.torch.quantization.config.fp8 import RUN_FIELDS
from neural_compressor.torch.quantization.products import are_named
from neural_compressor.torch.structure.ops import BY_FUNCTION, find_ops, is_parameter, not_weight_only, output_head

logger = logging.getLogger("neural_compressor")

_NOT_ALONE = "in an exported graph weights are not quantized alone; give the configuration the eager model"


def plan_for(model: nn.Module, config: Any, without_runs: str = "") -> tuple[Plan, dict[OpKey, str]]:
    """What ``config`` makes of ``model``, and the ops that stay in float with the reason.

    ``without_runs`` names the function that plans, where that has no runs of :class:`FP8Config`.

    What the framework cannot run is an error if the configuration asks for nothing else, or if a rule of its own speaks of
    no other op; elsewhere such an op stays in float.
    """
    if not isinstance(config, Composition):
        what = f"the class {config.__name__}" if isinstance(config, type) else f"a {type(config).__name__}"
        raise ConfigError(f"quant_config is {what}; expected a configuration such as RTNConfig()")
    config = with_chosen_schemes(model, config, lambda each: plan_for(model, each, without_runs)[0])
    is_graph = is_exported(model)
    found: Mapping[OpKey, Any]
    if isinstance(model, GraphModule) and is_graph:
        found, left = find_graph_ops(model)
        resolver = _Resolver(model, graph_opwise(found), dict.fromkeys(found, _NOT_ALONE))
    else:
        found, left = find_ops(model)
        with_head = any(getattr(part, "quant_lm_head", False) for part in config.parts)
        not_alone = not_weight_only(model, found, with_head)
        resolver = _Resolver(model, opwise(PyTorchQuery(), found), not_alone, () if with_head else _heads(model, found))
    _check_fp8(model, found, left, config, without_runs)
    _check_attention(config, "an exported graph" if is_graph else without_runs)
    planned = plan_ops(config, found, resolver.scheme, left)
    ops = planned.schemes
    left |= planned.left
    faster_in_float: dict[OpKey, OpScheme] = {}
    if isinstance(model, GraphModule) and is_graph:
        for key, reason in slower_in_graph(model, ops).items():
            if not planned.assigned[key[0]].explicit:
                faster_in_float[key] = ops.pop(key)
                left[key] = f"{reason}; a rule that speaks of it has it quantized"
    if not ops:
        raise _nothing(model, bool(found), left, planned.refusals)
    steps: dict[Pass, list[OpKey]] = {}
    for key in ops:
        config_of: Any = planned.assigned[key[0]].config
        for step in config_of.passes:
            steps.setdefault(step, []).append(key)
    for step in [each for each in steps if not _serves_any(each, ops) and _serves_any(each, faster_in_float)]:
        del steps[step]
        logger.warning("the pass %s is left out: all layers that it is for stay in float, which is faster here", step)
    static = any(map(_is_static_integer, ops.values()))
    usual = (CORRECT_BIASES,) if is_graph else USUAL_PASSES
    plan = Plan(ops, passes=_passes(steps, ops, usual if static else ()))
    if not is_graph:
        check(model, plan)
    return plan, left


def _check_fp8(
    model: nn.Module, found: Mapping[OpKey, Any], left: Mapping[OpKey, str], config: Composition, without_runs: str
) -> None:
    """Refuse fields of each :class:`FP8Config` that the model contradicts, or that speak of a run where there is none."""
    parts = [part for part in config.parts if isinstance(part, FP8Config)]
    every_rule = ((rule.selector, rule.config) for part in config.parts for rule in part.local)
    rules = [(selector, each) for selector, each in every_rule if isinstance(each, FP8Config)]
    floats = [p for p in model.parameters() if p.is_floating_point()]
    for each in (*parts, *(each for _, each in rules)):
        each.check_ops(found, left)
        each.check_model({str(p.dtype).removeprefix("torch.") for p in floats}, {p.device.type for p in floats})
    for selector, each in rules:
        for name, (value, _) in each.changed(*RUN_FIELDS).items():
            raise ConfigError(
                f"FP8Config.{name}: got {value!r} in the rule for {selector}, and a run is over the whole model; say it in "
                "the outer configuration"
            )
    for part in parts:
        for name, (value, _) in part.changed(*RUN_FIELDS).items():
            if without_runs:
                raise ConfigError(
                    f"FP8Config.{name}: got {value!r}, and {without_runs} has no runs of FP8Config; leave it out, or use "
                    "prepare and convert"
                )
            if value != getattr(parts[0], name):
                raise ConfigError(
                    f"FP8Config.{name}: got {value!r} in one part of a sum and {getattr(parts[0], name)!r} in the first, "
                    "and a run is over the whole model; say the same in both"
                )


def _check_attention(config: Composition, without_runs: str) -> None:
    """Refuse scales of attentions where nothing finds them."""
    if not without_runs or not any(getattr(part, "static_attention_dtype", None) for part in config.parts):
        return
    raise ConfigError(
        f"AutoRoundConfig.static_attention_dtype: {without_runs} has no scales of attentions; leave it out, or use prepare "
        "and convert on the eager model"
    )


def _passes(
    steps: Mapping[Pass, list[OpKey]], ops: Mapping[OpKey, OpScheme], usual: tuple[Pass, ...]
) -> tuple[Pass, ...]:
    """What configurations do to the whole model, then what is usual, then what is done for layers, named if not all."""
    of_layers = {step: "ops" in PASSES[step.name].Options.model_fields for step in steps}
    whole = tuple(step for step in steps if not of_layers[step])
    single = (found for step in steps if of_layers[step] for found in _for_layers(step, steps, ops))
    return in_order((*whole, *usual, *single))


def _serves_any(step: Pass, ops: Mapping[OpKey, OpScheme]) -> bool:
    return any(PASSES[step.name].serves(kind, op) for (_, kind), op in ops.items())


def _for_layers(step: Pass, steps: Mapping[Pass, list[OpKey]], ops: Mapping[OpKey, OpScheme]) -> Iterator[Pass]:
    """``step`` for those of its ops that it can serve, if rules with other options have not taken them all.

    Where it can serve none, its check has all of them to name.
    """
    keys = steps[step]
    served = {key for key, op in ops.items() if PASSES[step.name].serves(key[1], op)}
    own = [name for name, kind in keys if (name, kind) in served]
    others = {key for other, taken in steps.items() if other.name == step.name and other != step for key in taken}
    if served <= set(keys):
        yield step
    elif own or not served & others:
        yield step.with_options(ops=own or [name for name, _ in keys])


def _heads(model: nn.Module, found: Mapping[OpKey, Any]) -> list[OpKey]:
    """The output head of a language model, by the names it has among the ops."""
    head = output_head(model)
    return [key for key, module in found.items() if head is not None and module is head]


def _is_static_integer(scheme: OpScheme) -> bool:
    """Whether an op wants its neighbours folded: integer kernels take them up, and 8-bit floats gain nothing by it."""
    return scheme.mode == "static" and scheme.activation is not None and scheme.activation.dtype.is_integer


def _nothing(model: nn.Module, has_ops: bool, left: Mapping[OpKey, str], reasons: list[str]) -> NothingToQuantizeError:
    other = "weight-only algorithms quantize linear layers"
    linear_alone = reasons and all(other in reason for reason in reasons)
    if not has_ops or linear_alone:
        what = "linear layer whose weight could be quantized" if has_ops else "layer that could be quantized"
        telling = sorted(left.items(), key=lambda each: other in each[1])
        first = next((f"; op {name!r} ({kind}): {why}" for (name, kind), why in telling), "")
        return NothingToQuantizeError(f"a model of type {type(model).__name__} has no {what}{first}")
    if reasons:
        return NothingToQuantizeError(f"nothing in the model can be quantized as the configuration says: {reasons[0]}")
    return NothingToQuantizeError("the configuration leaves every layer in float; nothing would be quantized")


class _Resolver:
    """Asks for the schemes of the ops of a model, each kind of question once.

    ``not_alone`` says why weights of some ops are not quantized alone; those of ``heads`` are where a rule names them.
    """

    def __init__(
        self,
        model: nn.Module,
        configs: Mapping[OpKey, list[OpConfig]],
        not_alone: Mapping[OpKey, str],
        heads: Collection[OpKey] = (),
    ) -> None:
        self._model, self._configs, self._not_alone, self._heads = model, configs, not_alone, heads
        self._spaces: dict[tuple[int, Request], OpSpace] = {}
        self._products = product_ops(opened_products(model))

    def scheme(self, key: OpKey, given: Assignment[ComposableConfig]) -> tuple[OpScheme | None, str]:
        """The scheme of an op under the configuration it is given, or None and the reason."""
        config: Any = given.config
        if not config.quantizes:
            return None, "its configuration leaves it in float"
        if key[0] in self._products and not are_named(given.claim, key, dict(self._configs.keys())):
            return None, BY_FUNCTION
        if not hasattr(config, "wanted"):
            raise ConfigError(
                f"{type(config).__name__} does not say how an op computes; a configuration of PyTorch does so with 'wanted'"
            )
        if reason := config.excludes(*key) if hasattr(config, "excludes") else "":
            return None, reason
        wanted: OpScheme = config.wanted_for(*key) if hasattr(config, "wanted_for") else config.wanted
        if wanted.mode == "weight_only":
            reason = self._not_alone.get(key, "")
            if reason and not (key in self._heads and given.explicit):
                return None, reason
        elif key in self._heads and not given.explicit and wanted.weight is not None:
            if hasattr(config, "quant_lm_head"):  # which is off: there would be no heads otherwise
                return None, self._not_alone[key]
            if wanted.weight.dtype.bits < 8:
                return None, _loses_much(config)
        if wanted.method is not None and needs_data(wanted.method) and is_parameter(self._model, key[0]):
            return None, _needs_each_expert(config)
        if wanted.output is not None and is_parameter(self._model, key[0]):
            return None, _output_of_experts(config)
        return self._space(key, config, wanted).nearest(key, wanted)

    def _space(self, key: OpKey, config: Any, wanted: OpScheme) -> OpSpace:
        # Where both tensors may be of one type, either may be a float of 16 bits: that is rounded to as well.
        half, in_half = _in_half(wanted), wanted
        if half == "activation":
            wanted = replace(wanted, activation=wanted.weight)
        elif half == "weight":
            wanted = replace(wanted, weight=wanted.activation)
        said = {place: value for place, value in config.said.items() if place[0] != half}
        request = config_request(config, wanted, self._configs[key], said)
        place = (id(self._configs[key]), request)  # ops of one type have one list
        if place not in self._spaces:
            self._spaces[place] = op_space(key, self._configs[key], request)
        space = self._spaces[place]
        if not half:
            return space
        return replace(space, quantized=tuple(replace(op, **{half: getattr(in_half, half)}) for op in space.quantized))


def _in_half(wanted: OpScheme) -> str:
    """Which tensor of a quantized op is a float of 16 bits."""
    sides = {"weight": wanted.weight, "activation": wanted.activation}
    return next((name for name, side in sides.items() if not wanted.is_float and side and side.is_float), "")


def _loses_much(config: Any) -> str:
    return (
        "the output head, which loses much in fewer than 8 bits; "
        f"set_local with its name and a {type(config).__name__} quantizes it"
    )


def _output_of_experts(config: Any) -> str:
    return (
        f"experts fused into one parameter, whose products the model computes itself, so that out_dtype of "
        f"{type(config).__name__} cannot be had; RTNConfig(dtype=...) for it, with set_local, quantizes it"
    )


def _needs_each_expert(config: Any) -> str:
    return (
        f"experts fused into one parameter, of which {type(config).__name__} would have to see the inputs of each; "
        "RTNConfig() or HQQConfig() for it, with set_local, quantizes it"
    )
