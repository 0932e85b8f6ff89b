"""Sensitivities of ops: how much each suffers from quantization, and the model from an error of each.

With y the output of an op in the float model, y' that of its quantized self on the same inputs, f the output of the model:

- ``op_errors``: r = sum |y' - y|^2 / sum |y|^2, each op alone.
- ``op_gains``: g = (sum |y|^2 / n) * |J|^2 / sum |f|^2, with n the elements of y and |J| the Frobenius norm of df/dy. An
  error of relative size r that is spread evenly over y makes one of relative size g * r in f, to first order.
- ``op_curvatures``: c = tr(H) / n * |w' - w|^2, with H the Hessian of a loss in the n weights w of the op, and w' the
  quantized ones (HAWQ-V2).

Sums are over batches, so that one batch is in memory at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import torch
from torch import nn

from neural_compressor.adaptor.user_code import batches as user_batches
from neural_compressor.adaptor.user_code import user_errors
from neural_compressor.errors import CalibrationError
from neural_compressor.schemes import OpKey
from neural_compressor.torch.batches import batch_size, feed, run_batches, split_batch, tensors_in
from neural_compressor.torch.hooks import calling_layers, hooked
from neural_compressor.torch.modules import QuantModule


def op_errors(
    model: nn.Module, quantized: nn.Module, ops: Iterable[OpKey], data: Iterable[Any], samples: int
) -> dict[OpKey, float]:
    """The relative squared error of each op of ``quantized`` on the inputs that it has in the float ``model``."""
    noise: dict[OpKey, float] = defaultdict(float)
    signal: dict[OpKey, float] = defaultdict(float)

    def compare(key: OpKey, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        replacement = replacements[key[0]]
        expected = next(tensors_in(output))
        actual = next(tensors_in(replacement(*args, **kwargs)))
        actual = (actual.dequantize() if actual.is_quantized else actual).double()
        # It may compute the Relu behind the op as well.
        expected = (expected.relu() if replacement.relu else expected).double()
        signal[key] += float(expected.square().sum())
        noise[key] += float((actual - expected).square().sum())

    found = {name: module for name, module in quantized.named_modules() if isinstance(module, QuantModule)}
    replacements = {name: module for name, module in found.items() if not module.scheme.is_float}
    layers = {key: model.get_submodule(key[0]) for key in ops if key[0] in replacements}
    with calling_layers(model), hooked(layers, after=compare):
        run_batches(model, data, samples)
    return {key: noise[key] / total if total else float(noise[key] > 0) for key, total in signal.items()}


def op_gains(
    model: nn.Module, ops: Iterable[OpKey], data: Iterable[Any], samples: int, seed: int = 42
) -> dict[OpKey, float]:
    """By which factor a relative squared error of each op's output comes out of ``model``.

    |J|^2 is estimated as the mean of |J^T v|^2 over vectors v of random signs (Hutchinson), one a batch.
    """
    generator = torch.Generator().manual_seed(seed)
    totals: dict[OpKey, _Totals] = defaultdict(_Totals)
    outputs: dict[OpKey, list[torch.Tensor]] = defaultdict(list)
    whole = 0.0

    def keep(key: OpKey, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if not (isinstance(output, torch.Tensor) and output.is_floating_point()):
            return None
        kept = output if output.requires_grad else output.detach().requires_grad_()
        outputs[key].append(kept)
        return kept.clone()  # what changes it in place must not change the one kept

    def run(inputs: Any) -> None:
        nonlocal whole
        outputs.clear()
        with torch.enable_grad():
            found = [t for t in tensors_in(feed(model, inputs)) if t.requires_grad]
            kept = [(key, tensor) for key, tensors in outputs.items() for tensor in tensors]
            if not found or not kept:  # an LSTM gives several things at once, none of which is looked at
                return
            signs = [torch.randint(2, t.shape, generator=generator).to(t.device, t.dtype) * 2 - 1 for t in found]
            gradients = torch.autograd.grad(found, [tensor for _, tensor in kept], signs, allow_unused=True)
        whole += sum(float(t.detach().double().square().sum()) for t in found)
        for (key, tensor), gradient in zip(kept, gradients, strict=True):
            totals[key].add(tensor.detach(), gradient)

    with calling_layers(model), hooked({key: model.get_submodule(key[0]) for key in ops}, after=keep):
        run_batches(model, data, samples, run)
    return {key: total.gain(whole) for key, total in totals.items()}


def op_curvatures(
    model: nn.Module,
    quantized: nn.Module,
    ops: Iterable[OpKey],
    data: Iterable[Any],
    loss: Callable[..., Any],
    samples: int,
    seed: int = 42,
) -> dict[OpKey, float]:
    """What ``loss(output, label)`` gains by the quantized weight of each op, to second order.

    tr(H) is estimated as the mean of v^T H v over vectors v of random signs (Hutchinson), one a batch.
    """
    changes = dict[OpKey, float]()
    weights = dict[OpKey, torch.Tensor]()
    for key in ops:
        new, old = quantized.get_submodule(key[0]), model.get_submodule(key[0])
        weight = getattr(old, "weight", None)
        found = new.dequantized_weight() if isinstance(new, QuantModule) and not new.scheme.is_float else None
        if found is not None and isinstance(weight, nn.Parameter):
            weights[key] = weight
            changes[key] = float((found.to(weight.device) - weight.detach()).double().square().sum())
    if not weights:  # recurrent layers have several, and products of activations none
        return {}
    traces = dict.fromkeys(weights, 0.0)
    generator, batches, seen = torch.Generator().manual_seed(seed), 0, 0
    wanted = [weight.requires_grad for weight in weights.values()]
    try:
        for weight in weights.values():
            weight.requires_grad_(True)
        for batch in user_batches(data):
            if not isinstance(batch, (tuple, list)) or len(batch) < 2:
                raise CalibrationError("a loss is of outputs and labels: batches are to be (inputs, label)")
            inputs = split_batch(model, batch)
            with torch.enable_grad(), user_errors(lambda error: f"hawq_v2_loss raised {type(error).__name__}: {error}"):
                value = _loss_of(loss, feed(model, inputs), batch[-1])
            gradients = torch.autograd.grad(value, list(weights.values()), create_graph=True, allow_unused=True)
            for key, gradient in zip(weights, gradients, strict=True):
                if gradient is None or not gradient.requires_grad:
                    continue
                signs = torch.randint(2, gradient.shape, generator=generator).to(gradient) * 2 - 1
                (product,) = torch.autograd.grad(gradient, weights[key], signs, retain_graph=True, allow_unused=True)
                traces[key] += 0.0 if product is None else float((product * signs).double().sum())
            batches, seen = batches + 1, seen + batch_size(inputs)
            if seen >= samples:
                break
    finally:
        for weight, before in zip(weights.values(), wanted, strict=True):
            weight.requires_grad_(before)
    return {key: max(traces[key], 0.0) / max(batches, 1) / weights[key].numel() * changes[key] for key in weights}


def _loss_of(loss: Callable[..., Any], output: Any, label: Any) -> torch.Tensor:
    """Scripts of others have losses with a third argument, the criterion."""
    takes = [
        p for p in signature(loss).parameters.values() if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD
    ]
    value = loss(output, label, nn.CrossEntropyLoss()) if len(takes) == 3 else loss(output, label)
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
        raise CalibrationError(f"hawq_v2_loss gave {value!r}, expected one number that gradients go through")
    return value


class _Totals:
    """Sums over batches for one op."""

    def __init__(self) -> None:
        self.signal, self.count, self.jacobian = 0.0, 0, 0.0

    def add(self, output: torch.Tensor, gradient: torch.Tensor | None) -> None:
        self.signal += float(output.double().square().sum())
        self.count += output.numel()
        if gradient is not None:
            self.jacobian += float(gradient.double().square().sum())

    def gain(self, whole: float) -> float:
        return self.signal / max(self.count, 1) * self.jacobian / whole if whole else 0.0
