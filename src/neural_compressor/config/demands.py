"""What the rules about one op demand, once merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neural_compressor.config.op_rule import DTYPE_FIELDS, OpRule, Values
from neural_compressor.config.words import FLOAT_PRECISIONS
from neural_compressor.schemes import OpScheme, PerChannel, PerGroup


@dataclass(frozen=True)
class Demand:
    """A field of a tensor of an op and the values it may have, with the rule that says so."""

    tensor: str
    field: str
    values: Values
    rule: OpRule

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


def field_value(option: OpScheme, tensor: str, field: str) -> Any:
    """The value that a field of a rule has in ``option``."""
    if field == "quant_mode":
        return option.mode
    scheme = option.weight if tensor == "weight" else option.activation
    if scheme is None:
        return "fp32" if field == "dtype" else None
    if field == "algorithm" and tensor == "weight" and option.method is not None:
        return option.method.name
    if field == "group_size":
        group = scheme.granularity
        return group.size if isinstance(group, PerGroup) else -1 if isinstance(group, PerChannel) else None
    return {
        "dtype": scheme.dtype.name,
        "bits": scheme.dtype.bits,
        "scheme": "sym" if scheme.symmetric else "asym",
        "granularity": scheme.granularity.name,
        "algorithm": scheme.algorithm,
    }[field]


def merge(rules: Sequence[OpRule], has_weight: bool = True) -> tuple[Demand, ...]:
    """The demands of ``rules`` on one op, later rules over earlier ones.

    The data types of weight and activation are one decision: a rule that names either starts it afresh. An op without a
    weight has nothing a weight rule could apply to, except that a weight asked for in float keeps the op in float.
    """
    merged: dict[tuple[str, str], Demand] = {}
    for rule in rules:
        if rule.names_dtype:
            merged = {place: demand for place, demand in merged.items() if demand.field not in DTYPE_FIELDS}
        for tensor, field, values in rule.demands:
            merged[tensor, field] = Demand(tensor, field, values, rule)
    demands = list(merged.values())
    if not has_weight:
        demands = [demand for d in demands for demand in _without_weight(d, merged)]
    return tuple(demands)


def _without_weight(demand: Demand, merged: dict[tuple[str, str], Demand]) -> list[Demand]:
    if demand.tensor == "activation":
        return [demand]
    floats = tuple(value for value in demand.values if value in FLOAT_PRECISIONS)
    if demand.field == "dtype" and floats == demand.values and ("activation", "dtype") not in merged:
        return [Demand("activation", "dtype", floats, demand.rule)]
    return []
