"""Attention of one new token in a dozen operators in place of fifty, with the same bits.

For one token all that the operators of an attention module cost is their call: queries and keys are rotated in some sixteen
of them, and Python stands between. Here queries, keys and values are one product, of which queries and keys are rotated
together. Whether a module is such an attention is not taken from its name but tried: on inputs of several magnitudes, with
a cache that notes what it is given, one of the formulas that are in use must give the bits that the module gives, or the
module runs as it is. What becomes of the keys and values of earlier tokens is the business of the cache, called as ever.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neural_compressor.torch.modules.base import QuantModule
from neural_compressor.torch.modules.direct_product import Product, is_watched, joined_outputs, output_of
from neural_compressor.torch.modules.object_forward import ObjectForward
from neural_compressor.torch.modules.relay.tracing import Guards, TraceError, plain
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear

_MAGNITUDES = (1.0, 0.1, 30.0)
"""Of the inputs that are tried: with large ones it shows where something is clipped."""
_POSITION = 10_000_019
"""A position that is tried beside the given ones: some modules scale queries far from the start."""
_PAST = 7
"""Tokens that the cache of a trial holds."""
_TRIALS = 8
"""A module that must be tried more often than this runs its own forward."""


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of a call by what they are: the input, cosines and sines of its position, the cache, and others."""

    x: Tensor
    rotary: str
    cache: str
    others: Mapping[str, Any]

    @classmethod
    def of(cls, x: Tensor, arguments: Mapping[str, Any]) -> Call | None:
        """None where an argument is none of these, as a mask is."""
        rotary, cache, others = list[str](), list[str](), dict[str, Any]()
        for name, value in arguments.items():
            if _is_rotary(value, len(x)):
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
        return cls(x, rotary[0], cache[0], others) if len(rotary) == len(cache) == 1 else None


def _is_rotary(value: Any, batch: int) -> bool:
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


class AttentionForward(ObjectForward):
    """The attribute ``forward`` of a module that may be an attention; one that is none gets rid of it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._step: _Step | None = None
        self._trials = 0
        parameters = list(inspect.signature(type(module).forward).parameters.items())[1:]
        self._names = tuple(name for name, each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD)

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["module"])  # type: ignore[misc]

    @property
    def active(self) -> bool:
        """Whether a token is attended to by a formula."""
        return self._step is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = self._names
        arguments = {**dict(zip(names, args, strict=False)), **kwargs} if args else kwargs.copy()
        x = arguments.pop(names[0], None) if 0 < len(names) >= len(args) else None
        if (
            type(x) is not Tensor
            or x.dim() != 3
            or x.shape[1] != 1
            or x.dtype is not torch.float32
            or not x.is_cpu
            or torch.is_grad_enabled()
            or is_watched()
            or torch.is_autocast_enabled("cpu")
        ):
            return self.own(*args, **kwargs)
        step = self._step
        if step is None or not step.fits(x, arguments):
            step = self._find(x, arguments)
        if step is None or not step.guards.unhooked() or x.numel() > step.most_values:
            return self.own(*args, **kwargs)
        cos, sin = arguments[step.rotary]
        return step.attend(x, cos, sin, arguments[step.cache]), None

    def _find(self, x: Tensor, arguments: Mapping[str, Any]) -> _Step | None:
        """Learn what the module computes; None where this call does not show it, or it is something else."""
        call = Call.of(x, arguments)
        if call is None or self.module.training:
            return None
        below = list(self.module.modules())[1:]
        guards = Guards(self.module, [self.module], below)
        if not guards.unhooked() or not x.numel() or x.numel() > _most_rows(below) * x.shape[2]:
            return None
        self._step, self._trials = None, self._trials + 1
        try:
            if self._trials > _TRIALS:
                raise TraceError("its attributes or its arguments keep changing")
            self._step = _tried(self, call, arguments, guards)
        except TraceError as error:
            self.reason = str(error)
            self.remove()
        return self._step


@dataclass(frozen=True, eq=False)
class _Step:
    """What is computed for a token, and under which conditions."""

    attend: Callable[[Tensor, Tensor, Tensor, Any], Tensor]
    guards: Guards
    settings: Settings
    cache_type: type
    rotary: str
    cache: str
    others: Mapping[str, Any]
    width: int
    most_values: int

    def fits(self, x: Tensor, arguments: Mapping[str, Any]) -> bool:
        if type(arguments.get(self.cache)) is not self.cache_type or len(arguments) != len(self.others) + 2:
            return False
        rotary = arguments.get(self.rotary)
        if not _is_rotary(rotary, len(x)) or rotary[0].shape[2] != self.width:  # type: ignore[index]
            return False
        for name, known in self.others.items():
            if name not in arguments:
                return False
            value = arguments[name]
            if known is torch.int64:
                if type(value) is not Tensor or value.dtype is not known:
                    return False
            elif value is not known and (type(value) is not type(known) or value != known):
                return False
        return self.guards.hold() and self.settings.hold()


class Settings:
    """The attributes of objects that a module has, as its ``config``: they may change while the object stays."""

    def __init__(self, module: nn.Module) -> None:
        held = [value for value in vars(module).values() if type(value).__module__.partition(".")[0] != "torch"]
        found = [vars(value) for value in held if hasattr(value, "__dict__") and not _is_code(value)]
        self._now, self._then = found, [{k: plain(v) for k, v in each.items()} for each in found]

    def hold(self) -> bool:
        """Whether they are what they were."""
        try:
            return self._now == self._then
        except (RuntimeError, ValueError):  # a tensor or an array became another
            return False


def _is_code(value: Any) -> bool:
    return isinstance(value, (type, nn.Module, Tensor, ObjectForward)) or inspect.isroutine(value)


def _most_rows(modules: Sequence[nn.Module]) -> int:
    return min((layer.most_rows for layer in modules if type(layer) is WeightOnlyLinear), default=0)


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


def _tried(forward: AttentionForward, call: Call, arguments: Mapping[str, Any], guards: Guards) -> _Step:
    """The formula that gives the bits of the module's own forward; TraceError where there is none."""
    module, kind, width = forward.module, type(arguments[call.cache]), arguments[call.rotary][0].shape[2]
    runs = [_Trial(call, arguments, number) for number in range(len(_MAGNITUDES))]
    for _ in range(2):  # in which layers that read one input find each other
        runs[0].expected(forward, kind)
    expected = [run.expected(forward, kind) for run in runs]
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
            most = _most_rows(list(module.modules())) * call.x.shape[2]
            names = call.rotary, call.cache, call.others
            return _Step(attend, guards, Settings(module), kind, *names, width, most)
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
        self._x = torch.randn(call.x.shape, generator=generator) * _MAGNITUDES[number]
        self._cos, self._sin = (torch.randn(each.shape, generator=generator) for each in (cos, sin))
        self._call, self._number = call, number
        self._others = {
            name: torch.full_like(arguments[name], _POSITION) if number and value is torch.int64 else arguments[name]
            for name, value in call.others.items()
        }

    def expected(self, forward: AttentionForward, kind: type) -> _Seen:
        """What the module's own forward gives."""
        probe = _probe(kind, self._number)
        given = {self._call.rotary: (self._cos, self._sin), self._call.cache: probe, **self._others}
        try:
            result = forward.own(self._x, **given)
        except Exception as error:
            raise TraceError(f"it cannot be tried: {error}") from error
        if type(result) is not tuple or len(result) != 2 or type(result[0]) is not Tensor or result[1] is not None:
            raise TraceError("it gives more than a tensor")
        return _seen(result[0], probe)

    def found(self, attend: Callable[[Tensor, Tensor, Tensor, Any], Tensor], kind: type) -> _Seen:
        """What a formula gives."""
        probe = _probe(kind, self._number)
        return _seen(attend(self._x, self._cos, self._sin, probe), probe)


def _probe(kind: type, seed: int) -> Any:
    """A cache for the eyes of a module that notes what it is given, and knows nothing else."""

    def update(self: Any, keys: Tensor, values: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        vars(self).setdefault("given", []).append((keys, values, rest, named))
        past = (torch.randn(*t.shape[:2], _PAST, t.shape[3], generator=generator) for t in (keys, values))
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


def may_be_attention(module: nn.Module) -> bool:
    """Whether a module with weight-only layers takes keys and values of the past, by the name all models have for them."""
    names = inspect.signature(type(module).forward).parameters
    return any(name.startswith("past_key_value") for name in names)
