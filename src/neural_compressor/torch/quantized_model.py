"""Build the quantized model of a plan, or rebuild it around saved tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from neural_compressor.errors import NeuralCompressorError, QuantizationError
from neural_compressor.schemes import OpKey, OpScheme, Plan
from neural_compressor.torch.modules import QuantModule, quantized_module
from neural_compressor.torch.modules.relay import Relays, relay, relayed, restore
from neural_compressor.torch.passes.fold import Structure


@dataclass
class Quantization:
    """What was done to a model; travels with it as its attribute ``quantization``."""

    plan: Plan
    structure: Structure
    reasons: dict[OpKey, str] = field(default_factory=dict)
    relays: Relays = field(default_factory=Relays)


def build(
    model: nn.Module,
    plan: Plan,
    ranges: Mapping[OpKey, Sequence[tuple[Any, Any]]],
    structure: Structure,
    reasons: Mapping[OpKey, str],
    example: Any = None,
) -> nn.Module:
    """A quantized copy of ``model``, whose batch norms are folded already.

    With ``example`` inputs, on which it is checked, int8 ops hand their outputs on in int8.
    """
    reasons = dict(reasons)
    ops = {}
    for key, scheme in plan.items():
        if scheme.mode == "static" and scheme.activation is not None and key not in ranges:
            reasons[key] = "calibration never reached it"
        elif scheme.precision == "fp32":
            reasons.setdefault(key, "the plan keeps it in fp32")
        else:
            ops[key] = scheme

    def make(key: OpKey, module: nn.Module, scheme: OpScheme) -> nn.Module:
        return quantized_module(module, scheme, ranges.get(key, ()), relu=key[0] in structure.relus)

    new = _replaced(model, ops, structure, make).eval()
    done = Quantization(plan, structure, reasons, relayed(new))
    new.quantization = done  # type: ignore[assignment]
    # An int8 tensor does not say in which float type the model computes, so only float32 ones are handed on.
    single = all(p.dtype == torch.float32 for p in model.parameters() if p.is_floating_point())
    if example is not None and single:
        done.relays = relay(new, example)
    return new


def rebuild(model: nn.Module, done: Quantization, tensors: Mapping[str, torch.Tensor]) -> tuple[nn.Module, set[str]]:
    """The quantized model that ``done`` describes around saved tensors, and the names of the tensors its ops took."""
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
    return new.eval(), used


def _replaced(
    model: nn.Module,
    ops: Mapping[OpKey, OpScheme],
    structure: Structure,
    make: Callable[[OpKey, nn.Module, OpScheme], nn.Module],
) -> nn.Module:
    """A deep copy of ``model`` in which each op of ``ops`` is what ``make`` gives for it; their floats are not copied."""
    memo: dict[int, Any] = {}
    for key, scheme in ops.items():
        module = model.get_submodule(key[0])
        try:
            new = make(key, module, scheme)
        except NeuralCompressorError as error:
            raise QuantizationError(f"op {key[0]!r} ({key[1]}): {error}") from error
        memo[id(module)] = new
        relu = structure.relus.get(key[0])
        if relu is not None and getattr(new, "relu", False):
            memo[id(model.get_submodule(relu))] = nn.Identity()
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        # The fused encoder path reads the weights of its children instead of calling them.
        if isinstance(module, nn.TransformerEncoderLayer) and any(isinstance(m, QuantModule) for m in module.modules()):
            module.activation_relu_or_gelu = 0
    return copied
