"""The passes there are, with their options, as plans name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from neural_compressor.algorithms import smooth_scale
from neural_compressor.algorithms.equalization import equalizing_scale
from neural_compressor.algorithms.smoothquant import check_alpha
from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry, close_matches
from neural_compressor.schemes import Pass, PerChannel, TensorScheme, fake_quantize
from neural_compressor.tensorflow.passes.scales import (
    SCALABLE,
    channels_of,
    input_reach,
    maker_of,
    output_reach,
    scale_inputs,
    scale_outputs,
    with_scales,
)
from neural_compressor.tensorflow.statistics import ChannelReach
from neural_compressor.tensorflow.structure.ops import Graph, type_of, weights_of

PASSES: Registry[type[Any]] = Registry("pass over Keras models", entry_point_group="neural_compressor.keras_passes")
"""The options of each pass, a frozen dataclass. One with ``change(graph, seen) -> graph`` changes the float graph, a copy of
its own, before anything is quantized; ``watched(graph)`` says what it must see of which tensors."""


@PASSES.register("smooth")
@dataclass(frozen=True)
class Smooth:
    """Outliers of activations moved into the weights that read them: ``act^alpha / weight^(1 - alpha)``.

    With ``folding`` the layer before takes the scales up where that is exact; elsewhere a multiplication stays before the
    op. ``scales_per_op`` gives ops that share an input scales of their own.
    """

    alpha: Any = 0.5
    folding: bool = True
    op_types: tuple[str, ...] = ("Dense", "Conv1D", "Conv2D")
    scales_per_op: bool = True

    def watched(self, graph: Graph) -> dict[int, Any]:
        """The inputs of the ops."""
        nodes = (node for node in graph.nodes if self._is_meant(node, graph))
        return {id(node.input_tensors[0]): ChannelReach() for node in nodes}

    def change(self, graph: Graph, seen: Mapping[int, Any]) -> Graph:
        """The smoothed graph."""
        alphas = check_alpha(self.alpha)
        scales: dict[str, Any] = {}
        shared: dict[int, list[Any]] = {}
        for node in graph.nodes:
            if self._is_meant(node, graph):
                shared.setdefault(id(node.input_tensors[0]), []).append(node)
        for place, nodes in shared.items():
            reach = seen[place].reach
            together = None if self.scales_per_op else np.max([input_reach(n.operation) for n in nodes], axis=0)
            for node in nodes:
                weight = input_reach(node.operation) if together is None else together
                scale = np.asarray(_best(node.operation, reach, weight, alphas))
                scale_inputs(node.operation, scale)
                maker = maker_of(graph, node.input_tensors[0]) if self.folding and len(nodes) == 1 else None
                if maker is not None:
                    scale_outputs(maker, 1 / scale)
                else:
                    scales[node.operation.name] = 1 / scale
        return with_scales(graph, scales)

    def _is_meant(self, node: Any, graph: Graph) -> bool:
        kind = type_of(node.operation)
        alone = len(graph.calls(node.operation)) == 1 and getattr(node.operation, "groups", 1) == 1
        return kind in self.op_types and kind in SCALABLE and alone


@PASSES.register("equalize")
@dataclass(frozen=True)
class Equalize:
    """Weights of layers in a row made equally large in each channel (Nagel et al. 2019)."""

    def watched(self, graph: Graph) -> dict[int, Any]:
        """Nothing: weights alone decide."""
        return {}

    def change(self, graph: Graph, seen: Mapping[int, Any]) -> Graph:
        """The equalized graph."""
        for node in graph.nodes:
            layer = node.operation
            if type_of(layer) not in SCALABLE or len(graph.calls(layer)) != 1 or getattr(layer, "groups", 1) != 1:
                continue
            maker = maker_of(graph, node.input_tensors[0])
            if (
                maker is None
                or type_of(maker) == "LayerNormalization"
                or len(output_reach(maker)) != channels_of(layer)
            ):
                continue
            scale = np.asarray(equalizing_scale(output_reach(maker), input_reach(layer)))
            scale_outputs(maker, 1 / scale)
            scale_inputs(layer, scale)
        return graph


@PASSES.register("correct_biases")
@dataclass(frozen=True)
class CorrectBiases:
    """The mean error that rounded weights make on calibration data taken out of each output through the bias.

    Where it is ``required``, data to see has to be given.
    """

    required: bool = False


def read_passes(steps: Any) -> list[Any]:
    """The passes of a plan with their options read; unknown passes and options are errors that name them."""
    found = []
    for step in steps:
        if step.name not in PASSES:
            raise ConfigError(f"no pass over Keras models is called {step.name!r}; {close_matches(step.name, PASSES)}")
        kind = PASSES[step.name]
        known = [each.name for each in fields(kind)]
        for name in step.options:
            if name not in known:
                raise ConfigError(f"the pass {step.name} has no {name!r}; {close_matches(name, known)}")
        found.append(kind(**step.options))
    for each in found:
        if isinstance(each, Smooth):
            check_alpha(each.alpha)
            for name in each.op_types:
                if name not in SCALABLE:
                    raise ConfigError(f"the pass smooth: op_types has {name!r}; {close_matches(str(name), SCALABLE)}")
    return found


DEFAULT_PASSES = (Pass("correct_biases"),)
"""The passes of a plan where nothing is asked for."""


def _best(layer: Any, reach: Any, weight: Any, alphas: tuple[float, ...]) -> Any:
    """The scales of the alpha that makes the rounding of inputs and weights least, in the mean over both."""
    if len(alphas) == 1:
        return smooth_scale(reach, weight, alphas[0])
    matrix = weights_of(layer)["kernel"].matrix()
    scheme = TensorScheme.from_dict({"dtype": "int8", "granularity": "per_channel"})
    assert isinstance(scheme.granularity, PerChannel)

    def loss(alpha: float) -> float:
        scale = np.asarray(smooth_scale(reach, weight, alpha))
        repeated = np.tile(scale, matrix.shape[1] // len(scale))
        scaled = matrix * repeated
        rounding = np.asarray(fake_quantize(scaled, scheme)) - scaled
        smoothed = np.tile(np.asarray(reach) / scale, matrix.shape[1] // len(scale))
        # Errors of weights meet inputs as large as they are; errors of inputs, a step of the largest, meet the weights.
        return float(np.sum((rounding * smoothed) ** 2) / 3 + np.sum(scaled**2) * (smoothed.max() / 127) ** 2 / 12)

    return smooth_scale(reach, weight, min(alphas, key=loss))
