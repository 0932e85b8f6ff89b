"""How much each op suffers from quantization, and how much the model suffers from an error of each op.

With y the output of an op in the float model, y' that of its quantized self on the same inputs, f the output of the model:

- ``op_errors``: r = sum |y' - y|^2 / sum |y|^2, each op alone.
- ``op_gains``: g = (sum |y|^2 / n) * |J|^2 / sum |f|^2, with n the elements of y and |J| the Frobenius norm of df/dy. An
  error of relative size r that is spread evenly over y makes one of relative size g * r in f, to first order.

Sums are over batches, so that one batch is in memory at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from neural_compressor.schemes import OpKey
from neural_compressor.torch.batches import feed, run_batches, tensors_in
from neural_compressor.torch.hooks import hooked
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
    with hooked({key: model.get_submodule(key[0]) for key in ops if key[0] in replacements}, after=compare):
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
            if not found:
                return
            signs = [torch.randint(2, t.shape, generator=generator).to(t.device, t.dtype) * 2 - 1 for t in found]
            kept = [(key, tensor) for key, tensors in outputs.items() for tensor in tensors]
            gradients = torch.autograd.grad(found, [tensor for _, tensor in kept], signs, allow_unused=True)
        whole += sum(float(t.detach().double().square().sum()) for t in found)
        for (key, tensor), gradient in zip(kept, gradients, strict=True):
            totals[key].add(tensor.detach(), gradient)

    with hooked({key: model.get_submodule(key[0]) for key in ops}, after=keep):
        run_batches(model, data, samples, run)
    return {key: total.gain(whole) for key, total in totals.items()}


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
