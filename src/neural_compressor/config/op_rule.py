"""Rules of a user about ops: ``op_type_dict`` and ``op_name_dict``, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from neural_compressor.adaptor.tensor_options import SCHEMES
from neural_compressor.config.validators import as_list, group_size, text, whole_between, word
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.name_pattern import NamePattern
from neural_compressor.registry import close_matches
from neural_compressor.schemes import GRANULARITIES, OpKey
from neural_compressor.schemes.scheme import MODES

TENSORS = ("weight", "activation")
DTYPE_FIELDS = ("dtype", "bits")
"""The fields that say in which precision an op computes."""

Values = tuple[Any, ...]

_FIELDS: dict[str, Callable[[Any], Any]] = {
    "dtype": text,
    "bits": whole_between(1, 16, "bits"),
    "scheme": word(SCHEMES),
    "granularity": word(GRANULARITIES),
    "group_size": group_size,
    "algorithm": lambda value: text(value).lower(),
    "quant_mode": word(MODES[:3]),
}
"""The fields of a tensor that a rule may speak of, each with the validator of its values."""


@dataclass(frozen=True)
class OpRule:
    """What one entry of a rule dict asks of the ops it matches.

    ``constraints`` lists ``(tensor, field, admitted values)``. The key is a name, or a regular expression matched whole:

    >>> rule = read_rules("op_name_dict", {"fc1": {"weight": {"dtype": "int4"}}})[0]
    >>> rule.matches("fc1"), rule.matches("fc10")
    (True, False)
    >>> rule.constraints
    (('weight', 'dtype', ('int4',)),)
    """

    source: str
    key: str
    constraints: tuple[tuple[str, str, Values], ...]

    def matches(self, text: str) -> bool:
        """Whether the key is ``text``, or matches the whole of it."""
        return NamePattern.of(self.key).matches(text)

    @property
    def names_dtype(self) -> bool:
        """Whether the rule says in which precision the op computes."""
        return any(field in DTYPE_FIELDS for _, field, _ in self.constraints)

    def __str__(self) -> str:
        return f"{self.source} rule {self.key!r}"


def read_rules(source: str, rules: Mapping[str, Any] | None) -> tuple[OpRule, ...]:
    """The rules of the dict called ``source``, in its order; a malformed one is an error that names it."""
    if rules is None:
        return ()
    if not isinstance(rules, Mapping):
        raise ConfigError(f"{source} is {rules!r}, expected a dict of rules by op")
    return tuple(_read_rule(source, key, rule) for key, rule in rules.items())


def named_alone(keys: Iterable[OpKey], type_rules: Iterable[OpRule], name_rules: Iterable[OpRule]) -> set[OpKey]:
    """Those of ``keys`` that a rule speaks of which matches no op of another type."""
    keys = list(keys)
    matches = [
        *([key for key in keys if rule.matches(key[1])] for rule in type_rules),
        *([key for key in keys if rule.matches(key[0])] for rule in name_rules),
    ]
    return {key for found in matches if len({kind for _, kind in found}) == 1 for key in found}


def rule_dict(source: str) -> Any:
    """A validator for the field called ``source``."""

    def check(value: Any) -> dict[str, Any]:
        read_rules(source, value)
        return {key: {t: _as_lists(fields) for t, fields in rule.items()} for key, rule in (value or {}).items()}

    return check


def _as_lists(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A plain copy that is equal to itself after a trip through JSON."""
    return {field: list(value) if isinstance(value, tuple) else value for field, value in fields.items()}


def _read_rule(source: str, key: Any, rule: Any) -> OpRule:
    where = f"{source}[{key!r}]"
    if not isinstance(key, str):
        raise ConfigError(f"{where}: the key is a {type(key).__name__}, expected a string")
    try:
        NamePattern.of(key)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not isinstance(rule, Mapping) or not rule:
        raise ConfigError(f"{where} is {rule!r}, expected {{'weight': {{...}}, 'activation': {{...}}}}")
    constraints: list[tuple[str, str, Values]] = []
    for tensor, fields in rule.items():
        if tensor not in TENSORS:
            raise ConfigError(f"{where} has a part {tensor!r}; {close_matches(str(tensor), TENSORS)}")
        if not isinstance(fields, Mapping) or not fields:
            raise ConfigError(f"{where}[{tensor!r}] is {fields!r}, expected a dict such as {{'dtype': ['int8']}}")
        constraints += _read_fields(f"{where}[{tensor!r}]", tensor, fields)
    return OpRule(source, key, tuple(constraints))


def _read_fields(where: str, tensor: str, fields: Mapping[str, Any]) -> list[tuple[str, str, Values]]:
    for field in fields:
        if field == "quant_mode" and tensor == "weight":
            raise ConfigError(f"{where} has 'quant_mode', which is a field of the activation: say it there")
        if field not in _FIELDS:
            raise ConfigError(f"{where} has an unknown field {field!r}; {close_matches(str(field), _FIELDS)}")
    read = {field: _read_values(f"{where}[{field!r}]", field, as_list(given)) for field, given in fields.items()}
    if "dtype" in read:
        read["dtype"] = _dtypes(where, read["dtype"], read.pop("bits", None))
    if "group_size" in read and read.get("granularity") == ("per_group",):
        del read["granularity"]  # the sizes say it, and -1 among them is one scale per channel
    return [(tensor, field, values) for field, values in read.items()]


def _read_values(where: str, field: str, values: list[Any]) -> Values:
    if not values:
        raise ConfigError(f"{where} is an empty list; leave the field out to admit everything")
    try:
        return tuple(map(_FIELDS[field], values))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _dtypes(where: str, names: Values, bits: Values | None) -> Values:
    """Data type names in their registered spelling; ``int`` and ``uint`` take their width from ``bits``."""
    found: list[str] = []
    for name in names:
        generic = name in ("int", "uint")
        if generic and bits is None:
            raise ConfigError(f"{where}: dtype {name!r} needs 'bits', or name the width as in '{name}8'")
        for spelled in [f"{name}{width}" for width in bits or ()] if generic else [name]:
            try:
                kind = dtype(spelled)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
            if bits is not None and kind.bits not in bits:
                raise ConfigError(
                    f"{where}: dtype {spelled!r} has {kind.bits} bits, and 'bits' says {', '.join(map(str, bits))}"
                )
            found.append(kind.name)
    return tuple(dict.fromkeys(found))
