"""Activations quantized while the model runs, and weights quantized beforehand, each only once."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import onnx_ir as ir

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.editor import GraphEditor
from neural_compressor.onnx.graph.integer_tensors import IntegerArray, IntegerTensor
from neural_compressor.schemes import (
    OpScheme,
    PerChannel,
    PerTensor,
    TensorScheme,
)


class DynamicTensors:
    """What has been quantized in a model so far: nodes that read the same value or weight share it."""

    def __init__(self, edit: GraphEditor) -> None:
        self.edit = edit
        self._activations: dict[tuple[object, ir.Value], IntegerTensor] = {}
        self._weights: dict[Hashable, IntegerTensor] = {}

    def activation(self, node: ir.Node, value: ir.Value) -> IntegerTensor:
        """``value`` as uint8 over the range it has at the time, ahead of ``node``."""
        key = (node.graph, value)
        if key not in self._activations:
            outputs = self.edit.insert(node, "DynamicQuantizeLinear", [value], outputs=3)
            self._activations[key] = IntegerTensor(*outputs)
        return self._activations[key]

    def weight(
        self, weight: ir.Value, kind: Hashable, make: Callable[[], IntegerArray], *, needs_zero: bool = True
    ) -> IntegerTensor:
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
            self._weights[key] = IntegerTensor(values[0], values[1], values[2] if len(values) > 2 else None)
        return self._weights[key]


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
