"""AutoRound: learn how to round the weights of a block, or of a layer in no block, so that its outputs change least."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.algorithms import AutoRoundOptions, InputStatistics, LayerResult, quadratic_loss
from neural_compressor.algorithms.autoround import Patience
from neural_compressor.algorithms.weight_qparams import weight_qparams
from neural_compressor.errors import CalibrationError, ConfigError, NeuralCompressorError, QuantizationError
from neural_compressor.schemes import QParams, TensorScheme, in_pairs, quantize_pairs
from neural_compressor.schemes.block import is_power_of_two_scale
from neural_compressor.torch.methods.autoround.block import RecordedBlock, Sample, batches, samples_of
from neural_compressor.torch.methods.autoround.rounding import LearnedRounding, check_scheme
from neural_compressor.torch.modules.weight_only import matrix_of
from neural_compressor.torch.structure.replay import Arguments

logger = logging.getLogger("neural_compressor")

_COMPARED = 8
"""How many calls tell whether training made a block better."""


def tune_block(
    block: nn.Module,
    layers: Mapping[str, nn.Module],
    schemes: Mapping[str, TensorScheme],
    inputs: Sequence[Arguments],
    targets: Sequence[Tensor],
    options: AutoRoundOptions | None = None,
) -> dict[str, LayerResult]:
    """The weights of ``layers``, which are part of ``block``, quantized together; the block itself is left as it is.

    ``inputs`` are calls of the block as ``(args, kwargs)``, and ``targets`` the first tensor that it should give for each:
    what the float model gives there. Where the inputs are those that reach the block behind quantized ones, it learns to
    correct their errors too.

    Layers that no call reached are left out of what is returned. A layer that no gradient came to keeps its start, nearest
    rounding: an expert that no batch was sent to, or one that something not differentiable follows.

    Scales start where the squared error, weighted with the mean square of each input, is least: from there a quarter of
    the steps do that it takes from the range of the weights.

    >>> from neural_compressor.dtypes import dtype
    >>> _ = torch.manual_seed(0)
    >>> block, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(4, 8)
    >>> scheme = TensorScheme(dtype("int4"))
    >>> found = tune_block(block, {"0": block[0]}, {"0": scheme}, [((x,), {})], [block(x).detach()])
    >>> found["0"].array.codes.shape
    torch.Size([8, 8])
    """
    options = options or AutoRoundOptions()
    _check(layers, schemes, inputs, targets)
    started = time.perf_counter()
    recorded = RecordedBlock(block, layers, None if options.amp else False)
    with recorded.at_rest():
        importance = recorded.mean_squares(inputs)
        if missed := sorted(set(layers) - set(importance)):
            _note_missed(missed, all_of_them=not importance)
        roundings = _roundings(recorded, schemes, importance, inputs, options)
        samples = samples_of(recorded, inputs, targets, options.batch_size)
        before, after = train(recorded, roundings, samples, options)
    seconds = time.perf_counter() - started
    logger.debug("%s: squared error %.4g -> %.4g in %.1f s", type(block).__name__, before, after, seconds)
    return {name: LayerResult(rounding.result()) for name, rounding in roundings.items()}


def _roundings(
    recorded: RecordedBlock,
    schemes: Mapping[str, TensorScheme],
    importance: Mapping[str, Tensor],
    inputs: Sequence[Arguments],
    options: AutoRoundOptions,
) -> dict[str, LearnedRounding]:
    found = {}
    reached = [name for name in recorded.layers if name in importance]
    for names in _sharing_a_scale(reached, schemes, recorded, inputs):
        weights = [matrix_of(recorded.layers[name]).float().contiguous() for name in names]
        scheme, start = schemes[names[0]], 0
        try:
            whole = weights[0] if len(weights) == 1 else torch.cat(weights)
            qparams = _start(whole, scheme, importance[names[0]], options)
            for name, weight in zip(names, weights, strict=True):
                own = qparams if len(names) == 1 else qparams.rows(slice(start, start + len(weight)))
                found[name] = LearnedRounding(weight, scheme, own, options.momentum)
                start += len(weight)
        except NeuralCompressorError as error:
            raise QuantizationError(f"layer {', '.join(map(repr, names))}: {error}") from error
    return found


def _start(weight: Tensor, scheme: TensorScheme, importance: Tensor, options: AutoRoundOptions) -> QParams:
    """Scales to start from: searched, but for powers of two, of which that of the largest weight does best."""
    if scheme.pair_safe:  # nearest rounding in other scales would lose more to what pairs may have than training gains
        return quantize_pairs(weight, scheme, in_pairs(weight.shape[1])).qparams
    stored_as = scheme.dtype.scale_type
    if stored_as is not None and is_power_of_two_scale(stored_as):
        return weight_qparams(weight, scheme, full_range=options.full_range)
    return weight_qparams(weight, scheme, search="mse", importance=importance, full_range=options.full_range)


def _sharing_a_scale(
    names: Sequence[str], schemes: Mapping[str, TensorScheme], recorded: RecordedBlock, inputs: Sequence[Arguments]
) -> list[list[str]]:
    """``names`` one by one, but together those that read the same input and whose format has a scale of the whole tensor.

    Engines make one matrix of them, with one such scale.
    """
    if not any(schemes[name].dtype.has_tensor_scale for name in names):
        return [[name] for name in names]
    together: dict[Any, list[str]] = {}
    group = {name: number for number, group in enumerate(recorded.sharing_inputs(inputs)) for name in group}
    for name in names:
        shared = schemes[name].dtype.has_tensor_scale
        together.setdefault((schemes[name], group[name]) if shared else name, []).append(name)
    return list(together.values())


def train(
    recorded: RecordedBlock,
    roundings: Mapping[str, LearnedRounding],
    samples: Sequence[Sample],
    options: AutoRoundOptions,
) -> tuple[float, float]:
    """Train in place; the mean squared error of the block before and after."""
    dtype = recorded.dtype_of_weights
    weights = {name: rounding.values().to(dtype).requires_grad_() for name, rounding in roundings.items()}
    compared = samples[:: -(-len(samples) // _COMPARED)]
    before = mean_error(recorded, compared, weights)
    if not options.iters:
        return before, before
    order = batches(samples, options.samples_per_step, options.seed if options.sampler == "rand" else None)
    untouched = set(weights)
    patience = Patience(options.dynamic_max_gap)
    for iteration in range(options.iters):
        batch = next(order)
        count, total = sum(target.numel() for _, target in batch), 0.0
        for call, target in batch:
            loss = recorded.loss(call, target, weights) / count
            if loss.requires_grad:
                torch.autograd.backward(loss)
            total += float(loss.detach()) if patience else 0.0
        with torch.no_grad():
            for name, weight in weights.items():
                if weight.grad is None:  # an expert that no sample of this batch went to
                    continue
                rounding = roundings[name]
                rounding.step(weight.grad, *options.rates(iteration, rounding.scheme.dtype.bits), out=weight)
                weight.grad = None
                untouched.discard(name)
        if patience.ends(total):
            break
    if untouched:
        _note_untouched(sorted(untouched), all_of_them=len(untouched) == len(weights))
    after = mean_error(recorded, compared, weights)
    if options.keep_best and not after <= before:
        for rounding in roundings.values():
            rounding.reset()
        return before, before
    return before, after


def _note_missed(names: list[str], all_of_them: bool) -> None:
    if all_of_them:
        raise CalibrationError(
            f"calibration never reached the layers {names}; calibrate with data that runs through them"
        )
    logger.warning("AutoRound leaves out the layers %s: calibration never reached them", names)


def _note_untouched(names: list[str], all_of_them: bool) -> None:
    if all_of_them:
        raise QuantizationError(
            f"no gradient reached the layers {names}: what follows them in the block is not differentiable; quantize them "
            "with an algorithm that needs no gradients (gptq, awq, rtn)"
        )
    logger.warning("AutoRound keeps nearest rounding in the layers %s: no gradient reached them", names)


@torch.no_grad()
def mean_error(recorded: RecordedBlock, samples: Sequence[Sample], weights: Mapping[str, Tensor]) -> float:
    total = sum(float(recorded.loss(call, target, weights)) for call, target in samples)
    return total / sum(target.numel() for _, target in samples)


def _check(
    layers: Mapping[str, nn.Module],
    schemes: Mapping[str, TensorScheme],
    inputs: Sequence[Arguments],
    targets: Sequence[Tensor],
) -> None:
    if not layers:
        raise ConfigError("there are no layers to tune in this block")
    if set(layers) != set(schemes):
        raise ConfigError(f"every layer needs a scheme: {sorted(set(layers) ^ set(schemes))} have only one of the two")
    for name, scheme in schemes.items():
        try:
            check_scheme(scheme)
        except ConfigError as error:
            raise ConfigError(f"layer {name!r}: {error}") from error
    if not inputs:
        raise CalibrationError("AutoRound needs at least one recorded call of the block; calibrate on some data first")
    if len(inputs) != len(targets):
        raise CalibrationError(f"each of {len(inputs)} calls needs its target, and there are {len(targets)}")
    for place, target in enumerate(targets):
        if not bool(torch.isfinite(target).all()):
            first, *_, last = [*layers, *layers]
            raise CalibrationError(
                f"the float block with the layers {first!r} to {last!r} gives NaN or Inf on sample {place}; look for an "
                "overflow in the model or bad values in the data"
            )


_MOMENTUM = 0.9
"""Gradients over all inputs have no noise that would lead out of where their signs go back and forth; inertia does."""


def tune_layer(
    weight: Tensor, scheme: TensorScheme, statistics: InputStatistics, options: AutoRoundOptions
) -> LayerResult:
    """``weight`` (outputs, inputs) rounded so that what the layer gives for the inputs seen changes least.

    For one layer alone that error is quadratic in the weight: its gradient comes from the second moments of the inputs,
    over all of them at once, and neither inputs nor outputs (of a vocabulary's width) are kept.

    >>> import torch
    >>> from neural_compressor.dtypes import dtype
    >>> _ = torch.manual_seed(0)
    >>> weight, seen, scheme = torch.randn(4, 16), InputStatistics(), TensorScheme(dtype("int3"))
    >>> seen.update(torch.randn(64, 4) @ torch.randn(4, 16))
    >>> losses = [
    ...     quadratic_loss(weight, tune_layer(weight, scheme, seen, AutoRoundOptions(iters=n)).dequantize(), seen.hessian)
    ...     for n in (0, 50)
    ... ]
    >>> losses[1] < 0.8 * losses[0]
    True
    """
    hessian = statistics.hessian
    importance = statistics.mean_square
    qparams = _start(weight, scheme, importance, options)
    rounding = LearnedRounding(weight, scheme, qparams, options.momentum or _MOMENTUM)
    values = rounding.values()
    before = quadratic_loss(weight, values, hessian)
    patience = Patience(options.dynamic_max_gap)
    for iteration in range(options.iters):
        rates = options.rates(iteration, scheme.dtype.bits)
        rounding.step((values - weight) @ hessian, *rates, out=values)
        if patience.ends(quadratic_loss(weight, values, hessian) if patience else 0.0):
            break
    if options.keep_best and not quadratic_loss(weight, values, hessian) <= before:
        rounding.reset()
    return LayerResult(rounding.result())
