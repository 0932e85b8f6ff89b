"""Keys and values of attentions in fp8, as a cache of eight bits would hold them, and queries beside them; simulated."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.errors import CalibrationError, FormatError, QuantizationError
from neural_compressor.formats.kv_cache import KV_SCHEME, KVScales
from neural_compressor.schemes import QParams
from neural_compressor.schemes.grid import step_size
from neural_compressor.schemes.quantize import round_values
from neural_compressor.torch.batches import feed_each
from neural_compressor.torch.hooks import evaluating

logger = logging.getLogger("neural_compressor")
_ARGUMENTS = ("past_key_values", "past_key_value", "layer_past")
_ATTENTION = "scaled_dot_product_attention"


def cached_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that hand keys and values to a cache, by name; of nested ones the innermost."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) is True:
        raise QuantizationError(
            f"a {type(model).__name__} has a decoder that reads an encoder, with a cache of its own for what that gives: "
            "keys and values in fp8 are for models that decode alone; leave out kv_cache, static_kv_dtype and "
            "static_attention_dtype"
        )
    found = {
        name: module for name, module in model.named_modules() if _argument(module) and hasattr(module, "layer_idx")
    }
    return {name: m for name, m in found.items() if not any(other.startswith(f"{name}.") for other in found)}


def attentions_of(model: nn.Module, scales: Mapping[str, KVScales]) -> dict[str, nn.Module]:
    """The attentions that ``scales`` of a checkpoint speak of; one that ``model`` does not have is an error."""
    attentions = cached_attentions(model) if scales else {}
    for name in scales:
        if name not in attentions:
            raise FormatError(f"the checkpoint has scales of a cache for {name!r}, and the model has no such attention")
    return {name: attentions[name] for name in scales}


def attach_kv_scales(model: nn.Module, scales: Mapping[str, KVScales]) -> None:
    """Have attentions of ``model`` round keys and values to fp8 with ``scales`` before a cache gets them, queries too."""
    for name, module in attentions_of(model, scales).items():
        each = scales[name]
        module.register_buffer("k_scale", torch.as_tensor(each.keys), persistent=False)
        module.register_buffer("v_scale", torch.as_tensor(each.values), persistent=False)
        if each.queries is not None:
            module.register_buffer("q_scale", torch.as_tensor(each.queries), persistent=False)
        module.register_forward_pre_hook(_hand_rounding_cache, with_kwargs=True)


def kv_scales_of(model: nn.Module) -> dict[str, KVScales]:
    """The scales that attentions of ``model`` round keys and values with, and queries where they do."""
    buffers = {name: dict(module.named_buffers(recurse=False)) for name, module in model.named_modules()}
    found = {name: [own.get(f"{part}_scale") for part in "kvq"] for name, own in buffers.items()}
    return {name: KVScales(*each) for name, each in found.items() if each[0] is not None and each[1] is not None}


def observed_kv_scales(model: nn.Module, batches: Iterable[Any]) -> dict[str, KVScales]:
    """Scales at which the largest key and value that ``batches`` give are the largest numbers of fp8.

    A batch is what the model is called with: tokens, a tuple or a mapping of arguments.
    """
    with torch.no_grad(), evaluating(model), observing_caches(model) as largest:
        feed_each(model, batches, "kv_cache")
    return kv_scales_for(model, largest)


def require_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """:func:`cached_attentions`, of which there must be some."""
    if attentions := cached_attentions(model):
        return attentions
    raise CalibrationError(f"a {type(model).__name__} has no attention that hands keys and values to a cache")


@contextmanager
def observing_caches(model: nn.Module, queries: bool = False) -> Iterator[dict[str, list[Tensor]]]:
    """The largest magnitude of the keys, the values and the ``queries`` of each attention, while ``model`` runs."""
    largest: dict[str, list[Tensor]] = {}
    attentions = require_attentions(model)
    with _observing(attentions, largest, queries):
        yield largest


def kv_scales_for(
    model: nn.Module, largest: Mapping[str, Sequence[Tensor]], queries: bool = False
) -> dict[str, KVScales]:
    """Scales at which the largest key, value and query of each attention are the largest numbers of fp8."""
    missed = sorted(cached_attentions(model).keys() - largest.keys())
    if missed:
        raise CalibrationError(
            f"no key or value of {missed[0]!r} was seen: run the model on data that reaches it (save: kv_cache=batches)"
        )
    parts = ("keys", "values", "queries")[: 3 if queries else 2]
    scales = {}
    for name, seen in largest.items():
        if len(seen) < len(parts):
            raise CalibrationError(
                f"no query of {name!r} was seen: queries are rounded where torch's scaled_dot_product_attention or matmul "
                "multiplies them with keys; load the model with attn_implementation='sdpa' or 'eager'"
            )
        for what, found in zip(parts, seen, strict=True):
            if not bool(torch.isfinite(found)):
                raise CalibrationError(f"{what} of {name!r} hold NaN or Inf")
            if not bool(found):
                logger.warning("%s of %r were 0 in every sample; a scale for them fits no other data", what, name)
        scales[name] = KVScales(*(step_size(found, KV_SCHEME.dtype.peak) for found in seen))
    return scales


_HELD = "_held_in_fp8"


def mark_held(*tensors: Any) -> None:
    """Say of tensors that their values are those that a cache in fp8 holds."""
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            setattr(tensor, _HELD, True)


def is_held(value: Any) -> bool:
    """Whether :func:`mark_held` said so: to round them to that type again, in another scale, would be once too often."""
    return getattr(value, _HELD, False) is True


_QUERY_AT = {
    **dict.fromkeys((_ATTENTION, "matmul", "__matmul__", "bmm", "linalg_matmul"), 0),
    "baddbmm": 1,
}
"""Where a function that multiplies queries with keys takes queries; keys come next."""


class _Keys(Tensor):
    """Keys for which something is done to the query that they are multiplied with; what is made of them is so too."""

    on_query: Callable[[Tensor], Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, named = list(args), dict(kwargs or {})
        place = _QUERY_AT.get(getattr(func, "__name__", ""))
        if getattr(func, "__name__", "") == _ATTENTION:
            given += [named.pop(name) for name in ("query", "key", "value")[len(given) :] if name in named]
        if place is not None and len(given) > place + 1:
            query, keys = given[place : place + 2]
            if isinstance(keys, cls) and not isinstance(query, cls):
                given[place] = keys.on_query(query)
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*given, **named)
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if isinstance(result, cls) and not hasattr(result, "on_query"):
            of = next(each for each in (*args, *named.values()) if isinstance(each, cls))
            result.on_query = of.on_query
        return result


class _Cache:
    """A cache that changes or sees what it is given, and hands everything else to the one it stands for.

    What ``on_query`` gives stands for the query that the keys are multiplied with.
    """

    def __init__(self, cache: Any, change: Any, on_query: Callable[[Tensor], Tensor] | None = None) -> None:
        self._cache, self._change, self._on_query = cache, change, on_query

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Keep keys and values, and give all that are kept."""
        keys, values = self._change(keys, values)
        held = (keys, values) if self._cache is None else self._cache.update(keys, values, *args, **kwargs)
        if self._on_query is None:
            return held
        keys = held[0].as_subclass(_Keys)
        keys.on_query = self._on_query
        return keys, held[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)


class _RoundingCache(_Cache):
    """A cache whose keys and values are all rounded."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        held = super().update(keys, values, *args, **kwargs)
        mark_held(*held)
        return held


def _hand_rounding_cache(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def rounded(*pair: Tensor) -> tuple[Tensor, ...]:
        scales = (module.k_scale, module.v_scale)
        return tuple(_rounded(x, scale) for x, scale in zip(pair, scales, strict=True))  # type: ignore[arg-type]

    name, scale = _argument(module), module._buffers.get("q_scale")
    on_query = None if scale is None else lambda query: _rounded(query, scale)
    return args, {**kwargs, name: _RoundingCache(kwargs.get(name), rounded, on_query)}


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    steps: Tensor = round_values(x.detach().float() / scale, KV_SCHEME, QParams(torch.ones((), device=x.device)))
    return (steps * scale).to(x.dtype)


@contextmanager
def _observing(attentions: Mapping[str, nn.Module], largest: dict[str, list[Tensor]], queries: bool) -> Iterator[None]:
    def seeing(name: str, module: nn.Module) -> Any:
        def note(at: int, x: Tensor) -> Tensor:
            seen, found = largest.setdefault(name, []), x.detach().float().abs().amax()
            seen[at : at + 1] = [torch.maximum(seen[at], found) if len(seen) > at else found]
            return x

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            argument = _argument(module)
            cache = _Cache(
                kwargs.get(argument),
                lambda keys, values: (note(0, keys), note(1, values)),
                (lambda query: note(2, query)) if queries else None,
            )
            return args, {**kwargs, argument: cache}

        return module.register_forward_pre_hook(hook, with_kwargs=True)

    handles = [seeing(name, module) for name, module in attentions.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _argument(module: nn.Module) -> str:
    """The name by which a module takes a cache; empty where it takes none."""
    try:
        parameters = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return ""
    return next((name for name in _ARGUMENTS if name in parameters), "")
