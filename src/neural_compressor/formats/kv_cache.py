"""Scales of attentions in a checkpoint: ``kv_cache_scheme``, ``k_scale`` and ``v_scale``, and ``q_scale`` of queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError
from neural_compressor.formats.compressed_tensors_config import tensor_args, tensor_scheme_of
from neural_compressor.formats.stored_tensors import finite_scale
from neural_compressor.schemes import PER_TENSOR, TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32

KV_SCHEME = TensorScheme(dtype("fp8_e4m3"), granularity=PER_TENSOR)
"""Keys and values in fp8 e4m3 with one scale each."""
_PARTS = ("k_scale", "v_scale")
_QUERIES = "q_scale"
_OLDER = {"k_proj.k_scale": "k_scale", "v_proj.v_scale": "v_scale"}


@dataclass(frozen=True, eq=False)
class KVScales:
    """What keys and values of one attention are divided by: float32, with no axes, or one a head, (heads, 1, 1).

    ``queries`` are what queries are divided by; None where these stay in float.
    """

    keys: Array
    values: Array
    queries: Array | None = None

    def tensors(self) -> dict[str, Array]:
        """The tensors that store them, by local name."""
        pairs = zip((*_PARTS, _QUERIES), (self.keys, self.values, self.queries), strict=True)
        return {part: array_namespace(s).reshape(s, (1,)) if not s.ndim else s for part, s in pairs if s is not None}


def kv_cache_scheme() -> dict[str, Any]:
    """What a configuration says of a cache with one scale a tensor."""
    return tensor_args(KV_SCHEME, dynamic=False)


def attention_group(kind: str) -> dict[str, Any]:
    """The group of a compressed-tensors configuration that has queries of all attentions of a class rounded as keys are.

    vLLM passes over groups whose one target is the name of a class of attentions, and fails at others without weights.
    """
    return {"targets": [kind], "weights": None, "input_activations": kv_cache_scheme(), "output_activations": None}


def kv_tensors(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The scales of caches among the tensors of a checkpoint: ``{attention: {local name: full name}}``.

    >>> kv_tensors(["a.self_attn.k_scale", "a.self_attn.v_proj.v_scale", "a.self_attn.k_proj.weight"])
    {'a.self_attn': {'k_scale': 'a.self_attn.k_scale', 'v_scale': 'a.self_attn.v_proj.v_scale'}}
    """
    found: dict[str, dict[str, str]] = {}
    for name in names:
        for ending, part in (*_OLDER.items(), *((each, each) for each in (*_PARTS, _QUERIES))):
            if name.endswith(f".{ending}"):
                found.setdefault(name[: -len(ending) - 1], {})[part] = name
                break
    return found


def read_kv_scales(tensors: Mapping[str, Array], attention: str, config: Mapping[str, Any]) -> KVScales:
    """The scales of one attention out of its ``tensors``, by local name."""
    told = config.get("kv_cache_scheme")
    if told is not None:
        scheme = tensor_scheme_of(told, "kv_cache_scheme")
        if scheme.dtype != KV_SCHEME.dtype or told.get("dynamic"):
            raise FormatError(f"'kv_cache_scheme' is fp8 with scales known beforehand, found {dict(told)!r}")
    scales: list[Array] = []
    for part in (*_PARTS, *([_QUERIES] if _QUERIES in tensors else [])):
        if part not in tensors:
            raise FormatError(f"the cache of {attention!r} has no {part!r}; it has {', '.join(sorted(tensors))}")
        scale = as_float32(finite_scale(tensors[part], part))
        xp = array_namespace(scale)
        if not bool(xp.all(scale > 0)):
            raise FormatError(f"{part!r} of {attention!r} is above 0, found {float(xp.min(scale)):g}")
        one = scale.ndim == 0 or tuple(scale.shape) == (1,)
        if not one and tuple(scale.shape[1:]) != (1, 1):
            raise FormatError(f"{part!r} of {attention!r} is one number or (heads, 1, 1), found {tuple(scale.shape)}")
        scales.append(xp.reshape(scale, ()) if one else scale)
    return KVScales(*scales)
