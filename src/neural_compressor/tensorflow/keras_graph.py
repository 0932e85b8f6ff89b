"""A float Keras model as the executor sees it: traced flat and in inference form, observed, scaled, and quantized.

The result is a Keras model with quantizers in place and weights rounded: simulated, as it computes in float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpScheme, QParams
from neural_compressor.tensorflow.float_graph import Array, Calibrate, FloatGraph, QuantizedGraph, Watchers
from neural_compressor.tensorflow.layers import FakeQuant, QuantizeDequantize
from neural_compressor.tensorflow.layout import Site, lay_out
from neural_compressor.tensorflow.statistics import layer_vectors
from neural_compressor.tensorflow.structure import scales
from neural_compressor.tensorflow.structure.ops import (
    CONVOLUTIONS,
    DEPTHWISE,
    Graph,
    axes_of_range,
    bias_of,
    type_of,
    weights_of,
)
from neural_compressor.tensorflow.structure.simplify import copy_of, simplify
from neural_compressor.tensorflow.structure.trace import free_name, rebuild

_CORRECTED = ("Dense", *CONVOLUTIONS, *DEPTHWISE)


class KerasGraph(Graph, FloatGraph):
    """The graph of a functional Keras model in inference form."""

    kind = "Keras models"
    scalable = scales.SCALABLE
    smoothed = ("Dense", "Conv1D", "Conv2D")

    @classmethod
    def of(cls, model: Any) -> KerasGraph:
        """The graph of any Keras model that can be traced."""
        return cls(simplify(model).model)

    def refusal(self, op: Any, scheme: OpScheme) -> str:
        """Any registered type is simulated."""
        return ""

    def weights(self, op: Any) -> Mapping[str, Any]:
        """Those of a layer."""
        return weights_of(op)

    def bias(self, op: Any) -> Array | None:
        """That of a layer."""
        bias = bias_of(op)
        return None if bias is None else np.asarray(bias.numpy())

    def channels_mixed(self, op: Any) -> int:
        """Channels of each group of a convolution."""
        if type_of(op) not in _CORRECTED or getattr(op, "data_format", "channels_last") != "channels_last":
            return 0
        return 1 if type_of(op) in DEPTHWISE else int(op.kernel.shape[-2])

    def vectors(self, op: Any) -> Callable[[Array], Array] | str:
        """Patches of images, for a convolution."""
        return layer_vectors(op)

    def copy(self) -> KerasGraph:
        """The graph with layers of its own."""
        copies: dict[int, Any] = {}
        return KerasGraph(
            rebuild(
                self.model,
                lambda node, args, kwargs: copies.setdefault(id(node.operation), copy_of(node.operation))(
                    *args, **kwargs
                ),
            )
        )

    def watch(self, tensors: Iterable[int]) -> Callable[[Watchers, Calibrate], None]:
        """A model of the same layers with a FakeQuant on each tensor, made once for several runs."""
        names, wanted = self.tensor_names(), set(tensors)
        marks: dict[int, FakeQuant] = {}

        def mark(old: Any, new: Any) -> Any:
            if id(old) not in wanted:
                return new
            marks[id(old)] = FakeQuant(name=f"{names[id(old)]}.fake_quant")
            return marks[id(old)](new)

        model = rebuild(self.model, lambda node, args, kwargs: node.operation(*args, **kwargs), mark)

        def run(watchers: Watchers, calibrate: Calibrate) -> None:
            for tensor, layer in marks.items():
                layer.show(watchers.get(tensor, ()))
            try:
                calibrate(model)
            finally:
                for layer in marks.values():
                    layer.show(())

        return run

    def takes_scales(self, op: Any) -> bool:
        """A layer that is called once, not in groups, and with channels last."""
        plain = getattr(op, "groups", 1) == 1 and getattr(op, "data_format", "channels_last") == "channels_last"
        return type_of(op) in self.scalable and len(self.calls(op)) == 1 and plain

    def input_reach(self, op: Any) -> Array:
        """Of the kernel of a layer."""
        return scales.input_reach(op)

    def output_reach(self, op: Any) -> Array | None:
        """Of the kernel of a layer."""
        return None if type_of(op) == "LayerNormalization" else scales.output_reach(op)

    def scale_inputs(self, op: Any, factors: Array) -> None:
        """In the kernel of a layer."""
        scales.scale_inputs(op, factors)

    def scale_outputs(self, op: Any, factors: Array) -> None:
        """In the kernel and bias of a layer, or in what a normalisation multiplies with and adds."""
        scales.scale_outputs(op, factors)

    def maker_of(self, tensor: int) -> Any:
        """A layer."""
        return scales.maker_of(self, next(t for node in self.nodes for t in node.input_tensors if id(t) == tensor))

    def with_scales(self, factors: Mapping[str, Array]) -> KerasGraph:
        """With a layer before each of these that multiplies."""
        return KerasGraph(scales.with_scales(self, factors).model) if factors else self

    def finish(self, parts: QuantizedGraph) -> Any:
        """The model with quantizers in place and weights rounded."""
        return _Builder(self, parts).model()

    def arrays(self, name: str) -> dict[str, Array]:
        """The weights of a layer."""
        op = next(node.operation for node in self.nodes if node.operation.name == name)
        variables = op.weights if isinstance(op, keras.Layer) else ()
        return {variable.name: np.asarray(variable.numpy()) for variable in variables}

    def with_arrays(self, arrays: Mapping[str, Array]) -> Any:
        """A model in inference form."""
        model = self.copy().model
        variables = {f"{layer.name}.{variable.name}": variable for layer in model.layers for variable in layer.weights}
        for name, array in arrays.items():
            if name not in variables:
                raise ConfigError(f"the model has no tensor {name!r}; {close_matches(str(name), variables)}")
            if array.shape != tuple(variables[name].shape):
                raise ConfigError(f"tensor {name!r} has the shape {tuple(variables[name].shape)}, not {array.shape}")
            variables[name].assign(array)
        return model


class _Builder:
    """Copies a graph with quantizers in place."""

    def __init__(self, graph: KerasGraph, parts: QuantizedGraph) -> None:
        self.graph, self.parts, self.layout = graph, parts, lay_out(graph, parts.plan)
        self.schemes: dict[str, OpScheme] = {name: scheme for (name, _), scheme in parts.plan.items()}
        self.copies: dict[int, Any] = {}
        self.quantizers: dict[tuple[Any, ...], Any] = {}
        self.already: dict[int, Site] = {}

    def model(self) -> Any:
        """The quantized model."""
        model = rebuild(self.graph.model, self._call, self._mark)
        model.quantization = self.parts
        return model

    def _call(self, node: Any, args: Any, kwargs: Any) -> Any:
        op = node.operation
        if id(op) not in self.copies:
            self.copies[id(op)] = self._rounded(op)
        scheme = self.schemes.get(op.name)
        if scheme is not None and scheme.activation is not None and not scheme.activation.dtype.is_float32:
            swapped = {}
            new_tensors = [t for t in keras.tree.flatten((args, kwargs)) if isinstance(t, keras.KerasTensor)]
            for old, new in zip(node.input_tensors, new_tensors, strict=True):
                if not str(old.dtype).startswith("float"):
                    continue
                site = self.layout.before.get((id(node), id(old)))
                swapped[id(new)] = self._quantized(new, site) if site else self._momentary(new, scheme.activation, op)
            args, kwargs = keras.tree.map_structure(lambda t: swapped.get(id(t), t), (args, kwargs))
        return self.copies[id(op)](*args, **kwargs)

    def _rounded(self, op: Any) -> Any:
        new = copy_of(op)
        for tensor, codes in self.parts.codes.get(op.name, {}).items():
            weights_of(new)[tensor].assign(np.asarray(codes.dequantize()))
        if op.name in self.parts.biases:
            bias_of(new).assign(self.parts.biases[op.name])
        return new

    def _mark(self, old: Any, new: Any) -> Any:
        site = self.layout.behind.get(id(old))
        if site is None:
            return new
        out = self._quantized(new, site)
        self.already[id(out)] = site
        return out

    def _quantized(self, new: Any, site: Site) -> Any:
        if self.already.get(id(new)) == site:
            return new
        key = (id(new), site)
        if key not in self.quantizers:
            name = self._free(f"{site.name}.qdq")
            self.quantizers[key] = QuantizeDequantize(site.scheme, self.parts.ranges[site.name], name=name)(new)
        return self.quantizers[key]

    def _momentary(self, new: Any, scheme: Any, op: Any) -> Any:
        """A quantizer without a calibrated range: ranges of what comes, or a 16-bit float type."""
        axes = () if scheme.is_float else axes_of_range(op, len(new.shape))
        key = (id(new), scheme, axes)
        if key not in self.quantizers:
            qparams = QParams(None) if scheme.is_float else None
            name = self._free(f"{op.name}.{scheme.dtype.name}.qdq")
            self.quantizers[key] = QuantizeDequantize(scheme, qparams, axes, name=name)(new)
        return self.quantizers[key]

    def _free(self, name: str) -> str:
        """``name``, numbered where another quantizer has it."""
        taken = {tensor._keras_history.operation.name for tensor in self.quantizers.values()}
        return free_name(name, taken)
