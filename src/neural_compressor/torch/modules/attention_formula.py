"""Formulas for the attention of one new token, and the trial that finds the one a module computes.

Queries, keys and values are one product here, of which queries and keys are rotated together: for one token all that the
sixteen operators cost, which modules rotate with, is their call. A trial calls the module on inputs of several magnitudes,
with a cache that notes what it is given, and takes the formula that gives the same bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_compressor.torch.modules.base import QuantModule
from neural_compressor.torch.modules.direct_product import Product, joined_outputs, output_of
from neural_compressor.torch.modules.relay.tracing import TraceError
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear

_MAGNITUDES = (1.0, 0.1, 30.0)
"""Of the inputs that are tried: with large ones it shows where something is clipped."""
_POSITION = 10_000_019
"""A position that is tried beside the given ones: some modules scale queries far from the start."""
_PAST = 7
_REPEATS = (1, 715, 1)
"""The cache of a trial holds so many tokens, so often: many, for small inputs, show where a module
looks at the last ones alone."""

Attend = Callable[[Tensor, Tensor, Tensor, Any], Tensor]
"""The output for an input, the cosines and sines of its position, and a cache."""
Own = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Call:
    """What the arguments of a call are: the shape of the input, the names of the pair of cosines and sines and of the cache,
    and the others with their values, those that are tensors with their type."""

    shape: torch.Size
    rotary: str
    cache: str
    others: Mapping[str, Any]

    @classmethod
    def of(cls, x: Tensor, arguments: Mapping[str, Any]) -> Call | None:
        """None where an argument is none of these, as a mask is."""
        rotary, cache, others = list[str](), list[str](), dict[str, Any]()
        for name, value in arguments.items():
            if is_rotary(value, len(x)):
                rotary.append(name)
            elif value is None or type(value) in (bool, int, float, str):
                others[name] = value
            elif isinstance(value, Tensor):
                if value.dtype is not torch.int64:
                    return None
                others[name] = torch.int64
            elif callable(getattr(value, "update", None)):
                cache.append(name)
            else:
                return None
        return cls(x.shape, rotary[0], cache[0], others) if len(rotary) == len(cache) == 1 else None


def is_rotary(value: Any, batch: int) -> bool:
    """Whether ``value`` is the cosines and sines of one position, for all of a batch or each."""
    if type(value) is not tuple or len(value) != 2:
        return False
    cos, sin = value
    if type(cos) is not Tensor or type(sin) is not Tensor or cos.dtype is not torch.float32 or not cos.is_cpu:
        return False
    shape = cos.shape
    return (
        sin.dtype is torch.float32
        and len(shape) == 3
        and shape == sin.shape
        and shape[1] == 1
        and shape[0] in (1, batch)
        and not shape[2] % 2
    )


# -- the formulas ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Formula:
    """The number that a number is rotated with, the sign of that, and the scale of logits."""

    partner: Tensor
    sign: Tensor
    scale: float

    def attend(self, heads: _Heads, index: int, x: Tensor, cos: Tensor, sin: Tensor, cache: Any) -> Tensor:
        batch, _, _ = x.shape
        joined = heads.inputs(x).reshape(batch, -1, heads.width)
        turning = joined[:, : heads.queries + heads.keys]
        # Not by addcmul, which rounds once where a module rounds twice.
        turned = (turning * cos).add_(turning.index_select(2, self.partner) * (sin * self.sign)).unsqueeze(2)
        keys, values = cache.update(
            turned[:, heads.queries :], joined[:, heads.queries + heads.keys :].unsqueeze(2), index
        )
        found = F.scaled_dot_product_attention(
            turned[:, : heads.queries], keys, values, scale=self.scale, enable_gqa=heads.queries != heads.keys
        )
        return heads.output(found.reshape(batch, 1, -1))


def _formulas(module: nn.Module, width: int) -> Iterator[_Formula]:
    place, half = torch.arange(width), width // 2
    sign = torch.ones(width)
    halves = (place + half) % width, torch.where(place < half, -sign, sign)
    neighbours = place ^ 1, torch.where(place % 2 == 0, -sign, sign)
    numbers = dict.fromkeys([width**-0.5, *(value for value in vars(module).values() if type(value) is float)])
    for (partner, signs), scale in itertools.product((halves, neighbours), numbers):
        yield _Formula(partner, signs, scale)


@dataclass(frozen=True, eq=False)
class _Heads:
    """The layers of an attention: how many heads of queries, and of keys and of values, of which width they have."""

    inputs: Product
    output: Product
    queries: int
    keys: int
    width: int

    @classmethod
    def of(cls, module: nn.Module, width: int) -> _Heads:
        layers = [child for child in module.modules() if type(child) is WeightOnlyLinear]
        others = [child for child in module.modules() if isinstance(child, QuantModule) and child not in layers]
        if others or any(layer.low_bit_kernel is None for layer in layers):
            raise TraceError("one of its layers has no low-bit kernel")
        product = next((p for layer in layers if (p := layer.shared_input.product) is not None), None)
        if product is None:
            if len(layers) != 2:
                raise TraceError("its layers have no product in common")
            first, last = sorted(layers, key=lambda layer: layer.out_features, reverse=True)
            sizes, inputs = [first.out_features], output_of(first)
        else:
            joined = product.layers()
            left = [layer for layer in layers if layer not in joined]
            if len(joined) != 3 or len(left) != 1 or any(layer not in layers for layer in joined):
                raise TraceError("it has no three layers with one product, and one more")
            (last,), sizes = left, [layer.out_features for layer in joined]
            found = joined_outputs(product)
            if found is None:
                raise TraceError("more is done to the outputs of its layers than a bias is added")
            inputs = found
        queries, rest = last.in_features, sum(sizes) - last.in_features
        if rest <= 0 or queries % width or rest % (2 * width) or queries % (rest // 2):
            raise TraceError("its layers are not made of heads")
        if len(sizes) == 3 and sizes != [queries, rest // 2, rest // 2]:
            raise TraceError("its layers are not those of queries, keys and values")
        return cls(inputs, output_of(last), queries // width, rest // (2 * width), width)


# -- the trial ---------------------------------------------------------------------------------------------------------


def tried(module: nn.Module, own: Own, call: Call, arguments: Mapping[str, Any]) -> Attend:
    """The formula that gives the bits of ``own``, the forward of ``module``; TraceError where there is none."""
    kind, width = type(arguments[call.cache]), arguments[call.rotary][0].shape[2]
    runs = [_Trial(call, arguments, number) for number in range(len(_MAGNITUDES))]
    for _ in range(2):  # in which layers that read one input find each other
        runs[0].expected(own, kind)
    expected = [run.expected(own, kind) for run in runs]
    indices = {index for seen in expected for index in seen.indices}
    if len(indices) != 1:
        raise TraceError("it does not call the cache once, with keys, values and a number")
    heads, (index,) = _Heads.of(module, width), indices
    for formula in _formulas(module, width):

        def attend(x: Tensor, cos: Tensor, sin: Tensor, cache: Any, formula: _Formula = formula) -> Tensor:
            return formula.attend(heads, index, x, cos, sin, cache)

        try:
            found = (run.found(attend, kind) for run in runs)
            same = all(seen.equals(wanted) for seen, wanted in zip(found, expected, strict=True))
        except RuntimeError as error:
            raise TraceError(f"its operators cannot be called directly: {error}") from error
        if same:
            return attend
    raise TraceError("no attention that is known gives what it gives")


@dataclass(frozen=True, eq=False)
class _Seen:
    """What an attention gave, and gave to its cache: keys, values, and the number of the layer."""

    output: Tensor
    cached: Sequence[Tensor]
    indices: Sequence[int]

    def equals(self, other: _Seen) -> bool:
        pairs = zip((self.output, *self.cached), (other.output, *other.cached), strict=True)
        return all(a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


class _Trial:
    """A call like the one that was made, with other numbers and a cache of its own."""

    def __init__(self, call: Call, arguments: Mapping[str, Any], number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        cos, sin = arguments[call.rotary]
        self._x = torch.randn(call.shape, generator=generator) * _MAGNITUDES[number]
        self._cos, self._sin = (torch.randn(each.shape, generator=generator) for each in (cos, sin))
        self._call, self._number = call, number
        self._others = {
            name: torch.full_like(arguments[name], _POSITION) if number and value is torch.int64 else arguments[name]
            for name, value in call.others.items()
        }

    def expected(self, own: Own, kind: type) -> _Seen:
        """What the module's own forward gives."""
        probe = _probe(kind, self._number)
        given = {self._call.rotary: (self._cos, self._sin), self._call.cache: probe, **self._others}
        try:
            result = own(self._x, **given)
        except Exception as error:
            raise TraceError(f"it cannot be tried: {error}") from error
        if type(result) is not tuple or len(result) != 2 or type(result[0]) is not Tensor or result[1] is not None:
            raise TraceError("it gives more than a tensor")
        return _seen(result[0], probe)

    def found(self, attend: Attend, kind: type) -> _Seen:
        """What a formula gives."""
        probe = _probe(kind, self._number)
        return _seen(attend(self._x, self._cos, self._sin, probe), probe)


def _probe(kind: type, seed: int) -> Any:
    """A cache for the eyes of a module that notes what it is given, and knows nothing else."""

    def update(self: Any, keys: Tensor, values: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        vars(self).setdefault("given", []).append((keys, values, rest, named))
        past = [torch.randn(*t.shape[:2], _PAST, t.shape[3], generator=generator) for t in (keys, values)]
        past = [each.repeat(1, 1, _REPEATS[seed], 1) for each in past]
        past[1][:, :, 0] *= 2 * _PAST * _REPEATS[seed]  # one of many has a small share: so it is seen to be left out
        found = tuple(torch.cat(both, dim=2) for both in zip(past, (keys, values), strict=True))
        return found[0], found[1]

    def attribute(self: Any, name: str) -> Any:
        if name in ("update", "__class__", "__dict__"):
            return object.__getattribute__(self, name)
        raise TraceError(f"it asks its cache for {name!r}")

    try:
        return object.__new__(type("Probe", (kind,), {"update": update, "__getattribute__": attribute}))
    except TypeError as error:
        raise TraceError(f"its cache cannot be stood in for: {error}") from error


def _seen(output: Tensor, probe: Any) -> _Seen:
    given = vars(probe).get("given", [])
    if len(given) != 1 or given[0][3] or [type(each) for each in given[0][2]] != [int]:
        raise TraceError("it does not call the cache once, with keys, values and a number")
    keys, values, (index,), _ = given[0]
    return _Seen(output, (keys, values), (index,))
