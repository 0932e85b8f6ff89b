"""From the configuration of an algorithm to what is done to each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PerGroup, TensorScheme
from neural_compressor.torch.quantization.config.autoround import AutoRoundConfig
from neural_compressor.torch.quantization.config.gptq import GPTQConfig
from neural_compressor.torch.quantization.config.hqq import HQQConfig
from neural_compressor.torch.quantization.config.weight_only import WeightOnlyConfig
from neural_compressor.torch.weight_only.jobs import LayerJob
from neural_compressor.torch.weight_only.layers import find_layers, output_head


def _rtn(config: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"full_range": config.use_full_range}
    return {**options, "search": "mse"} if config.range_search else options


def _gptq(config: Any) -> dict[str, Any]:
    return {
        "act_order": config.act_order,
        "hybrid_order": config.hybrid_order,
        "static_groups": config.static_groups,
        "percdamp": config.percdamp,
        "block_size": min(config.block_size, 128),  # the result is the same; 128 columns stay in the cache
        "search": "mse" if config.range_search else None,
        "upstream": config.correct_upstream,
    }


def _awq(config: Any) -> dict[str, Any]:
    _refuse(config, "use_full_range", "absorb_layer_dict")
    return {"auto_scale": config.use_auto_scale, "auto_clip": config.use_auto_clip}


def _teq(config: Any) -> dict[str, Any]:
    _refuse(config, "use_full_range", "absorb_to_layer")
    return {"clip": bool(config.range_search)}


def _refuse(config: Any, *fields: str) -> None:
    """A parameter that would be ignored is refused; which layers take up a scale is found by watching the model."""
    for name in fields:
        if getattr(config, name):
            raise ConfigError(f"{type(config).__name__}.{name} has no effect here; leave it out")


def _autoround(config: AutoRoundConfig) -> dict[str, Any]:
    if config.activation_scheme() is not None:
        raise ConfigError(
            f"AutoRoundConfig.act_bits={config.act_bits}: activations of weight-only layers stay in float"
        )
    return {
        "iters": config.iters,
        "lr": config.lr,
        "minmax_lr": config.minmax_lr,
        "batch_size": config.batch_size,
        "enable_minmax_tuning": config.enable_minmax_tuning,
        "seed": config.seed,
        "quantized_input": config.enable_quanted_input,
    }


_OPTIONS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "rtn": _rtn,
    "gptq": _gptq,
    "awq": _awq,
    "teq": _teq,
    "hqq": lambda config: {},
    "autoround": _autoround,
}


def layer_job(config: WeightOnlyConfig) -> LayerJob:
    """How a layer is quantized under the configuration of one algorithm."""
    if config.name not in _OPTIONS:
        raise ConfigError(
            f"{type(config).__name__} is not a weight-only configuration; those are for {', '.join(_OPTIONS)}"
        )
    scales = getattr(config, "double_quant_scheme", lambda: None)()
    zeros = None
    if isinstance(config, HQQConfig):
        in_runs = TensorScheme(dtype("uint8"), False, PerGroup(config.scale_quant_group_size))
        scales, zeros = in_runs if config.quant_scale else None, in_runs if config.quant_zero else None
    return LayerJob(
        config.name,
        config.weight_scheme(),
        _OPTIONS[config.name](config),
        importance=getattr(config, "range_search", None) == "importance",
        hadamard=getattr(config, "hadamard", False),
        folding=getattr(config, "folding", False),
        scales=scales,
        zeros=zeros,
    )


def _names_head(model: nn.Module, config: Any) -> bool:
    """Whether a rule of its own asks for the output head."""
    found = find_layers(model, with_head=True).linear
    head = output_head(model)
    kinds = {name: type(module) for name, module in found.items()}
    return any(found[name] is head and assigned.explicit for name, assigned in config.assign(kinds).items())


def jobs_for(model: nn.Module, config: Any) -> tuple[dict[str, LayerJob], dict[tuple[str, str], str], dict[str, bool]]:
    """The jobs of a model's layers, the weights left in float with the reason, and what the whole run has to do."""
    with_head = any(getattr(part, "quant_lm_head", False) for part in config.parts)
    found = find_layers(model, with_head or _names_head(model, config))
    if not found.linear:
        raise ConfigError(f"a model of type {type(model).__name__} has no linear layer whose weight could be quantized")
    heads = {name: kind for (name, kind), why in found.left.items() if "quant_lm_head" in why}
    kinds = {**{name: type(module) for name, module in found.linear.items()}, **heads}
    jobs, left = {}, dict(found.left)
    flags = {"upstream": False, "true_sequential": False}
    for name, each in config.resolve(kinds).items():
        if name in heads:
            continue
        kind = type(found.linear[name]).__name__
        if each is None:
            left[name, kind] = "no part of the configuration claims it"
        elif not each.quantizes:
            left[name, kind] = "its configuration leaves it in float"
        else:
            jobs[name] = layer_job(each)
            flags["upstream"] |= isinstance(each, GPTQConfig) and each.correct_upstream
            flags["true_sequential"] |= isinstance(each, GPTQConfig) and each.true_sequential
    if not jobs:
        raise ConfigError("the configuration leaves every layer in float; nothing would be quantized")
    return jobs, left, flags
