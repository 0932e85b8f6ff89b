"""Activations quantized while the model runs, and weights quantized beforehand, each only once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.schemes import (
    OpScheme,
    PerChannel,
    PerTensor,
    TensorScheme,
    in_pairs,
    quantize,
    quantize_pairs,
)


class QuantizedValue(NamedTuple):
    """Codes with their scale and zero point, all in the graph; a zero point that is 0 may be left out."""

    codes: ir.Value
    scale: ir.Value
    zero: ir.Value | None


@dataclass(frozen=True)
class Codes:
    """The same as arrays."""

    codes: np.ndarray
    scale: np.ndarray
    zero: np.ndarray


class DynamicTensors:
    """What has been quantized in a model so far: nodes that read the same value or weight share it."""

    def __init__(self, edit: GraphEditor) -> None:
        self.edit = edit
        self._activations: dict[tuple[object, ir.Value], QuantizedValue] = {}
        self._weights: dict[Hashable, QuantizedValue] = {}

    def activation(self, node: ir.Node, value: ir.Value) -> QuantizedValue:
        """``value`` as uint8 over the range it has at the time, ahead of ``node``."""
        key = (node.graph, value)
        if key not in self._activations:
            outputs = self.edit.insert(node, "DynamicQuantizeLinear", [value], outputs=3)
            self._activations[key] = QuantizedValue(*outputs)
        return self._activations[key]

    def weight(
        self, weight: ir.Value, kind: Hashable, make: Callable[[], Codes], *, needs_zero: bool = True
    ) -> QuantizedValue:
        """``weight`` as ``make`` quantizes it, which is called once for each ``kind``.

        Zero points of 0 are left out, unless the op ``needs_zero``.
        """
        key = (weight, kind, needs_zero)
        if key not in self._weights:
            graph, found = weight.graph, make()
            assert isinstance(graph, ir.Graph)
            parts = {"quantized": found.codes, "scale": found.scale, "zero_point": found.zero}
            if not (needs_zero or found.zero.any()):
                del parts["zero_point"]
            values = [self.edit.weight(f"{weight.name}_{part}", array, graph) for part, array in parts.items()]
            self._weights[key] = QuantizedValue(values[0], values[1], values[2] if len(values) > 2 else None)
        return self._weights[key]


def right_factor(matrix: np.ndarray, scheme: TensorScheme) -> Codes:
    """The weight (inputs, outputs) of a product in 8 bits with one scale, or one an output."""
    if not scheme.pair_safe:
        return quantized_codes(matrix, scheme, axis=1)
    rows = matrix.T
    found = quantize_pairs(rows, scheme, in_pairs(rows.shape[1]))
    codes, scale = np.ascontiguousarray(np.asarray(found.codes).T), np.asarray(found.scale, dtype=np.float32)
    return Codes(codes, scale, np.zeros(scale.shape, codes.dtype))


def quantized_codes(array: np.ndarray, scheme: TensorScheme, axis: int, *, one_zero: bool = False) -> Codes:
    """``array`` in 8 bits with one scale, or one for each place along ``axis``.

    ``one_zero`` is for kernels that take a single zero point.
    """
    if isinstance(scheme.granularity, PerChannel):
        scheme = replace(scheme, granularity=PerChannel(axis % array.ndim))
    found = quantize(array, scheme)
    codes, scale = np.asarray(found.codes), np.asarray(found.scale, dtype=np.float32)
    zero = np.zeros(scale.shape, codes.dtype) if found.zero_point is None else np.asarray(found.zero_point)
    if one_zero and zero.ndim:
        if (zero != zero.flat[0]).any():
            raise QuantizationError(
                f"the kernel takes one zero point for all channels, and {scheme.dtype.name} has one for each; use int8 "
                "with the scheme sym, or granularity per_tensor"
            )
        zero = zero.flat[0]
    return Codes(codes, scale, np.asarray(zero, dtype=codes.dtype))


def checked_scheme(scheme: OpScheme) -> TensorScheme:
    """The scheme of the weight, of an op that the runtime can compute with activations quantized as it goes."""
    weight, activation = scheme.weight, scheme.activation
    if weight is None or weight.dtype.name not in ("int8", "uint8"):
        raise ConfigError(f"a weight is int8 or uint8 here, not {weight.dtype.name if weight else 'left in float'}")
    if not isinstance(weight.granularity, PerTensor | PerChannel):
        raise ConfigError(f"a weight has one scale, or one a channel, and not {weight.granularity.name} ones")
    if activation is not None and (activation.dtype.name != "uint8" or activation.symmetric):
        raise ConfigError(
            f"activations quantized at run time are uint8 asym, not {activation.dtype.name} "
            f"{'sym' if activation.symmetric else 'asym'}"
        )
    return weight
