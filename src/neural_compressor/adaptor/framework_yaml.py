"""The framework YAML: which precisions, modes and tensor schemes each op type of a framework can run with.

A file is a list of entries, one a range of framework versions::

    - version: {name: ['2.6', '2.7']}      # or one string; 'default' is for every version not named
      fp32: ['*']                          # a precision with the op types that run in it
      int8:                                # a quantized precision: mode, op type, tensors
        static:
          Conv2d:
            weight: {dtype: [int8], scheme: [sym], granularity: [per_channel], algorithm: [minmax]}
            activation: {dtype: [uint8], scheme: [asym], granularity: [per_tensor], algorithm: [minmax, kl]}

The same may be written in sections: ``precisions`` (``names``, ``valid_mixed_precisions``), ``ops`` (op types by
precision), ``capabilities`` (quantized precisions) and ``patterns`` (op sequences that are fused, by precision).

Where a framework runs models in several ways, an entry may say which it is for: ``backends`` names devices or execution
providers, ``formats`` the forms a quantized model can have. Without them it is for all. ``recipes`` are what this
backend needs whether the user asks for it or not.

A key may stand deeper than the key above it, whose value is complete: ``int4`` below ``fp32: ['*']`` is beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from neural_compressor.adaptor.tensor_options import ANY, OpConfig, fail, read_op_config, shown
from neural_compressor.adaptor.yaml_text import read_yaml
from neural_compressor.dtypes import DTYPES
from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of
from neural_compressor.registry import close_matches

MODES = ("static", "dynamic", "weight_only")
_SECTIONS = ("version", "backends", "formats", "recipes", "precisions", "ops", "capabilities", "patterns")
_WEIGHT_ONLY_INTEGER = "weight_only_integer"


@dataclass(frozen=True)
class Entry:
    """One entry of a framework YAML, both spellings read into the same shape."""

    versions: tuple[str, ...] = ("default",)
    precisions: tuple[str, ...] = ()
    valid_mixed_precisions: tuple[str, ...] = ()
    op_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    capabilities: Mapping[str, Mapping[str, Mapping[str, OpConfig]]] = field(default_factory=dict)
    patterns: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    backends: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    recipes: Mapping[str, Any] = field(default_factory=dict)

    def is_for(self, backend: str | None, quant_format: str | None) -> bool:
        """Whether the entry speaks of that backend and that format; None asks for any."""
        asked = ((backend, self.backends), (quant_format, self.formats))
        return all(name is None or not names or name in names for name, names in asked)

    def overlaid(self, other: Entry) -> Entry:
        """This entry with ``other`` laid over it: precision by precision, mode by mode, op type by op type."""
        capabilities = {p: {m: dict(ops) for m, ops in modes.items()} for p, modes in self.capabilities.items()}
        op_types = {**self.op_types, **other.op_types}
        for precision, modes in other.capabilities.items():
            for mode, ops in modes.items():
                capabilities.setdefault(precision, {}).setdefault(mode, {}).update(ops)
                if precision in op_types:
                    op_types[precision] = tuple(dict.fromkeys((*op_types[precision], *ops)))
        return Entry(
            versions=self.versions,
            precisions=tuple(dict.fromkeys(self.precisions + other.precisions)),
            valid_mixed_precisions=tuple(dict.fromkeys(self.valid_mixed_precisions + other.valid_mixed_precisions)),
            op_types=op_types,
            capabilities=capabilities,
            patterns={**self.patterns, **other.patterns},
            backends=self.backends,
            formats=self.formats,
            recipes={**self.recipes, **other.recipes},
        )


def read_entries(path: str | Path) -> list[Entry]:
    """The entries of the file at ``path``; a file that is one mapping is one entry, by default for every version."""
    path = path_of(path, "framework YAML")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"framework YAML {path} does not exist; give the path of an existing file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"framework YAML {path} cannot be read: {error}") from error
    return list(_entries_in(text, path))


@lru_cache(maxsize=16)  # an adaptor asks several times, and parsing takes longer than quantizing a small model
def _entries_in(text: str, path: Path) -> tuple[Entry, ...]:
    try:
        data = read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"framework YAML {path} is not valid YAML: {error}") from error
    if isinstance(data, Mapping):
        data = [{"version": {"name": "default"}, **data}]
    if not isinstance(data, list) or not data:
        raise ConfigError(f"framework YAML {path} holds {_kind(data)}; a list of entries, or one mapping, is expected")
    return tuple(_read_entry(entry, f"{path}: entry {number}") for number, entry in enumerate(data, 1))


def _read_entry(data: Any, where: str) -> Entry:
    _require(data, Mapping, where)
    if "version" not in data:
        fail(where, "has no 'version'; write  version: {name: 'default'}  or the framework versions it is for")
    versions = _read_versions(data["version"], f"{where}: version.name")
    where = f"{where} (version {', '.join(versions)})"

    precisions = _require(data.get("precisions") or {}, Mapping, f"{where}: precisions")
    for key in precisions:
        if key not in ("names", "valid_mixed_precisions"):
            fail(f"{where}: precisions.{key}", "is unknown; known: names, valid_mixed_precisions")
    blocks = {str(key): value for key, value in data.items() if key not in _SECTIONS}
    op_types = {key: value for key, value in blocks.items() if not isinstance(value, Mapping)}
    capabilities = {key: value for key, value in blocks.items() if isinstance(value, Mapping)}
    for section, direct in (("ops", op_types), ("capabilities", capabilities)):
        listed = _require(data.get(section) or {}, Mapping, f"{where}: {section}")
        for key in listed.keys() & direct.keys():
            fail(f"{where}: {key}", f"stands both in '{section}' and directly in the entry; write it once")
        direct.update(listed)
    patterns = _require(data.get("patterns") or {}, Mapping, f"{where}: patterns")
    recipes = _require(data.get("recipes") or {}, Mapping, f"{where}: recipes")
    return Entry(
        versions=versions,
        precisions=_names(precisions.get("names", []), f"{where}: precisions.names", known_precision=True),
        valid_mixed_precisions=_names(
            precisions.get("valid_mixed_precisions", []), f"{where}: precisions.valid_mixed_precisions"
        ),
        op_types={_precision(p, where): _names(types, f"{where}: {p}") for p, types in op_types.items()},
        capabilities={
            _precision(p, where): _read_modes(p, modes, f"{where}: {p}") for p, modes in capabilities.items()
        },
        patterns={
            _precision(p, where): _read_patterns(found, f"{where}: patterns.{p}") for p, found in patterns.items()
        },
        backends=_names(data.get("backends", []), f"{where}: backends"),
        formats=_names(data.get("formats", []), f"{where}: formats"),
        recipes={str(name): value for name, value in recipes.items()},
    )


def _read_versions(data: Any, where: str) -> tuple[str, ...]:
    names = data.get("name") if isinstance(data, Mapping) else None
    names = [names] if isinstance(names, str) else names
    # YAML reads an unquoted 2.10 as the number 2.1, so numbers cannot be taken for versions.
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        fail(where, f"is {shown(names)}; give a quoted string or a list of them, such as '2.10' or 'default'")
    return tuple(names)


def _read_modes(precision: str, data: Any, where: str) -> dict[str, dict[str, OpConfig]]:
    """``{mode: {op type: config}}``; op types written directly under the precision are of its natural mode."""
    _require(data, Mapping, where)
    natural = "weight_only" if precision == _WEIGHT_ONLY_INTEGER else "static"
    modes: dict[str, dict[str, OpConfig]] = {}
    for key, value in data.items():
        if key in MODES:
            _require(value, Mapping, f"{where}.{key}")
            for op_type, config in value.items():
                modes.setdefault(key, {})[str(op_type)] = read_op_config(config, key, f"{where}.{key}.{op_type}")
        elif isinstance(value, Mapping) and ("activation" in value or "weight" in value):
            modes.setdefault(natural, {})[str(key)] = read_op_config(value, natural, f"{where}.{key}")
        else:
            fail(f"{where}.{key}", f"is neither a mode ({', '.join(MODES)}) nor an op type with weight or activation")
    return modes


def _read_patterns(data: Any, where: str) -> tuple[tuple[str, ...], ...]:
    """Patterns as ``'Conv2d + BatchNorm2d + ReLU'`` or as lists of op types."""
    _require(data, list, where)
    found = [item.split("+") if isinstance(item, str) else item for item in data]
    return tuple(_names([str(part).strip() for part in _require(item, list, where)], where) for item in found)


def _names(data: Any, where: str, known_precision: bool = False) -> tuple[str, ...]:
    """A list of strings, or one string with commas."""
    names = [part.strip() for part in data.split(",")] if isinstance(data, str) else data
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        fail(
            where,
            f"is {shown(data)}; a list of names is expected, such as ['Linear', 'Conv2d'], or ['*'] for all op types",
        )
    return tuple(_precision(name, where) if known_precision else name for name in names)


def _precision(name: Any, where: str) -> str:
    if name in (_WEIGHT_ONLY_INTEGER, ANY):
        return str(name)
    if not isinstance(name, str) or name not in DTYPES:
        known = [*DTYPES.names(), _WEIGHT_ONLY_INTEGER, *_SECTIONS]
        fail(where, f"the key {name!r} is neither a precision nor a section; {close_matches(str(name), known)}")
    return DTYPES[name].name


def _require(data: Any, kind: type, where: str) -> Any:
    if not isinstance(data, kind):
        fail(where, f"is {_kind(data)}; a {'list' if kind is list else 'mapping'} is expected")
    return data


def _kind(data: Any) -> str:
    return "nothing" if data is None else f"a {type(data).__name__}"
