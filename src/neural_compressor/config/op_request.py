"""Requests: what rules or configuration classes ask of an op, in one form for the resolver.

Rule dicts of the 2.x API constrain fields, configuration classes of the 3.x APIs want a whole scheme, of which only what the
user set himself is a constraint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neural_compressor.adaptor.capability import FLOAT_PRECISIONS
from neural_compressor.config.op_rule import DTYPE_FIELDS, OpRule, Values
from neural_compressor.schemes import OpScheme, PerChannel, PerGroup
from neural_compressor.schemes.scheme import RANGES

MODES_OF = {
    "static": ("static",),
    "dynamic": ("dynamic",),
    "auto": ("static", "dynamic"),
    "weight_only": ("weight_only",),
}
FIELDS = ("dtype", "scheme", "granularity", "group_size", "algorithm")
"""The fields of a tensor in which schemes are compared."""


@dataclass(frozen=True)
class Constraint:
    """A field of a tensor of an op and the values it may have; ``source`` is who says so, as a message names it."""

    tensor: str
    field: str
    values: Values
    source: object

    @property
    def names_float(self) -> bool:
        """Whether a floating-point precision is among what is asked for."""
        return self.field == "dtype" and any(value in FLOAT_PRECISIONS for value in self.values)

    def values_in(self, option: OpScheme) -> tuple[Any, ...]:
        """The values of the field that ``option`` stands for."""
        if self.field == "dtype" and getattr(option, self.tensor) is None:
            return FLOAT_PRECISIONS  # a tensor that is not quantized has the precision of the model
        value = field_value(option, self.tensor, self.field)
        # Rounding to nearest is what the range alone decides.
        return (value, "minmax") if self.field == "algorithm" and value == "rtn" else (value,)

    def admits(self, option: OpScheme) -> bool:
        """Whether ``option`` has one of the values."""
        return any(value in self.values for value in self.values_in(option))


@dataclass(frozen=True)
class Request:
    """What is asked of one op: ``constraints`` hold, and as far as they leave a choice the op comes close to ``wanted``.

    Fields of ``wanted`` that are ``left_open``, by tensor and field, are the framework's to choose: what it lists first.
    Where neither says which data type a weight has, quantized means int8. ``reduce_range`` takes a bit off 8-bit weights.
    Without data, methods that have to see some are out unless they are asked for.
    """

    modes: tuple[str, ...] = ("static",)
    constraints: tuple[Constraint, ...] = ()
    wanted: OpScheme | None = None
    left_open: tuple[tuple[str, str], ...] = ()
    excluded_precisions: tuple[str, ...] = ()
    reduce_range: bool = False
    has_data: bool = True

    @property
    def named(self) -> dict[tuple[str, str], set[Any]]:
        """The values of fields that it speaks of, by tensor and field: where a capability admits any, it means these."""
        found: dict[tuple[str, str], set[Any]] = {}
        for constraint in self.constraints:
            found.setdefault((constraint.tensor, constraint.field), set()).update(constraint.values)
        if self.wanted is not None:
            for tensor in ("weight", "activation"):
                fields = FIELDS if getattr(self.wanted, tensor) is not None else ()
                for name in (each for each in fields if (tensor, each) not in self.left_open):
                    found.setdefault((tensor, name), set()).add(field_value(self.wanted, tensor, name))
        return {place: values - {None} for place, values in found.items()}


def requested(
    rules: Sequence[OpRule],
    approach: str,
    *,
    has_weight: bool = True,
    excluded_precisions: Sequence[str] = (),
    reduce_range: bool = False,
    has_data: bool = True,
) -> Request:
    """What the ``rules`` that speak of an op ask of it, later ones over earlier ones.

    The data types of weight and activation are one decision: a rule that names either starts it afresh. An op without a
    weight has nothing a weight rule could apply to, except that a weight asked for in float keeps the op in float. What
    only weight-only quantization can follow has the op's weight quantized alone, whatever the approach.
    """
    merged: dict[tuple[str, str], Constraint] = {}
    for rule in rules:
        if rule.names_dtype:
            merged = {place: constraint for place, constraint in merged.items() if constraint.field not in DTYPE_FIELDS}
        for tensor, name, values in rule.constraints:
            merged[tensor, name] = Constraint(tensor, name, values, rule)
    constraints = list(merged.values())
    if not has_weight:
        constraints = [constraint for d in constraints for constraint in _without_weight(d, merged)]
    modes = _modes(merged, MODES_OF[approach]) if has_weight else MODES_OF[approach]
    return Request(modes, tuple(constraints), None, (), tuple(excluded_precisions), reduce_range, has_data)


def wanting(
    wanted: OpScheme,
    said: Mapping[tuple[str, str], Any],
    source: object,
    left_open: tuple[tuple[str, str], ...] = (),
) -> Request:
    """A whole scheme as a configuration class wants it; ``said`` is what of it the user set himself, by tensor and field.

    What is at its default gives way to what the framework has; what the user said and the framework has not is an error.
    What is ``left_open`` is the framework's to choose.
    """
    constraints = tuple(Constraint(*place, (value,), source) for place, value in said.items())
    kept = tuple(constraint for constraint in constraints if getattr(wanted, constraint.tensor) is not None)
    return Request((wanted.mode,), kept, wanted, left_open)


def field_value(option: OpScheme, tensor: str, name: str) -> Any:
    """The value that a field of a rule has in ``option``."""
    if name == "quant_mode":
        return option.mode
    scheme = option.weight if tensor == "weight" else option.activation
    if scheme is None:
        return "fp32" if name == "dtype" else None
    if name == "algorithm" and tensor == "weight" and option.method is not None:
        return option.method.name
    if name == "group_size":
        group = scheme.granularity
        return group.size if isinstance(group, PerGroup) else -1 if isinstance(group, PerChannel) else None
    return {
        "dtype": scheme.dtype.name,
        "bits": scheme.dtype.bits,
        "scheme": "sym" if scheme.symmetric else "asym",
        "granularity": scheme.granularity.name,
        "algorithm": scheme.algorithm,
    }[name]


def _modes(merged: Mapping[tuple[str, str], Constraint], modes: tuple[str, ...]) -> tuple[str, ...]:
    """``modes`` of the approach, or weight-only quantization where a method is asked for that finds weights; that comes last
    where a quantized weight is to stand beside activations in float."""
    method, activation = merged.get(("weight", "algorithm")), merged.get(("activation", "dtype"))
    if method is not None and not any(value in RANGES for value in method.values):
        return MODES_OF["weight_only"]
    if activation is None or not all(value in FLOAT_PRECISIONS for value in activation.values):
        return modes
    weights = [
        constraint for (tensor, field), constraint in merged.items() if tensor == "weight" and field in DTYPE_FIELDS
    ]
    alone = any(not constraint.names_float for constraint in weights)
    return tuple(dict.fromkeys((*modes, "weight_only"))) if alone else modes


def _without_weight(constraint: Constraint, merged: dict[tuple[str, str], Constraint]) -> list[Constraint]:
    if constraint.tensor == "activation":
        return [constraint]
    floats = tuple(value for value in constraint.values if value in FLOAT_PRECISIONS)
    if constraint.field == "dtype" and floats == constraint.values and ("activation", "dtype") not in merged:
        return [Constraint("activation", "dtype", floats, constraint.source)]
    return []
