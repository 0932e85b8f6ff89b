"""Simplification ahead of quantization, by ONNX Runtime and beyond: fewer steps between the ops that get quantized.

Multiplications and additions of constants before or behind an op are done by its weight and bias: between an op and the
quantizer of its output nothing may be left, or the runtime computes it in float.
"""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.mapped_file import map_external
from neural_compressor.onnx.files.model_file import ONE_FILE_BYTES, read_model, weight_bytes
from neural_compressor.onnx.files.scratch import scratch_folder
from neural_compressor.onnx.graph.editor import GraphEditor, bypass, take_over
from neural_compressor.onnx.graph.normalise import EarlyPasses, normalise
from neural_compressor.onnx.graph.queries import (
    array_of,
    constant,
    is_constant,
    is_float,
    only_consumer,
    optional_input,
    standard,
)
from neural_compressor.onnx.passes.runtime_fusions import shorten_hard_swish
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.registry import close_matches

logger = logging.getLogger("neural_compressor")

LEVELS = {"DISABLE_ALL": "none", "ENABLE_BASIC": "basic", "ENABLE_EXTENDED": "extended", "ENABLE_ALL": "all"}
"""The levels by the names ONNX Runtime gives them."""
_RENAMING = ("MatMulAddFusion",)
"""Changes that lose the name of a product, by which users speak of it."""
_MACHINE_LAYOUT = ("NchwcTransformer",)
"""Changes to the memory layout of this machine, for which there are no integer operators."""


def optimise(model: ir.Model, level: str | None = None) -> ir.Model:
    """``model`` as ONNX Runtime simplifies it at ``level``, normalised.

    None is the basic level without what renames products. Beyond the basic level the graph has operators of ONNX Runtime
    itself, most of which are not quantized. A model too large for one file stays as it is: the
    runtime would hold its weights several times.
    """
    if level is not None and level.removeprefix("ORT_") not in LEVELS:
        raise ConfigError(f"graph_optimization_level is {level!r}; {close_matches(str(level), LEVELS)}")
    name = "basic" if level is None else LEVELS[level.removeprefix("ORT_")]
    if name == "none":
        return model
    if weight_bytes(model) > ONE_FILE_BYTES:
        logger.warning("the graph is not simplified first: its weights take more than %d bytes", ONE_FILE_BYTES)
        return model
    disabled = (*_MACHINE_LAYOUT, *(_RENAMING if level is None else ()))
    with scratch_folder() as folder:
        path = folder / "optimised.onnx"
        make_session(model, level=name, optimized_path=str(path), disabled_optimizers=disabled)
        early = EarlyPasses()
        new = read_model(path, early)
        map_external(new)
    for node in new.graph:
        # A product that took in the addition behind it is the same op to whoever named it.
        node.name = (node.name or "").removesuffix("/MatMulAddFusion")
    common.RemoveUnusedOpsetsPass()(new)
    # The runtime computes what is constant in each branch, also where that is made of one weight they all read.
    if common.LiftSubgraphInitializersToMainGraphPass()(new).modified:
        common.DeduplicateHashedInitializersPass()(new)
    return normalise(new, inferred=early.inferred)


def simplify(model: ir.Model) -> None:
    """Change ``model`` in place as far as it helps integers; the nodes with weights keep their names."""
    editor = GraphEditor(model)
    _tidy(editor, transpose=True)
    fold_factors(editor)


def tidy(model: ir.Model) -> None:
    """Take out in place what no runtime needs; the nodes with weights keep their names.

    So the file is smaller, and what stays in float is faster. Matrices are left alone, which may be large and in a file.
    """
    _tidy(GraphEditor(model), transpose=False)


def _tidy(editor: GraphEditor, *, transpose: bool) -> None:
    common.RemoveUnusedNodesPass()(editor.model)
    for node in list(editor.model.graph):
        if standard(node, "Identity", "Dropout"):
            _drop(node)
        elif transpose and standard(node, "Transpose"):
            _transpose_now(editor, node)
        elif standard(node, "Gemm"):
            _without_factors(editor, node)
    fold_affine(editor)
    shorten_hard_swish(editor)


def _drop(node: ir.Node) -> None:
    training, value = optional_input(node, 2), node.inputs[0]
    fixed = training is None or (is_constant(training) and not np.any(constant(training)))
    if value is not None and fixed and not _others_used(node):
        bypass(node, value)


def _others_used(node: ir.Node) -> bool:
    """Whether an output of ``node`` behind its first one is read."""
    return any(value.uses() or value.is_graph_output() for value in node.outputs[1:])


def _transpose_now(editor: GraphEditor, node: ir.Node) -> None:
    """Exporters write the transpose of a weight as a node of its own, which hides that the result is constant."""
    value = node.inputs[0]
    array = constant(value) if is_float(value) else None
    if array is not None and value is not None:
        axes = node.attributes.get_ints("perm", tuple(reversed(range(array.ndim))))
        turned = np.ascontiguousarray(array.transpose(axes))
        bypass(node, editor.weight(f"{value.name}_transposed", turned, editor.model.graph))


def _without_factors(editor: GraphEditor, node: ir.Node) -> None:
    """``alpha`` and ``beta`` of a Gemm moved into its constants: integer kernels know no ``beta``."""
    for name, place in (("alpha", 1), ("beta", 2)):
        factor, value = node.attributes.get_float(name, 1.0), optional_input(node, place)
        if factor == 1 or (value is not None and not _is_float_constant(value)):
            continue
        if value is not None:
            _scale(editor, node, place, factor)
        node.attributes.pop(name)


Affine = tuple[np.ndarray, np.ndarray]
"""Factor and summand by channel, as float64."""


def fold_affine(editor: GraphEditor) -> None:
    """Fold BatchNormalization and Mul, Div, Add, Sub with a constant into the op before them that has a weight."""
    for node in list(editor.model.graph):
        if standard(node, "Conv", "ConvTranspose", "Gemm") and _has_constants(node):
            while (following := only_consumer(node)) is not None:
                affine = _affine(following, node)
                if affine is None:
                    break
                _apply(editor, node, affine)
                take_over(following, node.outputs[0])


def _has_constants(node: ir.Node) -> bool:
    bias = optional_input(node, 2)
    return _is_float_constant(node.inputs[1]) and (bias is None or is_constant(bias))


def _is_float_constant(value: ir.Value | None) -> bool:
    return is_constant(value) and is_float(value)


def _affine(node: ir.Node, before: ir.Node) -> Affine | None:
    """What ``node`` does to the output of ``before``, where that is a factor and a summand a channel."""
    if standard(node, "BatchNormalization"):
        return _batch_norm(node)
    if not standard(node, "Mul", "Div", "Add", "Sub"):
        return None
    place = 1 if node.inputs[0] is before.outputs[0] else 0
    operand = constant(node.inputs[place])
    if operand is None or operand.dtype != np.float32 or (place == 0 and node.op_type in ("Div", "Sub")):
        return None
    weight = array_of(before.inputs[1])
    shape = (1,) * (weight.ndim - operand.ndim) + operand.shape
    if len(shape) != weight.ndim or any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    if before.op_type == "ConvTranspose":
        channels = weight.shape[1] * before.attributes.get_int("group", 1)
    else:
        outputs_last = before.op_type == "Gemm" and not before.attributes.get_int("transB", 0)
        channels = weight.shape[1 if outputs_last else 0]
    values = np.broadcast_to(operand.reshape(-1).astype(np.float64), (channels,))
    if node.op_type in ("Add", "Sub"):
        return np.ones(channels), values if node.op_type == "Add" else -values
    if node.op_type == "Div" and not values.all():
        return None
    return values if node.op_type == "Mul" else 1 / values, np.zeros(channels)


def _batch_norm(node: ir.Node) -> Affine | None:
    parameters = [constant(value) for value in node.inputs[1:5]]
    if node.attributes.get_int("training_mode", 0) or _others_used(node) or any(p is None for p in parameters):
        return None
    scale, shift, mean, variance = (np.asarray(p, dtype=np.float64) for p in parameters)
    factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    return factor, shift - mean * factor


def _apply(editor: GraphEditor, node: ir.Node, affine: Affine) -> None:
    factor, summand = affine
    if not (factor == 1).all():
        weight = array_of(node.inputs[1]).astype(np.float64)
        editor.set_constant(node, 1, weight * _along_outputs(node, weight.shape, factor))
    bias = constant(optional_input(node, 2))
    if bias is not None or summand.any():
        before = np.zeros_like(summand) if bias is None else bias.astype(np.float64)
        editor.set_constant(node, 2, before * factor + summand)


def _along_outputs(node: ir.Node, shape: tuple[int, ...], factor: np.ndarray) -> np.ndarray:
    """One number an output of ``node``, in a shape that lines up with its weight of ``shape``."""
    if node.op_type == "Gemm":
        return factor[:, None] if node.attributes.get_int("transB", 0) else factor
    tail = (1,) * (len(shape) - 2)
    if node.op_type == "Conv":
        return factor.reshape(-1, 1, *tail)
    groups = node.attributes.get_int("group", 1)
    return np.repeat(factor.reshape(groups, -1), shape[0] // groups, axis=0).reshape(*shape[:2], *tail)


def fold_factors(editor: GraphEditor) -> None:
    """Fold ``x * factor``, and the factor of ``x * factor + summand``, into the weights of all that read the result."""
    for node in list(editor.model.graph):
        if (found := _factor(node)) is None:
            continue
        value, factor = found
        add, result, summand = only_consumer(node), node.outputs[0], None
        if add is not None and standard(add, "Add"):
            place = 1 if add.inputs[0] is result else 0
            if _is_float_constant(add.inputs[place]):
                summand, result = (add, place), add.outputs[0]
        consumers = {use.node: None for use in result.uses()}
        linear = all(_multiplies(each, result) and each.graph is node.graph for each in consumers)
        if not consumers or result.is_graph_output() or not linear:
            continue
        for consumer in consumers:
            _scale(editor, consumer, 1, factor)
        if summand is not None:
            _scale(editor, *summand, 1 / factor)
        bypass(node, value)


def _multiplies(node: ir.Node, value: ir.Value) -> bool:
    """Whether ``node`` does nothing with ``value`` but multiply it with a weight of its own."""
    linear = standard(node, "Conv", "ConvTranspose", "MatMul", "Gemm") and _is_float_constant(node.inputs[1])
    return linear and [place for place, each in enumerate(node.inputs) if each is value] == [0]


def _scale(editor: GraphEditor, node: ir.Node, place: int, factor: float) -> None:
    editor.set_constant(node, place, array_of(node.inputs[place]) * np.float32(factor))


def _factor(node: ir.Node) -> tuple[ir.Value, float] | None:
    """What ``node`` multiplies, and the number other than zero it multiplies it by."""
    if not standard(node, "Mul", "Div"):
        return None
    value, operand = node.inputs
    if node.op_type == "Mul" and is_constant(value):
        value, operand = operand, value
    array = constant(operand)
    if array is None or array.size != 1 or array.dtype != np.float32 or value is None or is_constant(value):
        return None
    # A factor of more axes than the value would give the result these axes.
    if array.ndim > 1 and (value.shape is None or len(value.shape) < array.ndim):
        return None
    number = float(array.item()) if node.op_type == "Mul" else 1 / float(array.item() or np.nan)
    return (value, number) if np.isfinite(number) and number != 0 else None
