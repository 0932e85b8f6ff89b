"""The passes there are, with their options, as plans name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neural_compressor.adaptor.plan_check import read_pass
from neural_compressor.algorithms import smooth_scale
from neural_compressor.algorithms.equalization import equalizing_scale
from neural_compressor.algorithms.smoothquant import check_alpha
from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry, close_matches
from neural_compressor.schemes import PerChannel, TensorScheme, fake_quantize
from neural_compressor.tensorflow.float_graph import FloatGraph
from neural_compressor.tensorflow.statistics import ChannelReach

PASSES: Registry[type[Any]] = Registry("pass over Keras models", entry_point_group="neural_compressor.keras_passes")
"""The options of each pass, a frozen dataclass. One with ``change(graph, seen) -> graph`` changes the float graph, a copy of
its own, before anything is quantized; ``watched(graph)`` says what it must see of which tensors."""


@PASSES.register("smooth")
@dataclass(frozen=True)
class Smooth:
    """Outliers of activations moved into the weights that read them: ``act^alpha / weight^(1 - alpha)``.

    With ``folding`` the op before takes the scales up where that is exact; elsewhere a multiplication stays before the
    op. ``op_types`` are by default the matrix products and convolutions. ``scales_per_op`` gives ops that share an input
    scales of their own.
    """

    alpha: Any = 0.5
    folding: bool = True
    op_types: tuple[str, ...] = ()
    scales_per_op: bool = True

    def check(self, graph: FloatGraph) -> None:
        """Refuse options that make no sense, or none in this graph."""
        check_alpha(self.alpha)
        for name in self.op_types:
            if name not in graph.scalable:
                raise ConfigError(f"the pass smooth: op_types has {name!r}; {close_matches(str(name), graph.scalable)}")

    def watched(self, graph: FloatGraph) -> dict[int, Any]:
        """The inputs of the ops."""
        return {tensor: ChannelReach() for tensor in self._meant(graph)}

    def change(self, graph: FloatGraph, seen: Mapping[int, Any]) -> FloatGraph:
        """The smoothed graph."""
        alphas = check_alpha(self.alpha)
        scales: dict[str, Any] = {}
        for tensor, ops in self._meant(graph).items():
            reach = seen[tensor].reach
            together = None if self.scales_per_op else np.max([graph.input_reach(op) for op in ops.values()], axis=0)
            for name, op in ops.items():
                weight = graph.input_reach(op) if together is None else together
                scale = np.asarray(_best(graph, op, reach, weight, alphas))
                graph.scale_inputs(op, scale)
                maker = graph.maker_of(tensor) if self.folding and len(ops) == 1 else None
                if maker is not None:
                    graph.scale_outputs(maker, 1 / scale)
                else:
                    scales[name] = 1 / scale
        return graph.with_scales(scales)

    def _meant(self, graph: FloatGraph) -> dict[int, dict[str, Any]]:
        """The ops that are smoothed, by the tensor that they read."""
        found: dict[int, dict[str, Any]] = {}
        for (name, kind), op in graph.ops().items():
            if kind in (self.op_types or graph.smoothed) and graph.takes_scales(op):
                found.setdefault(graph.calls_of(op)[0].inputs[0], {})[name] = op
        return found


@PASSES.register("equalize")
@dataclass(frozen=True)
class Equalize:
    """Weights of ops in a row made equally large in each channel (Nagel et al. 2019)."""

    def watched(self, graph: FloatGraph) -> dict[int, Any]:
        """Nothing: weights alone decide."""
        return {}

    def change(self, graph: FloatGraph, seen: Mapping[int, Any]) -> FloatGraph:
        """The equalized graph."""
        for op in graph.ops().values():
            maker = graph.maker_of(graph.calls_of(op)[0].inputs[0]) if graph.takes_scales(op) else None
            given = None if maker is None else graph.output_reach(maker)
            read = graph.input_reach(op) if given is not None else ()
            if given is None or len(given) != len(read):
                continue
            scale = np.asarray(equalizing_scale(given, read))
            graph.scale_outputs(maker, 1 / scale)
            graph.scale_inputs(op, scale)
        return graph


@PASSES.register("correct_biases")
@dataclass(frozen=True)
class CorrectBiases:
    """The mean error that rounded weights make on calibration data taken out of each output through the bias.

    Where it is ``required``, data to see has to be given.
    """

    required: bool = False


def read_passes(steps: Any, graph: FloatGraph) -> list[Any]:
    """The passes of a plan with their options read; unknown passes and options are errors that name them."""
    found = []
    for step in steps:
        found.append(read_pass(step, PASSES, graph.kind))
        if hasattr(found[-1], "check"):
            found[-1].check(graph)
    return found


def _best(graph: FloatGraph, op: Any, reach: Any, weight: Any, alphas: tuple[float, ...]) -> Any:
    """The scales of the alpha that makes the rounding of inputs and weights least, in the mean over both."""
    if len(alphas) == 1:
        return smooth_scale(reach, weight, alphas[0])
    matrix = next(iter(graph.weights(op).values())).matrix()
    scheme = TensorScheme.from_dict({"dtype": "int8", "granularity": "per_channel"})
    assert isinstance(scheme.granularity, PerChannel)

    def spread(channels: Any) -> Any:
        """By element of the matrix: columns go over places, then over channels; of a depthwise convolution rows do."""
        if graph.channels_mixed(op) == 1:
            return np.repeat(channels, matrix.shape[0] // len(channels))[:, None]
        return np.tile(channels, matrix.shape[1] // len(channels))

    def loss(alpha: float) -> float:
        scale = np.asarray(smooth_scale(reach, weight, alpha))
        scaled = matrix * spread(scale)
        rounding = np.asarray(fake_quantize(scaled, scheme)) - scaled
        smoothed = spread(np.asarray(reach) / scale)
        # Errors of weights meet inputs as large as they are; errors of inputs, a step of the largest, meet the weights.
        return float(np.sum((rounding * smoothed) ** 2) / 3 + np.sum(scaled**2) * (smoothed.max() / 127) ** 2 / 12)

    return smooth_scale(reach, weight, min(alphas, key=loss))
