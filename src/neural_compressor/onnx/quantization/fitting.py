"""Fitting of what a configuration asks of a node to what the execution provider can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from neural_compressor.adaptor.tensor_options import ANY
from neural_compressor.config.words import as_list
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CapabilityError
from neural_compressor.onnx.quantization.config.integer import IntegerConfig
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, OpScheme, PerGroup, TensorScheme

_ALL = frozenset({"dtype", "scheme"})


class _UnfitError(Exception):
    """A tensor that no option admits as it is wanted."""


def fit(config: IntegerConfig, options: Sequence[Mapping[str, Any]], op_type: str, provider: str) -> OpScheme | None:
    """How ``config`` lets a node of ``op_type`` compute, of what the ``options`` of the provider admit; None where it
    computes in float only.

    What the configuration leaves at its default gives way to what the provider has; what it says itself and the provider
    does not have is an error.
    """
    quantized = [option for option in options if option["activation"].get("quant_mode") == config.approach]
    if not quantized:
        return None
    wanted = config.op_scheme(has_weight="weight" in quantized[0])
    said = {"weight": _said(config, "weight"), "activation": _said(config, "activation")}
    if any(_admits(option.get("weight"), wanted.weight) for option in quantized):
        # A scale a channel is not given up for what nobody asked for.
        quantized = [option for option in quantized if _admits(option.get("weight"), wanted.weight)]
    for fixed in ({"weight": _ALL, "activation": _ALL}, said):
        for option in quantized:
            try:
                weight, activation = (
                    _fitted(getattr(wanted, part), option.get(part), fixed[part]) for part in ("weight", "activation")
                )
            except _UnfitError:
                continue
            return OpScheme(weight, activation, config.approach)
    known = " or ".join(_described(option) for option in quantized)
    raise CapabilityError(
        f"{type(config).__name__} asks for {op_type} with {_described(wanted.to_dict())}; {provider} runs it with {known}"
    )


def _admits(option: Mapping[str, Any] | None, wanted: TensorScheme | None) -> bool:
    """Whether a weight may have as many scales as are wanted."""
    return option is None or wanted is None or wanted.granularity.name in as_list(option.get("granularity", ()))


def _said(config: IntegerConfig, part: str) -> frozenset[str]:
    """What of a tensor the configuration says itself."""
    field, kind = f"{part}_type", type(config)
    usual = kind.model_fields[field].default if field in kind.model_fields else None
    own = getattr(config, field, usual) != usual
    symmetry = f"{part.capitalize()}Symmetric" in config.extra_options
    return frozenset({"dtype"} if own else ()) | frozenset({"scheme"} if symmetry else ())


def _fitted(
    wanted: TensorScheme | None, option: Mapping[str, Any] | None, fixed: frozenset[str]
) -> TensorScheme | None:
    if wanted is None or option is None or "scheme" not in option:  # a tensor that stays in float
        return None
    kinds, schemes = as_list(option["dtype"]), as_list(option["scheme"])
    scheme = "sym" if wanted.symmetric else "asym"
    if (wanted.dtype.name not in kinds and "dtype" in fixed) or (scheme not in schemes and "scheme" in fixed):
        raise _UnfitError
    granularities = as_list(option["granularity"])
    by_channel = "per_tensor" not in granularities or (
        wanted.granularity == PER_CHANNEL and "per_channel" in granularities
    )
    return replace(
        wanted,
        dtype=wanted.dtype if wanted.dtype.name in kinds else dtype(kinds[0]),
        symmetric=(scheme if scheme in schemes else schemes[0]) == "sym",
        granularity=PER_CHANNEL if by_channel else PER_TENSOR,
    )


def _described(option: Mapping[str, Any]) -> str:
    return " and ".join(
        f"{part} {'/'.join(as_list(option[part]['dtype']))} ({'/'.join(as_list(option[part].get('scheme', 'float')))})"
        for part in ("weight", "activation")
        if part in option
    )


def unfit_weight(scheme: TensorScheme, options: Sequence[Mapping[str, Any]], op_type: str, provider: str) -> str:
    """Why the provider does not run ``op_type`` with a weight of ``scheme`` alone; empty where it does."""
    able = [option["weight"] for option in options if option["activation"].get("quant_mode") == "weight_only"]
    if not able:
        return f"{provider} has no {op_type} with weights quantized alone"
    size = scheme.granularity.size if isinstance(scheme.granularity, PerGroup) else -1
    asked = {
        "dtype": scheme.dtype.name,
        "scheme": "sym" if scheme.symmetric else "asym",
        "group_size": size,
        "algorithm": scheme.algorithm,
    }
    for weight in able:
        admitted = {field: as_list(weight[field]) for field in asked}
        unmet = [field for field, value in asked.items() if value not in admitted[field] and ANY not in admitted[field]]
        if not unmet:
            return ""
    known = ", ".join(f"{field} {'/'.join(map(str, as_list(able[0][field])))}" for field in unmet)
    wrong = ", ".join(f"{field} {asked[field]}" for field in unmet)
    return f"{provider} has no {op_type} with {wrong}, but {known}"
