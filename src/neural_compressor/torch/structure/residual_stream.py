"""Find the values of a model that one orthogonal matrix can turn: its residual stream, and the values of its heads.

Additions, unit norms, reshapes and products from the left give turned results for turned values. Linear layers and
embeddings, which take or give turned values once their weights are turned, are where such a space begins and ends. All of
it is read from runs of the model that were watched; what a module does with its input is tried, not taken from its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from neural_compressor.torch.structure.layer_form import LayerForm
from neural_compressor.torch.structure.module_forms import ModuleForms, tried_modules
from neural_compressor.torch.structure.norm_form import NormForm
from neural_compressor.torch.structure.ops import is_linear
from neural_compressor.torch.structure.replay import Arguments
from neural_compressor.torch.structure.watch import Call, Trace

# Names of functions; in-place and operator forms are the same to them.
_KEEPING = {
    *("contiguous", "clone", "detach", "to", "float", "double", "half", "bfloat16", "type", "dropout", "neg"),
    *("expand", "repeat_interleave", "transpose", "permute", "movedim", "unsqueeze", "squeeze"),
    *("getitem", "narrow", "select", "index_select", "split", "tensor_split", "chunk", "unbind"),
}
"""The last dimension stays what it is, which is checked."""
_RESHAPING = {"view", "reshape", "flatten", "unflatten"}
"""The last dimension may be cut into parts, or put together from them."""
_ADDING = {"add", "radd", "iadd", "sub", "rsub", "isub", "subtract"}
_SCALING = {"mul", "rmul", "imul", "multiply", "div", "divide", "true_divide", "truediv", "itruediv"}
_JOINING = {"cat", "concat", "concatenate", "stack"}
_PRODUCTS = {"matmul", "bmm"}
_ATTENTION = "scaled_dot_product_attention"
_BLIND = {
    *("zeros_like", "ones_like", "empty_like", "full_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"),
}
"""Shape and type of a tensor are all that is read."""

Node = tuple[Any, ...]


@dataclass(frozen=True)
class Space:
    """Values that can be turned by one orthogonal matrix of ``width``, or by it in each run of that length (heads).

    ``writers`` are the layers whose outputs lie in it, ``readers`` those whose inputs do, with the norm whose gain they see
    their input through, if any; ``forms`` say which axes of their parameters that are. ``norms`` are between them.
    ``obstacles`` say why it cannot be turned after all.
    """

    width: int
    writers: tuple[str, ...] = ()
    readers: Mapping[str, str | None] = field(default_factory=dict)
    norms: Mapping[str, NormForm] = field(default_factory=dict)
    forms: Mapping[str, LayerForm] = field(default_factory=dict)
    obstacles: tuple[str, ...] = ()

    @property
    def can_turn(self) -> bool:
        """Whether turning it changes nothing outside."""
        return not self.obstacles and self.width > 1 and bool(self.writers) and bool(self.readers)

    @property
    def keeps_mean(self) -> bool:
        """Whether the mean of its values has to stay where it is, because a norm subtracts it."""
        return any(form.keeps_mean for form in self.norms.values())


def find_spaces(model: nn.Module, calls: Sequence[Arguments]) -> list[Space]:
    """The spaces of ``model`` that layers read and write, as seen on ``calls``: that of the most layers comes first."""
    forms, traces = tried_modules(model, calls)
    finder = _Finder(dict(model.named_modules()), forms)
    for run, trace in enumerate(traces):
        finder.follow(run, trace)
    found = sorted(finder.spaces(), key=lambda space: -len(space.writers) - len(space.readers))
    return [space for space in found if space.writers and space.readers]


class _Finder:
    """Joins values that have to be turned alike, call by call; nodes are values, sides of layers, and norms."""

    def __init__(self, modules: Mapping[str, nn.Module], forms: ModuleForms) -> None:
        self._modules, self._layers, self._forms, self._blind = modules, forms.layers, forms.norms, forms.blind
        self._unused = forms.unused
        self._parents: dict[Node, Node] = {}
        self._widths: dict[Node, int] = {}
        self._obstacles: dict[Node, dict[str, None]] = {}
        self._norms: dict[Node, str | None] = {}
        self._norm_of_reader: dict[str, str | None] = {}

    # -- nodes that belong together ---------------------------------------------------------------------------------

    def _root(self, node: Node) -> Node:
        self._parents.setdefault(node, node)
        while self._parents[node] != node:
            self._parents[node] = self._parents[self._parents[node]]
            node = self._parents[node]
        return node

    def _join(self, *nodes: Node) -> None:
        first = self._root(nodes[0])
        for other in map(self._root, nodes[1:]):
            if other != first:
                self._parents[other] = first
                self._widths[first] = math.gcd(self._widths.get(first, 0), self._widths.pop(other, 0))
                self._obstacles.setdefault(first, {}).update(self._obstacles.pop(other, {}))

    def _bar(self, node: Node, reason: str) -> None:
        self._obstacles.setdefault(self._root(node), {})[reason] = None

    # -- one run ----------------------------------------------------------------------------------------------------

    def follow(self, run: int, trace: Trace) -> None:
        """Take the calls of a run into account."""
        written = {number for call in trace.calls for number in call.writes}
        for number, shape in trace.shapes.items():
            node = self._root((run, number))
            self._widths[node] = shape[-1] if shape else 1
            if number in trace.inputs:
                self._bar(node, "it is given to the model")
            elif number not in written and 0 not in shape:
                self._bar(node, "a parameter or constant is part of it that no layer holds")
            if number in trace.outputs:
                self._bar(node, "it is an output of the model")
        for call in trace.calls:
            reads = [(run, n) for n in call.reads if 0 not in trace.shapes[n]]
            writes = [(run, n) for n in call.writes]
            if call.module is None:
                self._function(call, reads, writes, trace)
            else:
                self._module(call, call.module, reads, writes, trace)

    def _module(self, call: Call, name: str, reads: list[Node], writes: list[Node], trace: Trace) -> None:
        module = self._modules[name]
        if name in self._layers:
            self._layer(call, name, [(writes[0][0], n) for n in call.reads] if writes else [], writes, trace)
        elif name in self._forms and len(reads) == len(writes) == 1:
            self._join(reads[0], writes[0], ("norm", name))
            form = self._forms[name]
            self._pass_norm(reads, writes[0], call)
            if form.neutral is not None or isinstance(getattr(module, "bias", None), torch.Tensor):
                if self._norms.get(reads[0]) is not None:
                    self._bar(reads[0], f"norm {name!r} stands right behind another, {self._norms[reads[0]]!r}")
                self._norms[writes[0]] = name
        elif name in self._blind:
            for node in writes:
                self._bar(node, f"{_described(call)} makes it")
        else:
            self._bar_all(call, reads, writes)

    def _layer(self, call: Call, name: str, reads: list[Node], writes: list[Node], trace: Trace) -> None:
        form, module = self._layers[name], self._modules[name]
        if form.inputs and len(reads) > form.source:
            source = reads[form.source]
            self._join(("in", name), source)
            norm = self._norms.get(source)
            if self._norm_of_reader.setdefault(name, norm) != norm:
                self._bar(source, f"{name!r} reads it behind different norms")
            self._bar_all(call, [node for node in reads if node != source], [])
        if form.outputs and len(writes) == 1:
            self._join(("out", name), writes[0])
        else:
            self._bar_all(call, [], writes)
        if isinstance(module, nn.Embedding):
            as_wide = [trace.shapes[number][-1:] == (module.embedding_dim,) for number in call.writes]
            if module.max_norm is not None or not all(as_wide):
                self._bar(("out", name), f"embedding {name!r} does more than to give rows of its weight")

    def _function(self, call: Call, reads: list[Node], writes: list[Node], trace: Trace) -> None:
        kind = call.target.rpartition(".")[2].strip("_")
        last = [trace.shapes[n[1]][-1:] for n in (*reads, *writes)]
        kept = len(set(last)) == 1 and bool(last[0])
        scaled = [n for n in reads if _is_wide(trace.shapes[n[1]])]
        if (kind in _KEEPING and len(reads) == 1 and kept) or (kind in _RESHAPING and _in_parts(last)):
            self._same(call, reads, *writes)
        elif kind in _ADDING and len(reads) == 2 and kept:
            self._same(call, reads, *writes, mixes=True)
        elif kind in _SCALING and len(writes) == 1 and len(scaled) == 1 and last[-1] == last[reads.index(scaled[0])]:
            self._same(call, scaled, *writes)
        elif kind in _JOINING and len(writes) == 1 and kept:
            self._same(call, reads, *writes)
        elif kind in _PRODUCTS and len(reads) == 2 and len(writes) == 1:
            self._same(call, reads[1:], *writes)
            self._bar(reads[0], f"{_described(call)} multiplies it with values")
        elif kind == _ATTENTION and len(reads) >= 3 and len(writes) == 1:
            self._same(call, reads[2:3], *writes)
            self._bar_all(call, [*reads[:2], *reads[3:]], [])
        elif kind in _BLIND:
            for node in writes:
                self._bar(node, f"{_described(call)} makes it")
        else:
            self._bar_all(call, reads, writes)

    def _same(self, call: Call, reads: Sequence[Node], *writes: Node, mixes: bool = False) -> None:
        self._join(*reads, *writes)
        for node in writes:
            self._pass_norm(reads, node, call, mixes)

    def _pass_norm(self, reads: Sequence[Node], write: Node, call: Call, mixes: bool = False) -> None:
        """What comes of values has the gain they were multiplied with, which whoever reads it is to take over."""
        norms = {self._norms.get(node) for node in reads}
        if len(norms) > 1 or (mixes and norms != {None}):
            named = ", ".join(sorted(repr(norm) for norm in norms if norm is not None))
            self._bar(
                write, f"{_described(call)} adds what norm {named} gives, whose gain no layer behind it can take over"
            )
        self._norms[write] = next(iter(norms)) if len(norms) == 1 else None

    def _bar_all(self, call: Call, reads: Iterable[Node], writes: Iterable[Node]) -> None:
        for node in (*reads, *writes):
            self._bar(node, f"{_described(call)} works on its channels one by one, or in a way that is not known")

    # -- what was found ---------------------------------------------------------------------------------------------

    def spaces(self) -> Iterator[Space]:
        """What belongs together, as far as layers are concerned."""
        members: dict[Node, list[Node]] = {}
        for node in list(self._parents):
            if node[0] in ("in", "out", "norm"):
                members.setdefault(self._root(node), []).append(node)
        for root, nodes in members.items():
            readers = {name: self._norm_of_reader.get(name) for side, name in nodes if side == "in"}
            norms = {name: self._forms[name] for side, name in nodes if side == "norm"}
            writers = tuple(name for side, name in nodes if side == "out")
            obstacles = [*self._obstacles.get(root, {}), *self._without_place(readers, norms)]
            forms, width = {name: self._layers[name] for name in (*writers, *readers)}, self._widths.get(root, 0)
            yield Space(width, writers, readers, norms, forms, tuple(obstacles or self._not_seen(width)))

    def _not_seen(self, width: int) -> Iterator[str]:
        """What other data may turn out to read or write the space with, and that would not be turned."""
        fitting = [name for name, shape in self._unused.items() if width in shape]
        if fitting:
            more = f" and {len(fitting) - 1} more parameters or buffers" if len(fitting) > 1 else ""
            yield (
                f"the data did not use {fitting[0]!r}{more} of that width, which may read or write it on other data; "
                "calibrate on data that uses them, or take them out of the model"
            )

    def _without_place(self, readers: Mapping[str, str | None], norms: Mapping[str, NormForm]) -> Iterator[str]:
        """Gains of norms wider than what a layer behind reads, and biases that no layer takes up and that cannot stay."""
        for name, form in norms.items():
            bias, gain = getattr(self._modules[name], "bias", None), form.gain(self._modules[name])
            behind = [layer for layer, norm in readers.items() if norm == name]
            for layer in behind:
                module, inputs = self._modules[layer], self._layers[layer].inputs
                if gain is not None and any(module.get_parameter(p).shape[axis] % len(gain) for p, axis in inputs):
                    yield f"norm {name!r} has {len(gain)} gains, and {layer!r} behind it reads fewer values at a time"
            if not isinstance(bias, torch.Tensor) or gain is None or takes_bias(self._modules, behind):
                continue
            if bool((gain == 0).any()):
                yield f"norm {name!r} has gains of zero, and no layer behind it has a bias that could take up its own"


def takes_bias(modules: Mapping[str, nn.Module], layers: Iterable[str]) -> bool:
    """Whether all of ``layers`` are linear and have a bias, so that what is added to their input can go there."""
    return all(is_linear(modules[n]) and isinstance(modules[n].bias, torch.Tensor) for n in layers)


def _is_wide(shape: tuple[int, ...]) -> bool:
    return bool(shape) and shape[-1] > 1


def _in_parts(last: Sequence[tuple[int, ...]]) -> bool:
    """Whether of two last dimensions one is a multiple of the other."""
    sizes = [size for each in last for size in each]
    return len(last) == len(sizes) == 2 and max(sizes) % min(sizes) == 0


def _described(call: Call) -> str:
    if call.module is not None:
        return f"{call.target} {call.module!r}"
    return f"{call.target.rpartition('.')[2]} in {call.inside!r}" if call.inside else call.target
