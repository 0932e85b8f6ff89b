"""The layout of quantizers in a graph: where they stand, and which tensors share a range.

An integer op reads and gives integers: its inputs and its output (that of the activation fused into it) are quantized. What
only moves values (pooling by maximum, reshaping, padding) gives them on in the scale they have, and so do average pooling
and concatenation where they run in integers, as LiteRT's kernels want it: such tensors share one range. A tensor has one
quantizer of 8 bits, and one of 16: that of the op that makes it, or of the first that reads it, and others take it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from neural_compressor.schemes import Plan, TensorScheme
from neural_compressor.tensorflow.float_graph import Call


class Sequence(Protocol):
    """A graph, as far as quantizers are concerned."""

    def sequence(self) -> list[Call]:
        """Every call of every op, in the order they run."""

    def tensor_names(self) -> dict[int, str]:
        """What the tensors are called."""


@dataclass(frozen=True)
class Site:
    """A quantizer: the range of the tensors called ``group``, and the scheme of the values."""

    group: str
    scheme: TensorScheme

    @property
    def name(self) -> str:
        """A name that no other quantizer of the graph has."""
        return f"{self.group}.{_words(self.scheme)}"


def _words(scheme: TensorScheme) -> str:
    return f"{scheme.dtype.name}.{'sym' if scheme.symmetric else 'asym'}.{scheme.algorithm}"


@dataclass
class Layout:
    """``before`` has the site of each input of a call, by the place of the call and the tensor; ``behind`` that of outputs.

    ``members`` has for each tensor the sites of the range it shares, ``watched`` those whose range it takes part in.
    ``shared`` says of ops which of their tensors are quantized as another op has it.
    """

    before: dict[tuple[int, int], Site] = field(default_factory=dict)
    behind: dict[int, Site] = field(default_factory=dict)
    members: dict[int, list[Site]] = field(default_factory=dict)
    watched: dict[int, list[Site]] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)

    @property
    def sites(self) -> list[Site]:
        """Every quantizer with a calibrated range."""
        return list(dict.fromkeys([*self.before.values(), *self.behind.values()]))

    def narrowest(self, site: Site) -> Site:
        """Of the quantizers of the tensors of ``site`` the one of fewest bits.

        In a file a tensor has one range. Where it is read in 8 and in 16 bits, that of 8 serves both.
        """
        return min((each for each in self.sites if each.group == site.group), key=lambda each: each.scheme.dtype.bits)


def integer_outputs(scheme: TensorScheme | None) -> bool:
    """Whether an op with such activations gives integers on, as kernels do that there are."""
    return scheme is not None and scheme.dtype.is_integer and scheme.dtype.bits in (8, 16)


def lay_out(graph: Sequence, plan: Plan) -> Layout:
    """The quantizers that the static ops of ``plan`` need."""
    layout, calls = Layout(), graph.sequence()
    groups = _Groups(graph.tensor_names())
    static = {name: each.activation for (name, _), each in plan.items() if each.mode == "static" and each.activation}
    for call in calls:
        if call.moves or (call.one_scale and call.name in static):
            for given in call.inputs:
                for made in call.outputs:
                    groups.join(given, made)
    firsts: dict[tuple[str, int], tuple[str, TensorScheme]] = {}

    def site(tensor: int, name: str) -> Site:
        group, scheme = groups.name(tensor), static[name]
        if not integer_outputs(scheme):
            return Site(group, scheme)
        first, chosen = firsts.setdefault((group, scheme.dtype.bits), (name, scheme))
        if chosen != scheme:
            text = f"{group} is quantized once, as {first!r} has it ({_words(chosen)})"
            layout.shared[name] = "; ".join(dict.fromkeys([*filter(None, [layout.shared.get(name)]), text]))
        return Site(group, chosen)

    for call in calls:
        if call.name not in static:
            continue
        for tensor in call.inputs:
            layout.before[call.place, tensor] = site(tensor, call.name)
        if integer_outputs(static[call.name]):
            layout.behind[call.end] = site(call.end, call.name)
    wanted: dict[str, list[Site]] = {}
    for each in layout.sites:
        wanted.setdefault(each.group, []).append(each)
    given_on = {tensor for call in calls if call.moves or call.one_scale for tensor in call.outputs}
    for tensor in groups.tensors:
        if groups.name(tensor) in wanted:
            layout.members[tensor] = wanted[groups.name(tensor)]
            if not (tensor in given_on and groups.is_joined(tensor)):
                layout.watched[tensor] = layout.members[tensor]
    return layout


class _Groups:
    """Tensors that share a range, by the name of the first of them."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._parent: dict[int, int] = {}

    @property
    def tensors(self) -> list[int]:
        return list(self._names)

    def _root(self, tensor: int) -> int:
        while tensor in self._parent:
            tensor = self._parent[tensor]
        return tensor

    def join(self, one: int, other: int) -> None:
        first, second = self._root(one), self._root(other)
        if first != second:
            self._parent[second] = first

    def is_joined(self, tensor: int) -> bool:
        return tensor in self._parent

    def name(self, tensor: int) -> str:
        return self._names[self._root(tensor)]
