"""Ops of an exported graph that Inductor computes faster in float on this machine, by a race on the shapes of the export.

Not whole compilations are raced, but the kernels that Inductor calls: oneDNN's int8 products with what they need around
them, and its float products on weights packed beforehand. Results are kept for the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from neural_compressor.schemes import OpKey, OpScheme
from neural_compressor.torch.modules.kernels.onednn import ConvGeometry, conv, pack_conv
from neural_compressor.torch.modules.kernels.quint8 import codes_of, to_quint8
from neural_compressor.torch.modules.kernels.race import Work, current_race
from neural_compressor.torch.pt2e.ops import find_graph_ops, is_mean
from neural_compressor.torch.structure.int8_race import few_samples, lost
from neural_compressor.torch.structure.integer_path import hands_on, sources

logger = logging.getLogger("neural_compressor")

_aten = torch.ops.aten
_QPARAMS = (1 / 255, 0)


@dataclass(frozen=True)
class _Place:
    """A product and where it stands: its geometry, whether integers come in, whether they are wanted behind it."""

    mode: str
    x: tuple[int, ...]
    weight: tuple[int, ...]
    geometry: ConvGeometry | None
    fed: bool
    emits: bool

    def __str__(self) -> str:
        around = f"fed {self.fed}, emits {self.emits}, {torch.get_num_threads()} threads"
        return f"{self.weight} {self.geometry} on {self.x}, {around}"


def slower_in_graph(model: GraphModule, plan: Mapping[OpKey, OpScheme]) -> dict[OpKey, str]:
    """The ops of ``plan`` that float computes faster, with both times; none where nothing is raced.

    None either where that would be all of them: a model that was to be quantized and stays as it is helps nobody.
    """
    race = current_race()
    if race is None:
        return {}
    nodes = {key: found for key, found in find_graph_ops(model)[0].items() if key in plan}
    sources = _sources(nodes)
    slower, tried = dict[OpKey, str](), 0
    for key, found in nodes.items():
        place = _place(found[0], plan[key].mode, key in sources, key in sources.values())
        if place is None:
            continue
        tried += 1
        makers = _linear(place) if place.geometry is None else _conv(place, place.geometry)
        if reason := lost(race, f"graph {place.mode}", makers, str(place), place.x):
            slower[key] = reason
    if slower and len(slower) == tried:
        logger.info("int8 makes none of the %d ops faster here; they are quantized for their size", tried)
        return {}
    return slower


def _linear(place: _Place) -> dict[str, Callable[[], Work]]:
    rows, columns = place.weight
    x = torch.linspace(0, 1, torch.Size(place.x).numel()).reshape(-1, columns)
    bias = torch.zeros(rows)

    def floats() -> Work:
        weight = torch.linspace(-1, 1, rows * columns).reshape(rows, columns)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
        return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")

    def integers() -> Work:
        packed = torch.ops.onednn.qlinear_prepack(torch.zeros(rows, columns, dtype=torch.int8), list(x.shape))
        more = (packed, torch.ones(rows), torch.zeros(rows, dtype=torch.int32), bias)
        output = (*_QPARAMS, torch.uint8) if place.emits else (1.0, 0, torch.float32)
        codes = _codes(x)

        def work() -> Tensor:
            given = codes if place.fed else _codes(x, place.mode)
            y: Tensor = torch.ops.onednn.qlinear_pointwise(given, *_QPARAMS, *more, *output, "none", [], "")
            return y

        return work

    return {"float": floats, "int8": integers}


def _conv(place: _Place, geometry: ConvGeometry) -> dict[str, Callable[[], Work]]:
    layout = torch.channels_last if len(place.x) == 4 else torch.contiguous_format
    x = torch.linspace(0, 1, torch.Size(place.x).numel()).reshape(place.x).contiguous(memory_format=layout)
    bias = torch.zeros(place.weight[0])
    stride, padding, dilation, groups = geometry.arguments

    def floats() -> Work:
        weight = torch.linspace(-1, 1, torch.Size(place.weight).numel()).reshape(place.weight)
        if len(place.x) != 4:
            return lambda: _aten.convolution(x, weight, bias, stride, padding, dilation, False, [0], groups)
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, list(x.shape))
        how: tuple[Any, ...] = (padding, stride, dilation, groups, "none", [], "")
        return lambda: torch.ops.mkldnn._convolution_pointwise(x, packed, bias, *how)

    def integers() -> Work:
        packed = pack_conv(
            torch.zeros(place.weight, dtype=torch.int8), torch.ones(len(bias)), bias, geometry, _QPARAMS, place.x
        )
        output = _QPARAMS if place.emits else None
        codes = _codes(x)
        return lambda: conv(codes if place.fed else _codes(x), _QPARAMS, packed, relu=False, output=output)

    return {"float": floats, "int8": integers}


def _codes(x: Tensor, mode: str = "static") -> Tensor:
    """Quantized in one pass over ``x``, in another one over its range where that is taken from each batch."""
    if mode == "dynamic":
        torch.aminmax(x)
    return codes_of(to_quint8(x, *_QPARAMS))


def _place(node: Node, mode: str, fed: bool, emits: bool) -> _Place | None:
    """None where the shapes are not known, or where other kernels are called: those of 16 bits."""
    x, weight = (_shape(argument) for argument in node.args[:2])
    if x is None or weight is None:
        return None
    geometry = None
    if len(weight) > 2:
        given: list[Any] = [*node.args[3:], *([None] * 4)]
        dims = len(weight) - 2
        stride, padding, dilation = (
            tuple(int(value) for value in each) if each else (usual,) * dims
            for each, usual in zip(given, (1, 0, 1), strict=False)
        )
        if len(x) != dims + 2:
            return None
        geometry = ConvGeometry(stride, padding, dilation, given[3] or 1)
    static = mode == "static"
    return _Place(mode, few_samples(x), weight, geometry, static and fed, static and emits)


def _shape(argument: Any) -> tuple[int, ...] | None:
    """The sizes at the export, of those that vary too."""
    value = argument.meta.get("val") if isinstance(argument, Node) else None
    if not isinstance(value, Tensor) or value.dtype != torch.float32 or value.device.type != "cpu":
        return None
    sizes = [size if isinstance(size, int) else size.node.hint for size in value.shape]
    return tuple(sizes) if all(isinstance(size, int) and size > 0 for size in sizes) else None


def _sources(nodes: Mapping[OpKey, list[Node]]) -> dict[OpKey, OpKey]:
    """``{op: the op whose integers it can read}`` of the first calls of ops."""
    owner = {node: key for key, found in nodes.items() for node in found}

    def through(node: Node) -> Node | None:
        name = str(node.target).split(".")[1] if isinstance(node.target, torch._ops.OpOverload) else ""
        before = node.args[0] if hands_on(name, compiled=True) and not is_mean(node) else None
        return before if isinstance(before, Node) else None

    reads = {key: own[0].args[0] for key, own in nodes.items()}
    return sources({key: node for key, node in reads.items() if isinstance(node, Node)}, owner.get, through)
