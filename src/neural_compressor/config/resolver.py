"""The resolver: what a front asks of an op, against what the framework can run, gives the schemes the op may take."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from neural_compressor.adaptor.capability import FLOAT_PRECISIONS
from neural_compressor.algorithms import needs_data
from neural_compressor.config.op_options import op_options
from neural_compressor.config.op_request import FIELDS, Constraint, Request, field_value
from neural_compressor.config.op_rule import DTYPE_FIELDS
from neural_compressor.config.validators import listed
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CapabilityError
from neural_compressor.schemes import OpKey, OpScheme, TensorScheme, float_op, reduced


@dataclass(frozen=True)
class OpSpace:
    """The schemes one op may take: ``quantized`` ones best first, then ``floats`` (bf16, fp16, fp32 as admitted).

    ``reason`` says why there is no quantized one.
    """

    quantized: tuple[OpScheme, ...]
    floats: tuple[OpScheme, ...]
    reason: str = ""

    @property
    def default(self) -> OpScheme:
        """The best quantized scheme, or the float one where there is none."""
        return self.quantized[0] if self.quantized else self.floats[-1]

    @cached_property
    def options(self) -> tuple[OpScheme, ...]:
        """Everything the op may run with."""
        return self.quantized + self.floats

    def in_precision(self, name: str) -> OpScheme | None:
        """The float option of that precision, if admitted."""
        return next((s for s in self.floats if s.precision == name), None)

    def nearest(self, key: OpKey, wanted: OpScheme) -> tuple[OpScheme | None, str]:
        """The scheme nearest to what was ``wanted`` of the op ``key``, or None and the reason."""
        if wanted.is_float:
            return self.in_precision(wanted.precision), f"the framework YAML lists no {key[1]} in {wanted.precision}"
        return (self.quantized[0], "") if self.quantized else (None, self.reason)


def resolve(
    capability: Mapping[str, Any], requests: Mapping[OpKey, Request | str], named: Collection[OpKey] = ()
) -> dict[OpKey, OpSpace]:
    """The schemes of each op of ``capability['opwise']``, as its request admits them; one without a request is left out.

    A request that is a string is the reason why the op stays in float. ``capability['in_float_unless_named']`` has by mode
    the op types, or single ops, that compute in float unless they are among ``named``, with the reason: what they may have
    is a quantized weight.
    """
    float_reasons: Mapping[str, Mapping[Any, str]] = capability.get("in_float_unless_named", {})
    # Ops of a type mostly have equal configs: one space object for all of them.
    shared: dict[Any, OpSpace] = {}
    spaces: dict[OpKey, OpSpace] = {}
    for key, request in requests.items():
        configs = capability["opwise"][key]
        if isinstance(request, str):
            spaces[key] = replace(op_space(key, configs, Request()), quantized=(), reason=request)
            continue
        against = {} if key in named else _reasons_against(key, float_reasons)
        alike = repr(configs), repr(against), request
        if alike not in shared:
            shared[alike] = _computing_in_float(op_space(key, configs, request), against)
        spaces[key] = shared[alike]
    return spaces


def op_space(key: OpKey, configs: Sequence[Mapping[str, Any]], request: Request) -> OpSpace:
    """The schemes of the op ``key``: what its capability ``configs`` and the ``request`` have in common.

    Rules that name only quantized types leave float as what tuning may fall back to.

    >>> int8 = {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "quant_mode": "static"}}
    >>> op_space(("fc", "Linear"), [int8], Request()).default.precision
    'int8'
    """
    excluded = request.excluded_precisions
    options = [option for option in op_options(configs, request.named) if not _excluded(option, excluded)]
    known = {s.precision: s for s in options if s.is_float and s.activation and s.activation.dtype.name == s.precision}
    has_weight = any(option.weight is not None for option in options)
    known.setdefault("fp32", float_op("fp32", has_weight))
    floats = tuple(known[name] for name in FLOAT_PRECISIONS if name in known)
    offered = _offered(options, request.modes)
    if not request.has_data and ("weight", "algorithm") not in request.named:
        offered = tuple(option for option in offered if option.method is None or not needs_data(option.method))

    asked = {getattr(constraint.source, "key", None) for constraint in request.constraints}
    if not offered and asked and not asked & {None, *key}:
        # A pattern may match ops of which there is no quantized form; a rule for this op or type alone may not.
        return OpSpace((), floats, _why_float(offered, options, request))
    where = f"op {key[0]!r} of type {key[1]!r} (approach {'/'.join(request.modes)!r})"
    quantized, floats, reason = _narrow(offered, floats, request, where)
    if not quantized and not reason:
        reason = _why_float(offered, options, request)
    if request.wanted is not None:
        quantized = _nearest_first(quantized, request.wanted, request.left_open)
    if request.reduce_range:
        quantized = tuple(_reduce(option) for option in quantized)
    return OpSpace(quantized, floats, reason)


def _reasons_against(key: OpKey, float_reasons: Mapping[str, Mapping[Any, str]]) -> dict[str, str]:
    """By mode why an op computes in float, said of it or of its type."""
    found = {mode: told.get(key, told.get(key[1], "")) for mode, told in float_reasons.items()}
    return {mode: why for mode, why in found.items() if why}


def _computing_in_float(op: OpSpace, against: Mapping[str, str]) -> OpSpace:
    """``op`` less its schemes of integer arithmetic in the modes that there is a reason ``against``."""
    dropped = [
        scheme
        for scheme in op.quantized
        if scheme.mode in against and (scheme.activation is not None or scheme.mode == "weight_only")
    ]
    kept = tuple(scheme for scheme in op.quantized if scheme not in dropped)
    if not dropped:
        return op
    why = "" if kept else f"{against[dropped[0].mode]}; a rule that speaks of it has it quantized"
    return replace(op, quantized=kept, reason=why)


def _nearest_first(
    options: Sequence[OpScheme], wanted: OpScheme, left_open: Collection[tuple[str, str]]
) -> tuple[OpScheme, ...]:
    """The options in the order of how close they come to what is ``wanted``, each with what only that can say.

    One scale a channel is not given up for a data type nobody asked for; then an option that has all the data types and
    signs wanted goes before others, and these keep their order but for the fields in which they can come closer.
    """

    def differs(option: OpScheme, *names: str) -> int:
        tensors = [t for t in ("weight", "activation") if getattr(wanted, t) is not None]
        places = [(tensor, name) for tensor in tensors for name in names if (tensor, name) not in left_open]
        return sum(field_value(option, *place) != field_value(wanted, *place) for place in places)

    def distance(option: OpScheme) -> tuple[int, ...]:
        grain = wanted.weight is not None and option.weight is not None
        coarse = grain and field_value(option, "weight", "granularity") != field_value(wanted, "weight", "granularity")
        return int(coarse), int(differs(option, "dtype", "scheme") > 0), differs(option, *FIELDS)

    return tuple(_completed(option, wanted) for option in sorted(options, key=distance))


def _completed(option: OpScheme, wanted: OpScheme) -> OpScheme:
    """``option`` with what no capability lists: options of the method, how scales are stored, a bit less, roundings."""
    weight, activation, method = option.weight, option.activation, option.method
    if weight is not None and wanted.weight is not None:
        own = wanted.weight
        weight = replace(weight, scales=own.scales, zeros=own.zeros, rounding=own.rounding)
        weight = reduced(weight) if own.reduce_range else weight
        weight = replace(weight, scaling=own.scaling) if weight.dtype == own.dtype else weight
    if activation is not None and wanted.activation is not None:
        activation = replace(activation, rounding=wanted.activation.rounding)
        if activation.dtype == wanted.activation.dtype:
            activation = replace(activation, scaling=wanted.activation.scaling)
    if wanted.method is not None and (method is None or method.name == wanted.method.name):
        method = wanted.method
    return replace(option, weight=weight, activation=activation, method=method, output=wanted.output)


def _offered(options: Sequence[OpScheme], modes: Sequence[str]) -> tuple[OpScheme, ...]:
    """The quantized options of ``modes``, in that order; with the input in float the mode makes no difference."""
    found: dict[OpScheme, OpScheme] = {}
    for option in (o for mode in modes for o in options if o.mode == mode):
        found.setdefault(option if option.activation else replace(option, mode=modes[0]), option)
    return tuple(found.values())


def _narrow(
    offered: tuple[OpScheme, ...], floats: tuple[OpScheme, ...], request: Request, where: str
) -> tuple[tuple[OpScheme, ...], tuple[OpScheme, ...], str]:
    constraints = request.constraints
    about_dtype = [d for d in constraints if d.field in DTYPE_FIELDS]
    others = [d for d in constraints if d.field not in DTYPE_FIELDS]
    for constraint in about_dtype:
        _check(constraint, offered + floats, where)
    quantized = tuple(o for o in offered if all(d.admits(o) for d in about_dtype))
    eight_bits = request.wanted is None or all(map(_is_8bit, (request.wanted.weight, request.wanted.activation)))
    if eight_bits and not any(d.tensor == "weight" for d in about_dtype):
        # a rule about the activation alone does not change the precision of the weight, where that can be had
        quantized = _default_precision(quantized, request.modes) or (quantized if about_dtype else ())
    asked_floats = tuple(f for f in floats if all(d.admits(f) for d in about_dtype))
    if about_dtype and not quantized:
        if not asked_floats:
            raise _impossible(about_dtype, offered, where)
        return (), asked_floats, str(about_dtype[-1].source)
    if any(d.names_float for d in about_dtype):
        floats = asked_floats or floats
    for constraint in others:
        if quantized:
            _check(constraint, quantized, where)
    narrowed = tuple(o for o in quantized if all(d.admits(o) for d in others))
    if quantized and not narrowed:
        raise _impossible(constraints, quantized, where)
    return narrowed, floats, ""


def _check(constraint: Constraint, options: Sequence[OpScheme], where: str) -> None:
    """Each value a rule asks for must be one that some option has."""
    admitted = list(dict.fromkeys(v for o in options for v in constraint.values_in(o) if v is not None))
    strange = [value for value in constraint.values if value not in admitted]
    if strange:
        raise CapabilityError(
            f"{constraint.source} asks {where} for {constraint.tensor} {constraint.field} {listed(strange)}, "
            f"which the framework YAML does not admit there; it admits: {listed(admitted) or 'nothing'}"
        )


def _impossible(constraints: Sequence[Constraint], options: Sequence[OpScheme], where: str) -> CapabilityError:
    asked = "; ".join(f"{d.tensor} {d.field} {listed(d.values)} ({d.source})" for d in constraints)
    fields = list(dict.fromkeys((d.tensor, d.field) for d in constraints))
    combinations = dict.fromkeys(
        ", ".join(f"{tensor} {field} {field_value(o, tensor, field)!r}" for tensor, field in fields) for o in options
    )
    return CapabilityError(
        f"{where} cannot have this combination: {asked}. "
        f"The framework YAML admits: {' | '.join(combinations) or 'nothing'}"
    )


def _default_precision(options: tuple[OpScheme, ...], modes: Sequence[str]) -> tuple[OpScheme, ...]:
    """The options used without a rule: 8-bit integers; weight-only, the weight type that is listed first."""
    if modes == ("weight_only",):
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


def _why_float(offered: Sequence[OpScheme], options: Sequence[OpScheme], request: Request) -> str:
    excluded = request.excluded_precisions
    if offered:
        names, approach = listed(dict.fromkeys(o.precision for o in offered)), "/".join(request.modes)
        eight = (o for o in options if not o.is_float and _is_8bit(o.weight) and _is_8bit(o.activation))
        elsewhere = dict.fromkeys(o.mode for o in eight if o.mode not in request.modes)
        only = f", only for {listed(elsewhere)}" if elsewhere else ""
        return (
            f"no int8 capability for approach {approach!r}{only}; name another data type in a rule to use it: {names}"
        )
    modes = list(dict.fromkeys(o.mode for o in options if not o.is_float))
    if modes:
        return f"no capability for approach {'/'.join(request.modes)!r}, only for {listed(modes)}"
    return (
        f"no quantized precision left by excluded_precisions {listed(excluded)}"
        if excluded
        else "no quantized capability"
    )
