"""Scale and zero point of each tensor that a layout hands on as integers."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence

import onnx_ir as ir

from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.graph.integer_tensors import IntegerParams, activation_params, cuts_off
from neural_compressor.onnx.graph.queries import consumer_bounds, producer
from neural_compressor.onnx.methods.static.calibration import FloatMoments, Range, calibrate
from neural_compressor.onnx.methods.static.layout import Layout
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.schemes import TensorScheme

KnownRanges = MutableMapping[tuple[str, object], Range]
"""Ranges collected for earlier plans, on the same model and data."""
_BY_DTYPE = ("kl", "entropy", "mse")
"""Algorithms whose range depends on the data type."""


def tensor_params(
    model: ir.Model,
    layout: Layout,
    samples: Samples | None,
    options: StaticOptions,
    known: KnownRanges | None,
    moments: FloatMoments | None = None,
) -> dict[tuple[ir.Value, TensorScheme], IntegerParams]:
    """By tensor and scheme; what ``known`` lacks is collected on ``samples`` and added to it.

    Where ``known`` is given, so is what plans with fewer integer ops may need. If there is a pass, it takes ``moments``.
    """
    wanted = dict.fromkeys(_wanted(layout))
    collected: KnownRanges = {} if known is None else known
    if any(_key(*each) not in collected for each in wanted):
        candidates = () if known is None else layout.candidates
        _collect(model, [*wanted, *candidates], samples, options, collected, moments)
    params = {(value, scheme): _of(collected[_key(value, scheme)], value, scheme) for value, scheme in wanted}
    for value, tensor in layout.tensors.items():
        if _is_softmax(value):
            params[value, tensor.scheme] = activation_params(0.0, 1.0, tensor.scheme)
    _share(layout, params)
    return params


def _of(seen: Range, value: ir.Value, scheme: TensorScheme) -> IntegerParams:
    least, most = consumer_bounds(value)
    low, high = (min(max(end, least), most) for end in seen)
    return activation_params(low, high, scheme)


def _wanted(layout: Layout) -> Iterator[tuple[ir.Value, TensorScheme]]:
    for tensor in layout.tensors.values():
        yield tensor.source, tensor.scheme
    for op in layout.ops.values():
        for value in op.reads.values():
            yield layout.source(value, op.activation), op.activation


def _key(value: ir.Value, scheme: TensorScheme) -> tuple[str, object]:
    return str(value.name), scheme if scheme.algorithm in _BY_DTYPE else scheme.algorithm


def _collect(
    model: ir.Model,
    wanted: Sequence[tuple[ir.Value, TensorScheme]],
    samples: Samples | None,
    options: StaticOptions,
    known: KnownRanges,
    moments: FloatMoments | None,
) -> None:
    """One pass over the data, and one more for tensors that ops with different schemes read."""
    missing = [(value, scheme) for value, scheme in wanted if _key(value, scheme) not in known]
    while missing:
        if samples is None:
            raise CalibrationError(
                f"static quantization needs calibration data for the ranges of {len(missing)} tensors; "
                "give a CalibrationDataReader"
            )
        now = {str(value.name): scheme for value, scheme in missing}
        ranges = calibrate(model, now, samples, options.providers, options.percentile, moments)
        known.update({_key(v, s): ranges[str(v.name)] for v, s in missing if now[str(v.name)] == s})
        missing = [(value, scheme) for value, scheme in missing if _key(value, scheme) not in known]
        moments = None


def _share(layout: Layout, params: dict[tuple[ir.Value, TensorScheme], IntegerParams]) -> None:
    """Give what only a Concat reads the scale of its result, so that it need not convert."""
    for node, op in reversed(list(layout.ops.items())):
        if node.op_type != "Concat" or (tensor := layout.tensors.get(_behind(layout, node))) is None:
            continue
        shared = params[tensor.source, tensor.scheme]
        for value in op.reads.values():
            own = layout.tensors.get(value)
            alone = len(value.uses()) == 1 and not value.is_graph_output()
            if (
                not alone
                or layout.source(value, op.activation) is not value
                or (own is not None and _is_softmax(value))
            ):
                continue
            # A Relu that the quantizer does the work of is worth more than a shared scale.
            if own is None or own.clip is None or cuts_off(shared, own.clip):
                params[value, op.activation] = shared


def _is_softmax(value: ir.Value) -> bool:
    """The integer Softmax does not cut off what is beyond its range, so that has to hold all there can be."""
    return producer(value, "Softmax") is not None


def _behind(layout: Layout, node: ir.Node) -> ir.Value:
    """The tensor that ``node`` gives, behind the Relu or Clip that goes with it."""
    output = node.outputs[0]
    return next((value for value, tensor in layout.tensors.items() if tensor.raw is output), output)
