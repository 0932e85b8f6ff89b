"""Corrections of what rounding weights does: biases by its mean effect on data, scales by the spread of the values."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from neural_compressor.algorithms import mean_error
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.schemes import PER_TENSOR, OpScheme, PerChannel, Plan
from neural_compressor.torch.batches import batch_size, layer_input
from neural_compressor.torch.hooks import hooked
from neural_compressor.torch.modules.weighted import WeightedModule
from neural_compressor.torch.passes.model_pass import PASSES, ModelPass, PassOptions, PassState
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit, call_block

logger = logging.getLogger("neural_compressor")

SAMPLES = 32
"""How many are looked at; they run through the model as one batch."""
FEWEST_SAMPLES = 4
"""With fewer there is no telling whether a mean error is one of these samples alone."""
_FEWEST_POSITIONS = 16
"""Where a channel has fewer values a sample (gates of squeeze and excitation) means are chance, and correction a loss."""
_CORRECTED = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
"""They have many values a sample to take a mean over. Correcting the products of a transformer gained nothing."""


def is_corrected(kind: str, op: OpScheme) -> bool:
    """Whether the bias of an op of that type can be corrected."""
    integers = op.mode == "static" and op.activation is not None and op.activation.dtype.is_integer
    return integers and kind in _CORRECTED


class CorrectBiasesOptions(PassOptions):
    """When biases are corrected."""

    required: bool = Field(default=False, description="what stands against it is an error, and not passed over")


@PASSES.register("correct_biases")
class CorrectBiases(ModelPass):
    """What rounding the weight of a static convolution adds to its outputs in the mean is taken out through its bias.

    With ``dW`` the error of the weight and ``x`` what the quantized op is given, rounded, that is the mean of ``dW x``
    (Nagel et al. 2019). Convolutions are corrected in the order they run, each behind those before it as they are by then.
    What clipping of activations takes away is left alone: it is rare and large, and a shift of all other values for its sake
    costs more than it gives (on MobileNetV2 2 dB, where this gains 2). All samples run as one batch.
    """

    Options = CorrectBiasesOptions
    sees_data: ClassVar[bool] = True
    calls_alone: ClassVar[bool] = True
    limit: ClassVar[CalibrationLimit] = CalibrationLimit(samples=SAMPLES)

    def check(self, model: nn.Module, plan: Plan) -> None:
        if self.options.required and not self.wants_data(plan):
            raise ConfigError(
                "the pass correct_biases: the plan has no static integer convolution, whose bias it corrects"
            )

    def wants_data(self, plan: Plan) -> bool:
        return any(is_corrected(kind, op) for (_, kind), op in plan.items())

    def compares(self, plan: Plan) -> bool:
        return self.wants_data(plan)

    def after(self, state: PassState) -> None:
        ops = [name for (name, kind), op in state.plan.items() if is_corrected(kind, op) and name not in state.settled]
        layers = {name: module for name in ops if isinstance(module := state.model.get_submodule(name), WeightedModule)}
        if not layers:
            return
        call = one_batch(state.calls, SAMPLES)
        if call is None or batch_size(call) < FEWEST_SAMPLES:
            found = (
                f"{len(state.calls)} calls that do not fit together" if call is None else f"{batch_size(call)} samples"
            )
            why = f"correcting biases takes {FEWEST_SAMPLES} samples that make one batch, and calibration ran {found}"
            if self.options.required:
                raise CalibrationError(why)
            logger.warning("biases of %d convolutions are not corrected: %s", len(layers), why)
            return
        assert state.floats is not None
        originals = {name: state.floats.get_submodule(name) for name in layers}
        corrected: set[str] = set()

        def correct(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            assert isinstance(module, WeightedModule)
            errors = None if name in corrected else _means(_weight_error(module, originals[name], args, kwargs))
            if errors is None:
                return None
            corrected.add(name)
            excess = torch.as_tensor(mean_error(errors, torch.zeros_like(errors[0])))
            if not bool(excess.any()):
                return None
            module.shift_bias(-excess)
            return module.forward(*args, **kwargs)

        with hooked(layers, after=correct):
            call_block(state.model, call)
        logger.info("biases looked at on data: %d of %d convolutions", len(corrected), len(layers))


def _weight_error(module: WeightedModule, original: nn.Module, args: Any, kwargs: Any) -> Tensor:
    """What the error of the weight adds to the outputs of a convolution, on the rounded input that it really has.

    In float32, whatever the type of the model: the error is smaller than what bfloat16 keeps of a weight.
    """
    assert isinstance(original.weight, Tensor)
    x, more = layer_input((args, kwargs)), args[1:]
    swapped = {"weight": module.weight_error(original.weight)}
    if isinstance(original.bias, Tensor):
        swapped["bias"] = torch.zeros_like(original.bias, dtype=torch.float32)
    found = functional_call(original, swapped, (module.multiplied_input(x).float(), *more))
    assert isinstance(found, Tensor)
    return found


def one_batch(calls: Sequence[Arguments], samples: int) -> Arguments | None:
    """The calls of a model as one of up to ``samples`` samples; None where they do not fit together."""
    taken: list[Arguments] = []
    count = 0
    for call in calls:
        if count >= samples:
            break
        cut = CalibrationLimit(samples).cut(call, count)
        if cut is not None:
            taken.append(cut)
            count += batch_size(cut)
    if len(taken) < 2:
        return taken[0] if taken else None
    flat = [tree_flatten(call) for call in taken]
    leaves, spec = flat[0]
    if any(other != spec for _, other in flat):
        return None
    joined = [_joined([each[place] for each, _ in flat], taken) for place in range(len(leaves))]
    return None if any(each is _APART for each in joined) else tree_unflatten(joined, spec)


_APART = object()


def _joined(values: Sequence[Any], calls: Sequence[Arguments]) -> Any:
    if not all(isinstance(value, Tensor) for value in values):
        return values[0] if all(type(v) is type(values[0]) and v == values[0] for v in values) else _APART
    rows = all(v.dim() and v.shape[0] == batch_size(call) for v, call in zip(values, calls, strict=True))
    if rows and len({value.shape[1:] for value in values}) == 1:
        return torch.cat(list(values))
    return values[0] if all(torch.equal(value, values[0]) for value in values) else _APART


def _means(output: Tensor) -> Tensor | None:
    """The mean of each channel, one row a sample; None where there are too few values."""
    if output.dim() < 3 or output[0, 0].numel() < _FEWEST_POSITIONS:
        return None
    return output.detach().float().flatten(2).mean(2)


@PASSES.register("correct_weights")
class CorrectWeights(ModelPass):
    """The scales of each static layer's weight change so that its rounded values spread as the float ones do."""

    def check(self, model: nn.Module, plan: Plan) -> None:
        if not any(_has_spread(op) for op in plan.values()):
            raise ConfigError("the pass correct_weights: the plan has no static layer with a weight in integers")

    def compares(self, plan: Plan) -> bool:
        return True

    @torch.no_grad()
    def after(self, state: PassState) -> None:
        assert state.floats is not None
        for (name, _), op in state.plan.items():
            module = state.model.get_submodule(name)
            if not _has_spread(op) or not isinstance(module, WeightedModule):
                continue
            array, weight = module.weight_array(), state.floats.get_submodule(name).weight
            assert isinstance(weight, Tensor)
            axes = [0, 1] if module.weight_scheme.granularity == PER_TENSOR else [1]
            matrices = (module.to_matrix(each).double() for each in (weight.detach(), module.dequantized_weight()))
            wanted, found = (each.std(dim=axes, unbiased=False) for each in matrices)
            ratio = torch.where((wanted > 0) & (found > 0), wanted / found, torch.ones_like(found))
            scale = torch.as_tensor(array.scale)
            module.store_weight(replace(array, scale=(scale * ratio.reshape(scale.shape)).to(scale.dtype)))


def _has_spread(op: OpScheme) -> bool:
    weight = op.weight
    whole = weight is not None and (weight.granularity == PER_TENSOR or isinstance(weight.granularity, PerChannel))
    return op.mode == "static" and weight is not None and weight.dtype.is_integer and whole
