"""Output errors of quantized ops, each alone on the inputs it has in the float model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import tree

from neural_compressor.schemes import OpKey, QParams
from neural_compressor.tensorflow.batches import run
from neural_compressor.tensorflow.float_graph import QuantizedGraph
from neural_compressor.tensorflow.layers import QuantizeDequantize
from neural_compressor.tensorflow.layout import lay_out
from neural_compressor.tensorflow.structure.ops import type_of, weights_of
from neural_compressor.tensorflow.structure.simplify import copy_of
from neural_compressor.tensorflow.structure.trace import rebuild


def op_errors(parts: QuantizedGraph, feeds: Iterable[Any]) -> dict[OpKey, float]:
    """``sum |quantized - float|^2 / sum |float|^2`` of the outputs of the ops that ``parts`` quantizes, over batches."""
    model = _side_by_side(parts)
    sums: dict[str, list[float]] = {}
    for inputs in feeds:
        for name, (quantized, plain) in run(model, inputs).items():
            both = sums.setdefault(name, [0.0, 0.0])
            both[0] += float(np.sum(np.square(quantized.astype(np.float64) - plain)))
            both[1] += float(np.sum(np.square(plain.astype(np.float64))))
    kinds = dict(parts.plan.keys())
    return {(name, kinds[name]): error / size if size else 0.0 for name, (error, size) in sums.items()}


def _side_by_side(parts: QuantizedGraph) -> Any:
    """A model that gives, by op, what it gives quantized and in float."""
    assert parts.graph is not None
    graph = parts.graph
    layout = lay_out(graph, parts.plan)
    copies: dict[int, Any] = {}
    pairs: dict[str, list[Any]] = {}

    def call(node: Any, args: Any, kwargs: Any) -> Any:
        op = node.operation
        plain = copies.setdefault(id(op), copy_of(op))(*args, **kwargs)
        scheme = parts.plan.get((op.name, type_of(op)))
        if scheme is None or scheme.is_float or len(graph.calls(op)) != 1:
            return plain
        twin = copy_of(op, f"{op.name}.quantized")
        for tensor, codes in parts.codes.get(op.name, {}).items():
            weights_of(twin)[tensor].assign(np.asarray(codes.dequantize()))
        if scheme.activation is not None:
            given = [t for t in tree.flatten((args, kwargs)) if isinstance(t, keras.KerasTensor)]
            swapped = {}
            for number, (old, new) in enumerate(zip(node.input_tensors, given, strict=True)):
                if str(old.dtype).startswith("float"):
                    site = layout.before.get((id(node), id(old)))
                    qparams: QParams | None = parts.ranges[site.name] if site is not None else None
                    layer = QuantizeDequantize(scheme.activation, qparams, name=f"{op.name}.input{number}")
                    swapped[id(new)] = layer(new)
            args, kwargs = tree.map_structure(lambda t: swapped.get(id(t), t), (args, kwargs))
        first = tree.flatten(twin(*args, **kwargs))[0]
        pairs[op.name] = [first, tree.flatten(plain)[0]]
        return plain

    made = rebuild(graph.model, call)
    return keras.Model(made._inputs_struct, pairs)
