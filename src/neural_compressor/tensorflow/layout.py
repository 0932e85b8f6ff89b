"""Where quantizers stand in a graph, and which tensors share a range.

An integer op reads and gives integers: its inputs and its output (that of the activation fused into it) are quantized. What
only moves values (pooling by maximum, reshaping, padding) gives them on in the scale they have, and so do average pooling
and concatenation where they run in integers, as LiteRT's kernels want it: such tensors share one range.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neural_compressor.schemes import Plan, TensorScheme
from neural_compressor.tensorflow.structure.ops import AVERAGE_POOLS, MOVING, Graph, type_of

_ONE_SCALE = ("Concatenate", *AVERAGE_POOLS)


@dataclass(frozen=True)
class Site:
    """A quantizer: the range of the tensors called ``group``, and the scheme of the values."""

    group: str
    scheme: TensorScheme

    @property
    def name(self) -> str:
        """A name that no other quantizer of the graph has."""
        sign = "sym" if self.scheme.symmetric else "asym"
        return f"{self.group}.{self.scheme.dtype.name}.{sign}.{self.scheme.algorithm}"


@dataclass
class Layout:
    """``before`` has the site of each input of a node, by identity of the node and tensor; ``behind`` that of outputs.

    ``watched`` has for each tensor (by identity) the sites whose range it takes part in.
    """

    before: dict[tuple[int, int], Site] = field(default_factory=dict)
    behind: dict[int, Site] = field(default_factory=dict)
    watched: dict[int, list[Site]] = field(default_factory=dict)

    @property
    def sites(self) -> list[Site]:
        """Every quantizer with a calibrated range."""
        return list(dict.fromkeys([*self.before.values(), *self.behind.values()]))


def integer_outputs(scheme: TensorScheme | None) -> bool:
    """Whether an op with such activations gives integers on, as kernels do that there are."""
    return scheme is not None and scheme.dtype.is_integer and scheme.dtype.bits in (8, 16)


def lay_out(graph: Graph, plan: Plan) -> Layout:
    """The quantizers that the static ops of ``plan`` need."""
    layout, names = Layout(), tensor_names(graph)
    groups = _Groups(names)
    static = {
        name: scheme.activation for (name, _), scheme in plan.items() if scheme.mode == "static" and scheme.activation
    }
    for node in graph.nodes:
        kind = type_of(node.operation)
        if kind in MOVING or (kind in _ONE_SCALE and node.operation.name in static):
            for tensor in _floats(node.input_tensors):
                groups.join(tensor, node.outputs[0])
    for node in graph.nodes:
        scheme = static.get(node.operation.name)
        if scheme is None:
            continue
        for tensor in _floats(node.input_tensors):
            layout.before[id(node), id(tensor)] = Site(groups.name(tensor), scheme)
        if integer_outputs(scheme):
            end = graph.fused_end(node).outputs[0]
            layout.behind[id(end)] = Site(groups.name(end), scheme)
    wanted: dict[str, list[Site]] = {}
    for site in layout.sites:
        wanted.setdefault(site.group, []).append(site)
    produced = {id(node.outputs[0]): node for node in graph.nodes}
    for tensor in _all_tensors(graph):
        node = produced.get(id(tensor))
        moved = node is not None and type_of(node.operation) in (*MOVING, *_ONE_SCALE) and groups.is_joined(tensor)
        if not moved and groups.name(tensor) in wanted:
            layout.watched[id(tensor)] = wanted[groups.name(tensor)]
    return layout


def tensor_names(graph: Graph) -> dict[int, str]:
    """What the tensors of a graph are called, by identity: the operation, and which call and output of it."""
    found = {id(tensor): f"input{number}" for number, tensor in enumerate(graph.model.inputs)}
    for operation in {id(node.operation): node.operation for node in graph.nodes}.values():
        for call, node in enumerate(graph.calls(operation)):
            for output, tensor in enumerate(node.outputs):
                extra = f".{call}.{output}" if call or output else ""
                found[id(tensor)] = f"{operation.name}{extra}"
    return found


def _all_tensors(graph: Graph) -> list[Any]:
    return [*graph.model.inputs, *(tensor for node in graph.nodes for tensor in node.outputs)]


def _floats(tensors: Any) -> list[Any]:
    return [tensor for tensor in tensors if str(tensor.dtype).startswith("float")]


class _Groups:
    """Tensors that share a range, by the name of the first of them."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._parent: dict[int, int] = {}

    def _root(self, key: int) -> int:
        while key in self._parent:
            key = self._parent[key]
        return key

    def join(self, one: Any, other: Any) -> None:
        first, second = self._root(id(one)), self._root(id(other))
        if first != second:
            self._parent[second] = first

    def is_joined(self, tensor: Any) -> bool:
        return id(tensor) in self._parent

    def name(self, tensor: Any) -> str:
        return self._names[self._root(id(tensor))]
