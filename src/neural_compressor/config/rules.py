"""Which schemes an op may run with: the capability, narrowed by what the user asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neural_compressor.config.demands import Demand, field_value, merge
from neural_compressor.config.op_options import op_options
from neural_compressor.config.op_rule import DTYPE_FIELDS, OpRule
from neural_compressor.config.words import FLOAT_PRECISIONS, listed
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CapabilityError
from neural_compressor.schemes import OpKey, OpScheme, TensorScheme, float_op, reduced

MODES_OF = {
    "static": ("static",),
    "dynamic": ("dynamic",),
    "auto": ("static", "dynamic"),
    "weight_only": ("weight_only",),
}


@dataclass(frozen=True)
class AdmittedOptions:
    """The schemes one op may take: quantized ones, best first, and floats (bf16, fp16, fp32 as admitted).

    ``reason`` says why there is no quantized one.
    """

    quantized: tuple[OpScheme, ...]
    floats: tuple[OpScheme, ...]
    reason: str = ""


def matching_rules(key: OpKey, type_rules: Sequence[OpRule], name_rules: Sequence[OpRule]) -> tuple[OpRule, ...]:
    """The rules that speak of an op, the ones that win last."""
    name, kind = key
    return (*(r for r in type_rules if r.matches(kind)), *(r for r in name_rules if r.matches(name)))


def admitted_options(
    key: OpKey,
    configs: Sequence[Mapping[str, Any]],
    type_rules: Sequence[OpRule] = (),
    name_rules: Sequence[OpRule] = (),
    *,
    approach: str = "static",
    excluded_precisions: Sequence[str] = (),
    reduce_range: bool = False,
) -> AdmittedOptions:
    """The schemes of the op ``key``: the capability's ``configs``, then rules by type, then rules by name.

    Field by field a later rule replaces an earlier one; a rule that names a data type replaces what earlier ones said
    about the data types of both tensors. Without a rule that names one, quantized means int8. Rules that name only
    quantized types leave float as what tuning may fall back to.

    >>> int8 = {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "quant_mode": "static"}}
    >>> admitted_options(("fc", "Linear"), [int8]).quantized[0].precision
    'int8'
    """
    rules = matching_rules(key, type_rules, name_rules)
    options = [option for option in op_options(configs) if not _excluded(option, excluded_precisions)]
    known = {s.precision: s for s in options if s.is_float and s.activation and s.activation.dtype.name == s.precision}
    has_weight = any(option.weight is not None for option in options)
    known.setdefault("fp32", float_op("fp32", has_weight))
    floats = tuple(known[name] for name in FLOAT_PRECISIONS if name in known)
    offered = _offered(options, MODES_OF[approach])

    demands = merge(rules, has_weight)
    where = f"op {key[0]!r} of type {key[1]!r} (approach {approach!r})"
    quantized, floats, reason = _narrow(offered, floats, demands, approach, where)
    if not quantized and not reason:
        reason = _why_float(offered, options, approach, excluded_precisions)
    if reduce_range:
        quantized = tuple(_reduce(option) for option in quantized)
    return AdmittedOptions(quantized, floats, reason)


def _offered(options: Sequence[OpScheme], modes: Sequence[str]) -> tuple[OpScheme, ...]:
    """The quantized options of ``modes``, in that order; with the input in float the mode makes no difference."""
    found: dict[OpScheme, OpScheme] = {}
    for option in (o for mode in modes for o in options if o.mode == mode):
        found.setdefault(option if option.activation else replace(option, mode=modes[0]), option)
    return tuple(found.values())


def _narrow(
    offered: tuple[OpScheme, ...], floats: tuple[OpScheme, ...], demands: Sequence[Demand], approach: str, where: str
) -> tuple[tuple[OpScheme, ...], tuple[OpScheme, ...], str]:
    about_dtype = [d for d in demands if d.field in DTYPE_FIELDS]
    others = [d for d in demands if d.field not in DTYPE_FIELDS]
    for demand in about_dtype:
        _check(demand, offered + floats, where)
    quantized = tuple(o for o in offered if all(d.admits(o) for d in about_dtype))
    if not any(d.tensor == "weight" for d in about_dtype):
        # a rule about the activation alone does not change the precision of the weight, where that can be had
        quantized = _default_precision(quantized, approach) or (quantized if about_dtype else ())
    asked_floats = tuple(f for f in floats if all(d.admits(f) for d in about_dtype))
    if about_dtype and not quantized:
        if not asked_floats:
            raise _impossible(about_dtype, offered, where)
        return (), asked_floats, str(about_dtype[-1].rule)
    if any(d.names_float for d in about_dtype):
        floats = asked_floats or floats
    for demand in others:
        if quantized:
            _check(demand, quantized, where)
    narrowed = tuple(o for o in quantized if all(d.admits(o) for d in others))
    if quantized and not narrowed:
        raise _impossible(demands, quantized, where)
    return narrowed, floats, ""


def _check(demand: Demand, options: Sequence[OpScheme], where: str) -> None:
    """Each value a rule asks for must be one that some option has."""
    admitted = list(dict.fromkeys(v for o in options for v in demand.values_in(o) if v is not None))
    strange = [value for value in demand.values if value not in admitted]
    if strange:
        raise CapabilityError(
            f"{demand.rule} asks {where} for {demand.tensor} {demand.field} {listed(strange)}, "
            f"which the framework YAML does not admit there; it admits: {listed(admitted) or 'nothing'}"
        )


def _impossible(demands: Sequence[Demand], options: Sequence[OpScheme], where: str) -> CapabilityError:
    asked = "; ".join(f"{d.tensor} {d.field} {listed(d.values)} ({d.rule})" for d in demands)
    fields = list(dict.fromkeys((d.tensor, d.field) for d in demands))
    combinations = dict.fromkeys(
        ", ".join(f"{tensor} {field} {field_value(o, tensor, field)!r}" for tensor, field in fields) for o in options
    )
    return CapabilityError(
        f"{where} cannot have this combination: {asked}. "
        f"The framework YAML admits: {' | '.join(combinations) or 'nothing'}"
    )


def _default_precision(options: tuple[OpScheme, ...], approach: str) -> tuple[OpScheme, ...]:
    """The options used without a rule: 8-bit integers; weight-only, the weight type that is listed first."""
    if approach == "weight_only":
        return tuple(o for o in options if o.weight and options[0].weight and o.weight.dtype == options[0].weight.dtype)
    eight = tuple(o for o in options if _is_8bit(o.weight) and _is_8bit(o.activation))
    signed = tuple(o for o in eight if o.weight is None or o.weight.dtype == dtype("int8"))
    return signed or eight


def _is_8bit(tensor: TensorScheme | None) -> bool:
    return tensor is None or (tensor.dtype.is_integer and tensor.dtype.bits == 8)


def _excluded(option: OpScheme, names: Sequence[str]) -> bool:
    """An op without a weight computes in the precision of its input, for which uint8 is a spelling of int8."""
    precision = option.precision
    return precision in names or (option.weight is None and precision.removeprefix("u") in names)


def _reduce(option: OpScheme) -> OpScheme:
    """One bit less on 8-bit weights; on activations too it would cost far more, and the kernels need it on one side only."""
    return replace(option, weight=reduced(option.weight)) if option.weight and _is_8bit(option.weight) else option


def _why_float(offered: Sequence[OpScheme], options: Sequence[OpScheme], approach: str, excluded: Sequence[str]) -> str:
    if offered:
        names = listed(dict.fromkeys(o.precision for o in offered))
        return f"no int8 capability; name another data type in a rule to use it: {names}"
    modes = list(dict.fromkeys(o.mode for o in options if not o.is_float))
    if modes:
        return f"no capability for approach {approach!r}, only for {listed(modes)}"
    return (
        f"no quantized precision left by excluded_precisions {listed(excluded)}"
        if excluded
        else "no quantized capability"
    )
