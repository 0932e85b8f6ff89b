"""Look inside a model: the nodes an op became, its constants and outputs as arrays, and constants written into it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.adaptor.inspection import inspected
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.queries import constant, is_constant, producer
from neural_compressor.onnx.passes.store_weights import stored_floats
from neural_compressor.onnx.runtime.batches import ModelInputs
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.registry import close_matches
from neural_compressor.schemes import unpack_bits

ROLES = {1: "weight", 2: "bias"}
_INTEGER_PLACES = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), (3, 4, 5)),
    "DynamicQuantizeMatMul": (1, 2, 3),
    "MatMulIntegerToFloat": (1, 3, 5),
}
"""Where integer ops have codes, scale and zero point of their weight."""


def nodes_of(node: ir.Node, others: Collection[str]) -> Iterator[ir.Node]:
    """``node`` and what was put before it: ancestors up to those that are called as one of ``others``."""
    seen, waiting = {node}, [node]
    while waiting:
        current = waiting.pop(0)
        yield current
        for value in current.inputs:
            before = producer(value)
            if before is not None and before not in seen and before.name not in others:
                seen.add(before)
                waiting.append(before)


def constants_of(node: ir.Node) -> dict[str, np.ndarray]:
    """The constant floats a node computes with, by their role, also where they are stored as integers."""
    if node.op_type == "MatMulNBits":
        return {"weight": _unpacked(node)}
    if places := _INTEGER_PLACES.get(node.op_type):
        weight = _floats(node, *places)
        return {} if weight is None else {"weight": weight}
    arrays = {place: dequantized(value) for place, value in enumerate(node.inputs)}
    return {
        ROLES.get(place, f"input{place}"): a for place, a in arrays.items() if a is not None and a.dtype.kind == "f"
    }


def weights_of(parts: Sequence[ir.Node]) -> Iterator[np.ndarray]:
    """The constant floats of the nodes that stand for an op."""
    for part in parts:
        yield from constants_of(part).values()
        if part.op_type in ("MatMulInteger", "ConvInteger"):
            # Its scale is multiplied with that of the activation, by a node behind it.
            scales = (constant(value) for node in parts if node.op_type == "Mul" for value in node.inputs)
            codes, zero = (constant(value) for value in (*part.inputs, None)[1:4:2])
            scale = next((array for array in scales if array is not None), None)
            if codes is not None and scale is not None:
                by_output = (-1, *[1] * (codes.ndim - 1)) if part.op_type == "ConvInteger" else (-1,)
                yield (codes.astype(np.float32) - (0 if zero is None else zero)) * scale.reshape(by_output)


def dequantized(value: ir.Value | None) -> np.ndarray | None:
    """A constant, or what it becomes where it is stored in integers, or quantized and dequantized."""
    array = constant(value) if is_constant(value) else stored_floats(value)
    if array is not None:
        return array
    if (node := producer(value, "DequantizeLinear")) is None:
        return None
    before = producer(node.inputs[0], "QuantizeLinear")
    return _floats(node, 0, 1, 2) if before is None else _rounded(before)


def _rounded(node: ir.Node) -> np.ndarray | None:
    """What a QuantizeLinear, and a DequantizeLinear behind it, make of a constant."""
    array, step, shift = (constant(value) for value in (*node.inputs, None)[:3])
    if array is None or step is None or shift is None:
        return None
    axis, kind = node.attributes.get_int("axis", 1), dtype(shift.dtype.name)
    step, zero = (_aligned(parameter, array.shape, axis) for parameter in (step, shift))
    codes = np.clip(np.round(array / step) + zero, int(kind.min), int(kind.max))
    return np.asarray((codes - zero) * step, dtype=np.float32)


def _floats(node: ir.Node, codes: int, scale: int, zero: int) -> np.ndarray | None:
    array, step = constant(node.inputs[codes]), constant(node.inputs[scale])
    shift = constant(node.inputs[zero]) if len(node.inputs) > zero else None
    if array is None or step is None:
        return None
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    if node.op_type == "QLinearConv" or node.attributes.get_int("transB", 0) == 1:
        axis = 0
    centred = array.astype(np.float32) - (0 if shift is None else _aligned(shift, array.shape, axis, block))
    return np.asarray(centred * _aligned(step, array.shape, axis, block))


def _aligned(parameter: np.ndarray, shape: tuple[int, ...], axis: int, block: int = 0) -> np.ndarray:
    """Scales or zero points (one, one a channel of ``axis``, or one a ``block``) lined up with an array of ``shape``."""
    parameter = parameter.astype(np.float32)
    if block:
        return np.repeat(parameter, block, axis=axis)[tuple(slice(0, size) for size in shape)]
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])


def _unpacked(node: ir.Node) -> np.ndarray:
    """The matrix (inputs, outputs) of a MatMulNBits."""
    bits, block, inputs = (node.attributes.get_int(name, 0) for name in ("bits", "block_size", "K"))
    codes, scales = constant(node.inputs[1]), constant(node.inputs[2])
    assert codes is not None
    assert scales is not None
    rows, blocks = codes.shape[:2]
    values = np.asarray(unpack_bits(codes, bits, block)).astype(np.float32)
    packed = constant(node.inputs[3]) if len(node.inputs) > 3 else None
    if packed is None:
        zeros = np.full((rows, blocks), 1 << (bits - 1), np.float32)
    elif packed.dtype == np.uint8:
        zeros = np.asarray(unpack_bits(packed.reshape(rows, -1), bits, blocks)).astype(np.float32)
    else:
        zeros = packed.reshape(rows, blocks)
    matrix = (values - zeros[..., None]) * scales.reshape(rows, blocks, 1)
    return np.ascontiguousarray(matrix.reshape(rows, -1)[:, :inputs].T)


def inspect_tensors(
    model: ir.Model,
    dataloader: Iterable[Any],
    ops: Sequence[Any],
    iterations: Sequence[int],
    kind: str,
    providers: Sequence[str],
) -> dict[str, Any]:
    """Weights, and outputs in some iterations, counted from 1, of nodes that are named, or of all."""
    nodes = {str(node.name): node for node in model.graph}
    return inspected(
        kind,
        ops,
        nodes,
        list(nodes),
        lambda name: constants_of(nodes[name]),
        lambda names: _activations(model, {name: nodes[name] for name in names}, dataloader, iterations, providers),
    )


def set_tensors(model: ir.Model, tensors: Mapping[str, Any]) -> ir.Model:
    """A new model with constants of ops replaced: ``{'op.tensor': array}``, named as :func:`inspect_tensors` does."""
    new = model.clone()
    places = {
        f"{node.name}.{ROLES.get(place, f'input{place}')}": value
        for node in new.graph
        for place, value in enumerate(node.inputs)
        if value is not None and constant(value) is not None
    }
    for name, given in tensors.items():
        if name not in places:
            raise ConfigError(f"the model has no tensor {name!r}; {close_matches(name, places)}")
        value = places[name]
        assert value.const_value is not None
        array = np.asarray(given).astype(value.const_value.numpy().dtype)
        if array.shape != tuple(value.const_value.shape.numpy()):
            raise ConfigError(f"tensor {name!r} has shape {tuple(value.const_value.shape.numpy())}, not {array.shape}")
        value.const_value = ir.tensor(array, name=value.name)
    return new


def _activations(
    model: ir.Model,
    nodes: Mapping[str, ir.Node],
    dataloader: Iterable[Any],
    iterations: Sequence[int],
    providers: Sequence[str],
) -> list[dict[str, dict[str, np.ndarray]]]:
    places = [(op, place) for op, node in nodes.items() for place, value in enumerate(node.outputs) if value.name]
    session = make_session(model, [str(nodes[op].outputs[place].name) for op, place in places], providers)
    inputs = ModelInputs.of(model)
    seen: list[dict[str, dict[str, np.ndarray]]] = []
    for index, batch in enumerate(dataloader, start=1):
        if index in iterations:
            arrays: dict[str, dict[str, np.ndarray]] = {}
            results = session.run(None, inputs.feed(inputs.split(batch)))
            for (op, place), array in zip(places, results, strict=True):
                arrays.setdefault(op, {})[f"output{place}"] = array
            seen.append(arrays)
        if index >= max(iterations):
            break
    return seen
