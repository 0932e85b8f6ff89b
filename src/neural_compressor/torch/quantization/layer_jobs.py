"""From the configuration of an algorithm to what is done to each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from neural_compressor.algorithms import ALGORITHMS, options_of
from neural_compressor.config.composition import Composition
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme
from neural_compressor.torch.methods.autoround.rounding import check_scheme
from neural_compressor.torch.methods.weight_only.jobs import BLOCKWISE, LayerJob
from neural_compressor.torch.quantization.config.autoround import AutoRoundConfig
from neural_compressor.torch.quantization.config.layerwise import HQQConfig
from neural_compressor.torch.quantization.config.weight_only import WeightOnlyConfig
from neural_compressor.torch.structure.ops import find_layers, outer_blocks, output_head
from neural_compressor.torch.structure.replay import CalibrationLimit

_ACTIVATIONS = ("act_dtype", "act_group_size", "act_sym", "act_dynamic")


def layer_job(config: WeightOnlyConfig) -> LayerJob:
    """How a layer is quantized under the configuration of one algorithm."""
    if not isinstance(config, WeightOnlyConfig):
        raise ConfigError(
            f"{type(config).__name__} is not a weight-only configuration; those are for {', '.join(ALGORITHMS)}"
        )
    scales = getattr(config, "double_quant_scheme", lambda: None)()
    zeros = None
    if isinstance(config, HQQConfig):
        size = config.scale_quant_group_size
        in_runs = TensorScheme(dtype("uint8"), False, PER_CHANNEL if size == -1 else PerGroup(size))
        scales, zeros = in_runs if config.quant_scale else None, in_runs if config.quant_zero else None
    if isinstance(config, AutoRoundConfig):
        _check_training_alone(config)
    options = options_of(config.method())
    job = LayerJob(
        config.name,
        replace(config.weight_scheme(), scales=scales, zeros=zeros),
        {name: value for name, value in options.distinct().items() if name in options.names(executor=False)},
        limit=CalibrationLimit(options.nsamples or math.inf, options.seqlen or math.inf),
    )
    walked = {name: value for name, value in options.for_executor().items() if name in _OF_A_JOB}
    return replace(job, **walked)


_OF_A_JOB = ("importance", "hadamard", "folding", "quantized_input", "absorb")
"""The options that stand beside those of the function in a job."""


def _check_training_alone(config: AutoRoundConfig) -> None:
    """AutoRound trains weights; activations stay in float."""
    if config.activation_scheme() is not None:
        raise ConfigError(
            f"AutoRoundConfig.act_bits={config.act_bits}: layers with learned rounding take float activations; leave "
            "act_bits at 16 (scheme 'W4A16'), or use StaticQuantConfig or DynamicQuantConfig for both"
        )
    fields = type(config).model_fields
    if idle := [name for name in _ACTIVATIONS if getattr(config, name) != fields[name].default]:
        raise ConfigError(
            f"AutoRoundConfig.{idle[0]} says how activations are quantized, and with act_bits={config.act_bits} they stay "
            "in float; leave it out"
        )
    check_scheme(config.weight_scheme())


def _names_head(model: nn.Module, config: Any) -> bool:
    """Whether a rule of its own asks for the output head."""
    found = find_layers(model, with_head=True)
    weights, head = {**found.linear, **found.stacks}, output_head(model)
    kinds = {name: type(module) for name, module in weights.items()}
    return any(weights[name] is head and assigned.explicit for name, assigned in config.assign(kinds).items())


def jobs_for(model: nn.Module, config: Any) -> tuple[dict[str, LayerJob], dict[tuple[str, str], str], dict[str, bool]]:
    """The jobs of a model's layers, the weights left in float with the reason, and what the whole run has to do."""
    _check_config(config)
    with_head = any(getattr(part, "quant_lm_head", False) for part in config.parts)
    found = find_layers(model, with_head or _names_head(model, config))
    if not found.linear and not found.stacks:
        raise ConfigError(f"a model of type {type(model).__name__} has no linear layer whose weight could be quantized")
    heads = {name: kind for (name, kind), why in found.left.items() if "quant_lm_head" in why}
    weights = {**found.linear, **found.stacks}
    kinds = {**{name: type(module) for name, module in weights.items()}, **heads}
    jobs, left = {}, dict(found.left)
    flags = {"upstream": False, "true_sequential": False, "amp": True}
    for name, each in config.resolve(kinds).items():
        if name in heads:
            continue
        kind = type(weights[name]).__name__
        if each is None:
            left[name, kind] = "no part of the configuration claims it"
        elif not each.quantizes:
            left[name, kind] = "its configuration leaves it in float"
        elif name in found.stacks and each.needs_calibration:
            left[name, kind] = _needs_each_expert(each)
        else:
            jobs[name] = layer_job(each)
            options = options_of(each.method())
            flags["upstream"] |= getattr(options, "upstream", False)
            flags["amp"] &= options.amp is not False
            flags["true_sequential"] |= getattr(options, "true_sequential", False)
    if not jobs:
        raise ConfigError("the configuration leaves every layer in float; nothing would be quantized")
    _check_absorbers(model, jobs)
    _check_training(model, jobs)
    return jobs, left, flags


def _check_config(config: Any) -> None:
    if not isinstance(config, Composition):
        what = f"the class {config.__name__}" if isinstance(config, type) else f"a {type(config).__name__}"
        raise ConfigError(f"quant_config is {what}; expected a configuration such as RTNConfig()")


def _needs_each_expert(config: Any) -> str:
    return (
        f"experts fused into one parameter, of which {type(config).__name__} would have to see the inputs of each; "
        "RTNConfig() or HQQConfig() for it, with set_local, quantizes it"
    )


def _check_absorbers(model: nn.Module, jobs: Mapping[str, LayerJob]) -> None:
    modules = dict(model.named_modules())
    named = {name for job in jobs.values() for norm, layers in job.absorb.items() for name in (norm, *layers)}
    for name in sorted(named):
        if name not in modules:
            raise ConfigError(
                f"a layer is to take up the scales of others, and none is called {name!r}; {close_matches(name, modules)}"
            )


def _check_training(model: nn.Module, jobs: Mapping[str, LayerJob]) -> None:
    """Layers of a block are trained together, so each must ask for the same training."""
    trained = {name: job for name, job in jobs.items() if job.algorithm == BLOCKWISE}
    for block in outer_blocks(model, trained) or [""]:
        inside = {name: job for name, job in trained.items() if name.startswith(f"{block}." if block else "")}
        wanted = {repr((job.options, job.quantized_input)): name for name, job in inside.items()}
        if len(wanted) > 1:
            raise ConfigError(
                f"the layers {sorted(wanted.values())} are trained together with AutoRound, and their configurations differ "
                "in more than the data type; give them the same iters, lr, minmax_lr, batch_size, seed and enable_ fields"
            )
