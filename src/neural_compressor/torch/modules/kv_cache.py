"""Keys and values of attentions in fp8, as a cache of eight bits would hold them; simulated."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.errors import CalibrationError, FormatError
from neural_compressor.formats.kv_cache import KV_SCHEME, KVScales
from neural_compressor.schemes import QParams
from neural_compressor.schemes.quantize import round_values
from neural_compressor.torch.batches import feed
from neural_compressor.torch.hooks import evaluating

_ARGUMENTS = ("past_key_values", "past_key_value")


def cached_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that hand keys and values to a cache, by name; of nested ones the innermost."""
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
    """Have attentions of ``model`` round keys and values to fp8 with ``scales`` before a cache gets them."""
    for name, module in attentions_of(model, scales).items():
        each = scales[name]
        module.register_buffer("k_scale", torch.as_tensor(each.keys), persistent=False)
        module.register_buffer("v_scale", torch.as_tensor(each.values), persistent=False)
        module.register_forward_pre_hook(_hand_rounding_cache, with_kwargs=True)


def kv_scales_of(model: nn.Module) -> dict[str, KVScales]:
    """The scales that attentions of ``model`` round keys and values with."""
    found = {name: (m._buffers.get("k_scale"), m._buffers.get("v_scale")) for name, m in model.named_modules()}
    return {name: KVScales(*pair) for name, pair in found.items() if pair[0] is not None and pair[1] is not None}


def observed_kv_scales(model: nn.Module, batches: Iterable[Any]) -> dict[str, KVScales]:
    """Scales at which the largest key and value that ``batches`` give are the largest numbers of fp8.

    A batch is what the model is called with: tokens, a tuple or a mapping of arguments.
    """
    with torch.no_grad(), evaluating(model), observing_caches(model) as largest:
        for batch in batches:
            feed(model, batch)
    return kv_scales_for(model, largest)


def require_attentions(model: nn.Module) -> dict[str, nn.Module]:
    """:func:`cached_attentions`, of which there must be some."""
    if attentions := cached_attentions(model):
        return attentions
    raise CalibrationError(f"a {type(model).__name__} has no attention that hands keys and values to a cache")


@contextmanager
def observing_caches(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """The largest magnitude of the keys and of the values of each attention, while ``model`` runs."""
    largest: dict[str, list[Tensor]] = {}
    attentions = require_attentions(model)
    with _observing(attentions, largest):
        yield largest


def kv_scales_for(model: nn.Module, largest: Mapping[str, Sequence[Tensor]]) -> dict[str, KVScales]:
    """Scales at which the largest key and value of each attention are the largest numbers of fp8."""
    missed = sorted(cached_attentions(model).keys() - largest.keys())
    if missed:
        raise CalibrationError(
            f"no key or value of {missed[0]!r} was seen: run the model on data that reaches it (save: kv_cache=batches)"
        )
    peak = KV_SCHEME.dtype.max
    scales = {}
    for name, (keys, values) in largest.items():
        for what, found in (("keys", keys), ("values", values)):
            if not bool(torch.isfinite(found)):
                raise CalibrationError(f"{what} of {name!r} hold NaN or Inf")
        scales[name] = KVScales(
            *((found / peak).clamp(min=torch.finfo(torch.float32).tiny) for found in (keys, values))
        )
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


class _Cache:
    """A cache that changes or sees what it is given, and hands everything else to the one it stands for."""

    def __init__(self, cache: Any, change: Any) -> None:
        self._cache, self._change = cache, change

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Keep keys and values, and give all that are kept."""
        keys, values = self._change(keys, values)
        return (keys, values) if self._cache is None else self._cache.update(keys, values, *args, **kwargs)

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

    name = _argument(module)
    return args, {**kwargs, name: _RoundingCache(kwargs.get(name), rounded)}


def _rounded(x: Tensor, scale: Tensor) -> Tensor:
    steps: Tensor = round_values(x.detach().float() / scale, KV_SCHEME, QParams(torch.ones((), device=x.device)))
    return (steps * scale).to(x.dtype)


@contextmanager
def _observing(attentions: Mapping[str, nn.Module], largest: dict[str, list[Tensor]]) -> Iterator[None]:
    def seeing(name: str, module: nn.Module) -> Any:
        def see(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            found = [x.detach().float().abs().amax() for x in (keys, values)]
            before = largest.get(name, found)
            largest[name] = [torch.maximum(*pair) for pair in zip(before, found, strict=True)]
            return keys, values

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            argument = _argument(module)
            return args, {**kwargs, argument: _Cache(kwargs.get(argument), see)}

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
