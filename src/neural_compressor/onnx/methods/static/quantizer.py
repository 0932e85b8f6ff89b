"""Static quantization: ranges collected on data, then integers wherever the plan and the runtime have them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import replace

import onnx_ir as ir

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.integer_tensors import ACTIVATIONS, EIGHT_BITS, STORED
from neural_compressor.onnx.graph.normalise import normalise, opset
from neural_compressor.onnx.graph.ops import CLIPS, OP_TYPES, PASS_ON, NodeInfo, quantizable_nodes, unquantizable_nodes
from neural_compressor.onnx.graph.queries import array_of, at_node, input_of
from neural_compressor.onnx.methods.static.calibration import KnownRanges, tensor_params
from neural_compressor.onnx.methods.static.corrections import BiasCorrection, correct_weights, watch
from neural_compressor.onnx.methods.static.integer_race import IntegerRace
from neural_compressor.onnx.methods.static.layout import Layout, QuantizedOp, lay_out
from neural_compressor.onnx.methods.static.options import StaticOptions
from neural_compressor.onnx.methods.static.qdq import QDQWriter, shield
from neural_compressor.onnx.methods.static.qoperator import to_integer_ops
from neural_compressor.onnx.passes.runtime_fusions import (
    OPSET_OF_HARD_SWISH,
    has_hard_swish,
    name_hard_swish,
    settle_summands,
)
from neural_compressor.onnx.passes.simplify import simplify
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.op_race import current_race, known_shapes
from neural_compressor.registry import close_matches
from neural_compressor.schemes import PER_TENSOR, OpKey, OpScheme, PerGroup, Plan, TensorScheme, value_range
from neural_compressor.schemes.ranges import require_finite

logger = logging.getLogger("neural_compressor")

_GONE = "it is not needed: the weight and bias of the op before it do its work, or nothing reads it"
OPSET_OF_OTHER_BITS = 21
"""From here on Q/DQ nodes take integers of 16 and 4 bits."""


def quantize_static(
    model: ir.Model,
    plan: Plan,
    samples: Samples | None,
    options: StaticOptions | None = None,
    known: KnownRanges | None = None,
    left: MutableMapping[OpKey, str] | None = None,
) -> ir.Model:
    """A new model in which the ops that ``plan`` has as static run in integers; ``model`` is a normalised one.

    ``known`` keeps the ranges that were collected, for the next call on the same model and data; ``left`` is given the ops
    that stay in float all the same, with the reason.
    """
    options = options or StaticOptions()
    new, layout = _laid_out(model, plan, options, samples)
    for (name, op_type), reason in layout.left.items():
        logger.info("%s (%s) stays in float: %s", name, op_type, reason)
    if left is not None:
        left.update(layout.left)
    _check_weights(layout)
    moments = watch(new, layout) if samples is not None and options.bias_correction is not False else None
    params_of = tensor_params(new, layout, samples, options, known, moments)
    correction = None
    if samples is not None and moments is not None:
        with _if_possible(options):
            correction = BiasCorrection(new, moments, samples, options.providers)
    editor = GraphEditor(new)
    if options.weight_correction:
        correct_weights(editor, layout)
    writer = QDQWriter(editor, layout, params_of, options)
    writer.write_activations()
    for op in layout.ops.values():
        with at_node(op.info.node.name):
            writer.write_constants(op)
    if correction is not None:
        with _if_possible(options):
            correction.apply(editor)
    for op in layout.ops.values():
        writer.write_bias(op)
    if options.on_cpu:
        shield(editor)
    if options.quant_format == "QOperator":
        to_integer_ops(new)
    return new


@contextmanager
def _if_possible(options: StaticOptions) -> Iterator[None]:
    """Within it biases are corrected; what stands against that is an error where the options insist on it."""
    try:
        yield
    except CalibrationError as error:
        if options.bias_correction:
            raise
        logger.info("biases are not corrected: %s", error)


def _check_weights(layout: Layout) -> None:
    """Ahead of calibration, which would find NaN too, but in a tensor computed from them."""
    for op in layout.ops.values():
        for what, value in (("weight", op.info.weight), ("bias", op.info.bias)):
            if value is not None:
                with at_node(op.info.node.name):
                    require_finite(*value_range(array_of(value), PER_TENSOR), f"its {what}")


def _laid_out(model: ir.Model, plan: Plan, options: StaticOptions, samples: Samples | None) -> tuple[ir.Model, Layout]:
    schemes = _checked_schemes(model, plan, options)
    new = model.clone()
    simplify(new)
    tensors = (tensor for scheme in schemes.values() for tensor in (scheme.weight, scheme.activation) if tensor)
    is_wide = any(tensor.dtype.name in STORED and tensor.dtype.name not in EIGHT_BITS for tensor in tensors)
    least = OPSET_OF_OTHER_BITS if is_wide else OPSET_OF_HARD_SWISH if has_hard_swish(new) else 0
    if opset(new) < least:
        new = normalise(new, least)
    if least == OPSET_OF_OTHER_BITS:
        new.ir_version = max(new.ir_version or 0, 10)
    by_name = {name: scheme for (name, _), scheme in schemes.items()}
    editor = GraphEditor(new)
    name_hard_swish(editor)
    settle_summands(editor, by_name.keys())
    nodes = {name: info for (name, _), info in quantizable_nodes(new).items()}
    planned = {
        info.node: QuantizedOp(info, by_name[name], {i: input_of(info.node, i) for i in info.activations})
        for name, info in nodes.items()
        if name in by_name
    }
    races = None
    if options.on_cpu and (race := current_race()) is not None:
        races = IntegerRace(race, known_shapes(new, {} if samples is None else samples.shapes()))
    passing = {key for key, scheme in plan.items() if scheme.is_float and key[1] in PASS_ON}
    kept_in_float = {node for node in new.graph if (node.name, node.op_type) in passing}
    layout = lay_out(new, planned, kept_in_float, options, races)
    gone = dict.fromkeys((key for key in schemes if key[0] not in nodes), _GONE)
    # A product may be a Gemm by now; the plan knows it as what it was.
    planned_as = {key[0]: key for key in schemes}
    left = {planned_as[name]: reason for (name, _), reason in layout.left.items()}
    return new, replace(layout, left={**left, **gone})


def _checked_schemes(model: ir.Model, plan: Plan, options: StaticOptions) -> dict[OpKey, OpScheme]:
    """What ``plan`` has as static, less the ops that only pass on what their neighbours give them."""
    nodes = quantizable_nodes(model)
    known = {(str(node.name), node.op_type) for node in model.graph.all_nodes()}
    schemes = {key: scheme for key, scheme in plan.items() if scheme.mode == "static"}
    for key in schemes:
        if key not in nodes:
            _check_named(key, known, model)
    chosen = {key: schemes[key] for key in nodes if key in schemes}
    for key, scheme in chosen.items():
        with at_node(key[0]):
            _check(nodes[key], scheme, options)
    return chosen


def _check_named(key: OpKey, known: set[OpKey], model: ir.Model) -> None:
    name, op_type = key
    if key not in known:
        names = [n for n, kind in known if kind == op_type] or [n for n, _ in known]
        raise ConfigError(f"the model has no {op_type} called {name!r}; {close_matches(name, names)}")
    if op_type in OP_TYPES and (reason := unquantizable_nodes(model).get(key)) is not None:
        raise ConfigError(f"{name!r} ({op_type}) cannot be quantized: {reason}")
    if op_type not in PASS_ON and op_type not in CLIPS:
        raise ConfigError(f"{name!r}: {op_type} is not quantized statically; {close_matches(op_type, OP_TYPES)}")


def _check(info: NodeInfo, scheme: OpScheme, options: StaticOptions) -> None:
    eight_only = options.quant_format == "QOperator"
    if info.activations:
        if scheme.activation is None:
            raise ConfigError("its activation is in float, and static quantization needs it in integers")
        _check_tensor(scheme.activation, "an activation", EIGHT_BITS if eight_only else ACTIVATIONS)
        if scheme.activation.granularity != PER_TENSOR:
            raise ConfigError(f"activations have one scale a tensor, not {scheme.activation.granularity.name}")
    if info.weight_index is not None:
        if scheme.weight is None:
            raise ConfigError("it has a weight, and the plan says nothing of it")
        _check_tensor(scheme.weight, "a weight", EIGHT_BITS if eight_only else STORED)
        if isinstance(scheme.weight.granularity, PerGroup):
            raise ConfigError("scales a group belong to weight-only quantization; use per_tensor or per_channel")
        if options.on_cpu and info.node.op_type == "Conv" and _has_zero_points(scheme):
            raise ConfigError(
                "a Conv with a zero point for each channel is dequantized at every run, which takes ten times as long as "
                "float; use the scheme sym (all zero points are 128), int8, or granularity per_tensor"
            )
        if scheme.weight.granularity != PER_TENSOR and info.axis is None:
            logger.info("%s (%s) gets one scale for its weight: the runtime takes none a channel there", *info.key)


def _has_zero_points(scheme: OpScheme) -> bool:
    """Whether the channels of an 8-bit weight have unsigned zero points of their own."""
    weight, activation = scheme.weight, scheme.activation
    if weight is None or activation is None or activation.dtype.name not in EIGHT_BITS:
        return False
    return weight.dtype.name == "uint8" and not weight.symmetric and weight.granularity != PER_TENSOR


def _check_tensor(scheme: TensorScheme, what: str, types: tuple[str, ...]) -> None:
    if scheme.dtype.name not in types:
        raise ConfigError(f"{what} can be {', '.join(types)} in this format, not {scheme.dtype.name}")
