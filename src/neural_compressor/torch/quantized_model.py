"""A quantized model: ops replaced by quantized ones, and what was done to it, which travels with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from neural_compressor.errors import NeuralCompressorError, QuantizationError
from neural_compressor.schemes import OpKey, OpScheme, Plan, QuantizedArray
from neural_compressor.torch.hooks import call_layers
from neural_compressor.torch.modules import QuantModule, quantized_module
from neural_compressor.torch.modules.build import replace_module
from neural_compressor.torch.modules.direct_forward import run_as_written, run_directly
from neural_compressor.torch.modules.function_products import seen_products
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.modules.relay import Relays, relay, relayed, restore
from neural_compressor.torch.modules.weighted import WeightedModule
from neural_compressor.torch.passes.fold import Structure


@dataclass
class Quantization:
    """What was done to a model; travels with it as its attribute ``quantization``."""

    plan: Plan
    structure: Structure
    reasons: dict[OpKey, str] = field(default_factory=dict)
    relays: Relays = field(default_factory=Relays)

    def __str__(self) -> str:
        return self.plan.table(self.reasons)


def build(
    model: nn.Module,
    plan: Plan,
    ranges: Mapping[OpKey, Sequence[tuple[Any, Any]]],
    structure: Structure,
    reasons: Mapping[OpKey, str],
    missed: Mapping[OpKey, str] | None = None,
    weights: Mapping[OpKey, QuantizedArray] | None = None,
    changes: Mapping[str, InputChange] | None = None,
) -> nn.Module:
    """``model``, whose batch norms are folded already, with the ops of ``plan`` replaced, less those ``missed``.

    What is quantized already, because a method found its weight, stays as it is. ``weights`` are matrices of codes that were
    found for ops, of which the others are rounded to nearest. ``changes`` say by name of op what it does to its input first,
    ``reasons`` are of ops that are not in the plan.
    """
    run_as_written(model)
    missed, ops = dict(missed or {}), dict[OpKey, OpScheme]()
    reasons = {key: why for key, why in reasons.items() if key not in plan}
    for key, scheme in plan.items():
        if scheme.precision == "fp32":
            reasons[key] = "the plan keeps it in fp32"
        elif scheme.mode == "static" and scheme.activation is not None and key not in ranges:
            missed[key] = "calibration never reached it"
        elif key not in missed and not isinstance(model.get_submodule(key[0]), QuantModule):
            ops[key] = scheme

    def make(key: OpKey, module: nn.Module, scheme: OpScheme) -> nn.Module:
        relu, change = key[0] in structure.relus, (changes or {}).get(key[0])
        new = quantized_module(module, scheme, ranges.get(key, ()), relu=relu, change=change)
        if weights is not None and key in weights:
            assert isinstance(new, WeightedModule), f"{key[1]} has no weight that could be found"
            new.store_weight(weights[key])
        return new

    new = _replaced(model, ops, structure, make)
    products = {name: (product.kind, product.site) for name, product in seen_products(new).items()}
    structure = replace(structure, products=products)
    done = replace(plan, ops={key: scheme for key, scheme in plan.items() if key not in missed})
    new.quantization = Quantization(done, structure, {**reasons, **missed}, relayed(new))  # type: ignore[assignment]
    run_directly(new)
    return new


def hand_on_integers(model: nn.Module, example: Any) -> nn.Module:
    """Have the static int8 ops of a quantized float32 ``model`` hand outputs on in int8, checked on ``example`` inputs."""
    schemes = [module.scheme for module in model.modules() if isinstance(module, QuantModule)]
    if any(s.mode == "static" and s.activation is not None and s.activation.dtype.is_integer for s in schemes):
        run_as_written(model)
        model.quantization.relays = relay(model.eval(), example)  # type: ignore[union-attr]
        run_directly(model)
    return model


def computes_in_float32(model: nn.Module) -> bool:
    """Whether a float model does: an int8 tensor does not say in which float type to go on."""
    return all(p.dtype == torch.float32 for p in model.parameters() if p.is_floating_point())


def rebuild(model: nn.Module, done: Quantization, tensors: Mapping[str, torch.Tensor]) -> tuple[nn.Module, set[str]]:
    """``model`` as ``done`` describes it, around saved tensors, and the names of the tensors its ops took."""
    used: set[str] = set()

    def make(key: OpKey, module: nn.Module, scheme: OpScheme) -> nn.Module:
        prefix = f"{key[0]}." if key[0] else ""
        state = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        used.update(prefix + name for name in state)
        return quantized_module(module, scheme, state=state, relu=key[0] in done.structure.relus)

    ops = {k: s for k, s in done.plan.items() if s.precision != "fp32" and k not in done.reasons}
    new = _replaced(model, ops, done.structure, make)
    new.quantization = done  # type: ignore[assignment]
    restore(new, done.relays)
    run_directly(new)
    return new.eval(), used


def _replaced(
    model: nn.Module,
    ops: Mapping[OpKey, OpScheme],
    structure: Structure,
    make: Callable[[OpKey, nn.Module, OpScheme], nn.Module],
) -> nn.Module:
    """``model`` with what ``make`` gives in the place of each op of ``ops``; another module only if it is an op itself."""
    for key, scheme in ops.items():
        try:
            new = make(key, model.get_submodule(key[0]), scheme)
        except NeuralCompressorError as error:
            raise QuantizationError(f"op {key[0]!r} ({key[1]}): {error}") from error
        relu = structure.relus.get(key[0])
        if relu is not None and getattr(new, "relu", False):
            replace_module(model, relu, nn.Identity())
        if not key[0]:
            return new
        replace_module(model, key[0], new)
    for module in model.modules():
        encoder = isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerEncoder))
        if encoder and any(isinstance(m, QuantModule) for m in module.modules()):
            call_layers(module)
    return model
