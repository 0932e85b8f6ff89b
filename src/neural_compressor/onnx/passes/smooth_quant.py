"""SmoothQuant: move the outliers of activations into the weights, before both are quantized."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms.smoothquant import Alpha, check_alpha, smooth_scale
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.linear_ops import LINEAR_TYPES, LinearOp, linear_ops
from neural_compressor.onnx.graph.queries import graph_of
from neural_compressor.onnx.passes.scale_folding import Channels, apply_folds, find_folds
from neural_compressor.onnx.runtime.session import feeds, make_session, run_sample
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerChannel, Plan, TensorScheme, fake_quantize

logger = logging.getLogger("neural_compressor")


@dataclass(frozen=True)
class ChannelStatistics:
    """Smallest and largest value, and mean square, of each channel over ``count`` places."""

    low: np.ndarray
    high: np.ndarray
    mean_square: np.ndarray
    count: int

    @classmethod
    def of(cls, vectors: np.ndarray) -> ChannelStatistics:
        """The statistics of ``vectors`` of shape (places, channels)."""
        square = np.mean(np.square(vectors, dtype=np.float64), axis=0)
        return cls(vectors.min(axis=0), vectors.max(axis=0), square, vectors.shape[0])

    @property
    def absmax(self) -> np.ndarray:
        """The largest magnitude of each channel."""
        return np.asarray(np.maximum(np.abs(self.low), np.abs(self.high)))

    def __add__(self, other: ChannelStatistics) -> ChannelStatistics:
        count = self.count + other.count
        square = (self.mean_square * self.count + other.mean_square * other.count) / count
        return ChannelStatistics(np.minimum(self.low, other.low), np.maximum(self.high, other.high), square, count)


def channel_statistics(
    model: ir.Model,
    axes: Mapping[str, int],
    samples: Iterable[Mapping[str, Any]],
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> dict[str, ChannelStatistics]:
    """Statistics of the values named in ``axes``, whose channels are on the axis given there."""
    names = list(axes)
    computed = {v.name for node in model.graph for v in node.outputs}
    session = make_session(model, outputs=[name for name in names if name in computed] or None, providers=providers)
    found: dict[str, ChannelStatistics] = {}
    for number, sample in enumerate(samples):
        fed = feeds(model, sample, number)
        results = run_sample(session, fed, number)
        arrays = dict(zip((o.name for o in session.get_outputs()), results, strict=True)) | fed
        for name in names:
            array = np.asarray(arrays[name])
            vectors = np.moveaxis(array, axes[name], -1).reshape(-1, array.shape[axes[name]])
            if vectors.shape[0] == 0:
                continue
            seen = ChannelStatistics.of(vectors)
            if not np.isfinite(seen.mean_square).all():
                raise CalibrationError(f"sample {number}: {name!r} holds NaN or Inf, or overflows when squared")
            found[name] = found[name] + seen if name in found else seen
    lost = [name for name in names if name not in found]
    if lost:
        raise CalibrationError(f"the calibration data holds no values for {lost[0]!r}: every sample is empty there")
    return found


_ACTIVATION_STEPS = 255
INT8_A_CHANNEL = TensorScheme(dtype("int8"), granularity=PER_CHANNEL)


def smooth(
    model: ir.Model,
    samples: Iterable[Mapping[str, Any]],
    alpha: Alpha = 0.5,
    *,
    folding: bool = True,
    op_types: Collection[str] = LINEAR_TYPES,
    calib_iter: int = 100,
    scales_per_op: bool = True,
    weights: TensorScheme = INT8_A_CHANNEL,
    providers: Sequence[str] = ("CPUExecutionProvider",),
) -> ir.Model:
    """A new model that computes the same as ``model``, a normalised one, with channels of inputs and weights evened out.

    ``alpha`` says how much goes into the weights, from 0 to 1. Of a list, or of ``AUTO_ALPHAS`` with "auto", each op
    takes what makes the error of its quantized output least, or no scale at all. ``scales_per_op`` gives each op
    scales of its own, otherwise ops that read the same value share them. ``folding`` puts scales into the constants of
    what comes before, where that is exact; elsewhere, and without it, a Mul is inserted. ``calib_iter`` is the number
    of samples looked at. ``weights`` is what the weights will be quantized to: one scale for all of a weight leaves less
    room for outliers than one a channel.
    """
    alphas = check_alpha(alpha)
    new = model.clone()
    groups: dict[Any, list[LinearOp]] = {}
    for op in linear_ops(new, op_types):
        groups.setdefault(op.node if scales_per_op else (op.input, op.axis), []).append(op)
    if not groups:
        logger.warning("nothing to smooth: the model has no %s with a constant weight", " or ".join(op_types))
        return new
    axes = {str(group[0].input.name): group[0].axis for group in groups.values()}
    seen = channel_statistics(new, axes, islice(iter(samples), calib_iter), providers)
    editor = GraphEditor(new)
    for group in groups.values():
        scale = group_scale(group, seen[str(group[0].input.name)], alphas, weights)
        if scale is not None:
            _apply(editor, group, scale, folding)
    return new


def group_scale(
    group: Sequence[LinearOp],
    seen: ChannelStatistics,
    alphas: Sequence[float],
    weights: TensorScheme = INT8_A_CHANNEL,
) -> np.ndarray | None:
    """What to divide the channels of the group's input by; None where no scale is better, if there is a choice."""
    reach = np.max([np.abs(op.rows(op.weight)).max(axis=1) for op in group], axis=0)
    scales = [np.asarray(smooth_scale(seen.absmax, reach, alpha), dtype=np.float32) for alpha in alphas]
    if len(scales) == 1:
        return scales[0]
    candidates = [np.ones_like(scales[0]), *scales]
    errors = [sum(output_error(op, seen, scale, weights) for op in group) for scale in candidates]
    best = int(np.argmin(errors))
    return candidates[best] if best else None


def output_error(
    op: LinearOp, seen: ChannelStatistics, scale: np.ndarray, weights: TensorScheme = INT8_A_CHANNEL
) -> float:
    """The expected square of the error of ``op``'s outputs in 8 bits, with the channels of its input divided by ``scale``.

    Rounding the input adds noise of a twelfth of the squared step to each channel, or all there is of a channel where that
    is less, which the weights carry on; rounding the weights adds their error times the mean square of the channel.
    """
    high, low = np.maximum(seen.high / scale, 0).max(), np.minimum(seen.low / scale, 0).min()
    step = float(high - low) / _ACTIVATION_STEPS
    weight, square = op.scaled(scale), seen.mean_square / np.square(scale, dtype=np.float64)
    granularity = PER_TENSOR if weights.granularity == PER_TENSOR else PerChannel(op.outputs)
    rounded = np.asarray(fake_quantize(weight, replace(weights, granularity=granularity)))
    noise = np.square(op.rows(weight), dtype=np.float64).sum(axis=1) * np.minimum(step**2 / 12, square)
    lost = np.square(op.rows(rounded - weight), dtype=np.float64).sum(axis=1) * square
    return float((noise + lost).sum())


def prevailing_weights(plan: Plan) -> TensorScheme:
    """What most weights of ``plan`` are quantized to, for :func:`smooth`."""
    schemes = Counter(scheme.weight for scheme in plan.values() if scheme.mode == "static" and scheme.weight)
    return schemes.most_common(1)[0][0] if schemes else INT8_A_CHANNEL


def _apply(editor: GraphEditor, group: Sequence[LinearOp], scale: np.ndarray, folding: bool) -> None:
    first = group[0]
    channels = Channels(len(scale), first.axis, first.weight.ndim)
    folds = find_folds(first.input, channels, consumers=len(group)) if folding else None
    weights = [op.scaled(scale) for op in group]
    if folds is not None:
        apply_folds(editor, folds, 1 / scale)
    else:
        source, inverse = first.input, (1 / scale).reshape(channels.shape)
        factor = editor.weight(f"{first.node.name}_smooth_scale", inverse, graph_of(first.node))
        (divided,) = editor.insert(first.node, "Mul", [source, factor])
        divided.type, divided.shape = source.type, source.shape
        for op in group:
            op.node.replace_input_with(0, divided)
    for op, weight in zip(group, weights, strict=True):
        editor.set_constant(op.node, 1, weight)
