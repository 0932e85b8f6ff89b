"""Rounding of the static layers of a block, learned together from what the block gives, with AutoRound's training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.algorithms import AutoRoundOptions
from neural_compressor.schemes import QuantizedArray
from neural_compressor.torch.batches import layer_input
from neural_compressor.torch.methods.autoround.block import RecordedBlock, samples_of
from neural_compressor.torch.methods.autoround.rounding import LearnedRounding
from neural_compressor.torch.methods.autoround.training import mean_error, train
from neural_compressor.torch.methods.qat_rounding import straight_through
from neural_compressor.torch.modules.weighted import WeightedModule
from neural_compressor.torch.structure.replay import Arguments, independent

logger = logging.getLogger("neural_compressor")

_AT_ONCE = 8
"""Samples that run at a time, and that a step sees."""


def learn_block(
    block: nn.Module,
    layers: Mapping[str, WeightedModule],
    calls: Sequence[Arguments],
    targets: Sequence[Tensor],
    iters: int,
) -> tuple[float, float]:
    """Give ``layers``, from the codes they have, others with which their block comes nearer to ``targets``.

    ``block`` is a copy of the float block, with float layers of the same names; it is changed, so that it rounds inputs and
    has the biases that the quantized layers have. The mean squared errors before and after are returned; they are the same
    where training made nothing better.
    """
    starts: dict[str, QuantizedArray] = {}
    for name, module in layers.items():
        starts[name] = module.weight_array()
        _round_as(block.get_submodule(name), module)
    # Where pairs of codes are bound to each other, so are the scales that were found for them.
    free = not any(module.weight_scheme.pair_safe for module in layers.values())
    options = AutoRoundOptions(iters=iters, batch_size=_AT_ONCE, enable_minmax_tuning=free, amp=False)
    recorded = RecordedBlock(block, {name: block.get_submodule(name) for name in layers}, amp=False)
    roundings = {name: _rounding(recorded.layers[name], module, starts[name]) for name, module in layers.items()}
    # What the block writes into its input must not be seen by the next run.
    block.register_forward_pre_hook(lambda _, args, kwargs: independent((args, kwargs), Tensor.clone), with_kwargs=True)
    with recorded.at_rest():
        weights = {name: rounding.values().requires_grad_() for name, rounding in roundings.items()}
        if not recorded(calls[0], weights).requires_grad:
            logger.warning("no gradient comes through %s: its layers learn each alone", type(block).__name__)
            return 0.0, 0.0
        samples = samples_of(recorded, calls, targets, options.batch_size)
        train(recorded, roundings, samples, options)
        found = {name: roundings[name].result(module.pairs()) for name, module in layers.items()}
        errors = [
            mean_error(recorded, samples, {name: array.dequantize() for name, array in arrays.items()})
            for arrays in (starts, found)
        ]
    if not errors[1] < errors[0]:
        return errors[0], errors[0]
    for name, module in layers.items():
        module.store_weight(found[name])
    return errors[0], errors[1]


def _round_as(layer: nn.Module, module: WeightedModule) -> None:
    """Have a float layer compute what the quantized one does but for its weight, with gradients."""
    assert isinstance(layer.weight, Tensor)
    layer.weight = nn.Parameter(module.for_changed_inputs(layer.weight.detach().float()), requires_grad=False)
    if module.bias is not None:
        layer.bias = nn.Parameter(module.bias.detach().clone(), requires_grad=False)

    def rounded(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        x = layer_input((args, kwargs))
        more = {name: value for name, value in kwargs.items() if name != "input"}
        return (straight_through(module.turned(x), module.multiplied_input(x)), *args[1:]), more

    layer.register_forward_pre_hook(rounded, with_kwargs=True)


def _rounding(layer: nn.Module, module: WeightedModule, start: QuantizedArray) -> LearnedRounding:
    assert isinstance(layer.weight, Tensor)
    codes = torch.as_tensor(start.codes)
    return LearnedRounding(module.to_matrix(layer.weight), start.scheme, start.qparams, codes=codes)
