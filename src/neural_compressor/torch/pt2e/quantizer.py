"""A plan as annotations of torchao's x86 quantizer: which edges of a graph are quantized, and with what."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e import ObserverBase
from torchao.quantization.pt2e.quantizer import QuantizationConfig, QuantizationSpec
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    QUANT_ANNOTATION_KEY,
    X86InductorQuantizer,
    int8_in_int8_out_ops,
)

from neural_compressor.schemes import OpKey, OpScheme, TensorScheme
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.torch.pt2e.in_place import shared_memory
from neural_compressor.torch.pt2e.observers import BatchObserver, RangeObserver, WeightObserver
from neural_compressor.torch.pt2e.ops import find_graph_ops, is_mean, kind_of

_aten = torch.ops.aten
_EPS = 2**-12
"""The smallest scale of a range taken from each batch; a batch of zeros has none of its own."""

_SOURCES: dict[Any, Any] = {
    _aten.linear.default: nn.Linear,
    _aten.conv1d.default: nn.Conv1d,
    _aten.conv2d.default: nn.Conv2d,
    **dict.fromkeys((_aten.relu.default, _aten.relu_.default), nn.ReLU),
    **dict.fromkeys((_aten.relu6.default, _aten.relu6_.default), nn.ReLU6),
    **dict.fromkeys((_aten.hardtanh.default, _aten.hardtanh_.default), nn.Hardtanh),
    **dict.fromkeys((_aten.hardswish.default, _aten.hardswish_.default), nn.Hardswish),
    **dict.fromkeys((_aten.silu.default, _aten.silu_.default), nn.SiLU),
    **dict.fromkeys((_aten.leaky_relu.default, _aten.leaky_relu_.default), nn.LeakyReLU),
    **dict.fromkeys((_aten.tanh.default, _aten.tanh_.default), nn.Tanh),
    _aten.gelu.default: nn.GELU,
}
"""What the x86 quantizer calls the operators that it looks for in patterns."""


@dataclass(frozen=True)
class Observers:
    """The classes of what stands on quantized edges: activations with a fixed range, weights, activations of dynamic ops.

    They take a ``scheme``; that of weights an op type as ``kind``, too.
    """

    range: type[ObserverBase] = RangeObserver
    weight: type[ObserverBase] = WeightObserver
    batch: type[ObserverBase] = BatchObserver


class PlanQuantizer(X86InductorQuantizer):  # type: ignore[misc]
    """Annotates the layers of a plan, each with its scheme, and nothing else but what hands int8 from one to the next.

    ``schemes`` are those of the ops, ``observers`` what is put on the edges. Patterns (a convolution with the addition and
    ReLU behind it) are those of the x86 quantizer. It finds them by what nodes came from; here that is said of each node
    anew, so that functions count like modules, a module that is called twice is two layers, and what is in no plan is not
    found.
    """

    def __init__(self, schemes: Mapping[OpKey, OpScheme], observers: Observers) -> None:
        super().__init__()
        self._schemes, self._observers = schemes, observers
        self._layers: dict[Node, OpScheme] = {}
        self._shared: set[Node] = set()
        self._specs: dict[Any, QuantizationSpec] = {}
        self._graph: GraphModule | None = None
        self.nodes: dict[str, OpKey] = {}
        """The op that each annotated node is, by the name of the node."""

    def annotate(self, model: GraphModule) -> GraphModule:
        """Write annotations into the nodes of ``model``, the first that is given: torchao gives the bodies of loops, too."""
        if self._graph not in (None, model):
            return model
        self._graph = model
        found = {node: key for key, nodes in find_graph_ops(model)[0].items() if key in self._schemes for node in nodes}
        self._layers = {node: self._schemes[key] for node, key in found.items()}
        self._shared = shared_memory(model)
        kept = {node: node.meta.get("source_fn_stack") for node in model.graph.nodes}
        for node in model.graph.nodes:
            node.meta["source_fn_stack"] = [(node.name, self._source(node))]
        between = self._between(model)
        for scheme in dict.fromkeys(self._layers.values()):
            for kind in dict.fromkeys(kind_of(node) for node, own in self._layers.items() if own == scheme):
                self._annotate_scheme(model, scheme, kind, between)
        self._annotate_output_for_int8_in_int8_out_pattern_entry(model)
        for node, stack in kept.items():
            node.meta.pop("source_fn_stack")
            if stack is not None:
                node.meta["source_fn_stack"] = stack
        self.nodes = {node.name: key for node, key in found.items() if node.meta.get(QUANT_ANNOTATION_KEY) is not None}
        return model

    def _annotate_scheme(
        self, model: GraphModule, scheme: OpScheme, kind: str, between: Mapping[Node, OpScheme]
    ) -> None:
        config = self._config(scheme, kind)

        def belongs(nodes: list[Node]) -> bool:
            layers = [node for node in nodes if kind_of(node)]
            if layers:
                return all(self._layers.get(n) == scheme and kind_of(n) == kind for n in layers)
            return scheme.mode == "static" and all(between.get(node) == scheme for node in nodes)

        self._annotate_with_config(model, config, belongs)
        for node, own in self._layers.items():
            if own == scheme and kind == "Conv1d" == kind_of(node) and QUANT_ANNOTATION_KEY not in node.meta:
                self._annotate_conv_node_helper(node, True, config)  # alone it is in none of the patterns

    def _source(self, node: Node) -> Any:
        if node.target in (_aten.add.Tensor, _aten.add_.Tensor):
            return operator.add if _adds_alike(node) and node not in self._shared else node.target
        if kind_of(node) and node not in self._layers:
            return node.target
        return _SOURCES.get(node.target, node.target)

    def _between(self, model: GraphModule) -> dict[Node, OpScheme]:
        """Pooling and the like that hand on to static layers alone, with the scheme of the first: int8 can go through."""
        found: dict[Node, OpScheme] = {}
        for node in reversed(model.graph.nodes):
            if node.target not in int8_in_int8_out_ops or not node.users or node in self._shared or is_mean(node):
                continue
            behind = [self._layers.get(user, found.get(user)) for user in node.users]
            if all(scheme is not None and scheme.mode == "static" for scheme in behind) and behind[0] is not None:
                found[node] = behind[0]
        return found

    def _config(self, scheme: OpScheme, kind: str) -> QuantizationConfig:
        assert scheme.weight is not None
        assert scheme.activation is not None
        activation = self._activation(scheme.activation, scheme.mode == "dynamic")
        place = (scheme.weight, kind)
        if place not in self._specs:
            self._specs[place] = _spec(
                scheme.weight,
                dtype=torch.int8,
                quant_min=-128,
                quant_max=127,
                qscheme=torch.per_channel_symmetric,
                ch_axis=0,
                observer_or_fake_quant_ctr=self._observers.weight.with_args(scheme=scheme.weight, kind=kind),
            )
        return QuantizationConfig(activation, activation, self._specs[place], None, False)

    def _activation(self, scheme: TensorScheme, is_dynamic: bool) -> QuantizationSpec:
        place = (scheme, is_dynamic)
        if place not in self._specs:
            found, (low, high) = self._observers, integer_limits(scheme)
            maker = (
                found.batch.with_args(scheme=scheme, eps=_EPS) if is_dynamic else found.range.with_args(scheme=scheme)
            )
            self._specs[place] = _spec(
                scheme,
                dtype=torch.uint8,
                quant_min=0,
                quant_max=high - low,
                qscheme=torch.per_tensor_affine,
                is_dynamic=is_dynamic,
                observer_or_fake_quant_ctr=maker,
            )
        return self._specs[place]


def _spec(scheme: TensorScheme, **fields: Any) -> QuantizationSpec:
    """A spec that says which scheme it stands for.

    Ops that read one tensor share an observer where those attributes of their specs agree that torchao compares. The
    algorithm is none of them, but ``scale``, which specs of fixed parameters have, is: so it tells schemes apart.
    """
    spec = QuantizationSpec(**fields)
    object.__setattr__(spec, "scale", scheme)
    return spec


def _adds_alike(node: Node) -> bool:
    """Whether two float tensors of one shape are added: no number, mask or bias, which no kernel adds to its result."""
    values = [argument.meta.get("val") if isinstance(argument, Node) else None for argument in node.args[:2]]
    if len(values) != 2 or node.kwargs.get("alpha", 1) != 1:
        return False
    shapes = []
    for value in values:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return False
        shapes.append([str(size) for size in value.shape])
    return shapes[0] == shapes[1]
