"""Base of every configuration class: clear errors, and the way to and from dicts and JSON files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of
from neural_compressor.registry import close_matches
from neural_compressor.validation import explain

C = TypeVar("C", bound="ConfigModel")


class ConfigModel(BaseModel):
    """Validated settings: an unknown field or value is a :class:`ConfigError`, on assignment too."""

    model_config = ConfigDict(
        extra="forbid", validate_assignment=True, arbitrary_types_allowed=True, protected_namespaces=()
    )

    def __init__(self, *args: Any, **values: Any) -> None:
        if args:
            name = next(iter(type(self).model_fields))
            raise ConfigError(
                f"{type(self).__name__} takes fields by name, as in {name}=..., and got {args[0]!r} without"
            )
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, type(self).__name__, "field", type(self).model_fields)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        before = dict(self.__dict__)
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            self.__dict__.update(before)  # pydantic checks how fields fit each other after it has changed the one
            raise ConfigError(explain(error, type(self).__name__, "field", type(self).model_fields)) from None

    def changed(self, *names: str) -> dict[str, tuple[Any, Any]]:
        """``{name: (value, default)}`` of those fields among ``names`` that this class has and that were changed."""
        fields = type(self).model_fields
        pairs = {
            name: (getattr(self, name), fields[name].get_default(call_default_factory=True))
            for name in names
            if name in fields
        }
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def to_dict(self) -> dict[str, Any]:
        """The settings as nested dicts and lists; values without a plain form (example inputs) stay as they are."""
        return {name: plain(getattr(self, name)) for name in type(self).model_fields}

    @classmethod
    def from_dict(cls: type[C], config_dict: Mapping[str, Any]) -> C:
        """Read what :meth:`to_dict` writes; fields that are absent take their defaults."""
        if not isinstance(config_dict, Mapping):
            raise ConfigError(f"{cls.__name__}.from_dict expects a mapping, got {type(config_dict).__name__}")
        return cls(**named_fields(cls, config_dict))

    def to_json_file(self, filename: str | os.PathLike[str]) -> None:
        """Write the settings to a JSON file."""
        data = self.to_dict()
        for name, value in data.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"{type(self).__name__}.{name} cannot be written to JSON ({error}); "
                    "leave it out of the file and set it in the program"
                ) from None
        file = path_of(filename, "filename")
        try:
            file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the configuration file {str(file)!r}: {error}") from error

    @classmethod
    def from_json_file(cls: type[C], filename: str | os.PathLike[str]) -> C:
        """Read what :meth:`to_json_file` writes."""
        file = path_of(filename, "filename")
        try:
            data = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=_each_once)
        except OSError as error:
            raise ConfigError(f"cannot read the configuration file {str(file)!r}: {error}") from error
        # A file nested too deeply runs out of stack before it is found to be wrong.
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{str(file)!r} is not a JSON file of settings: {error}") from error
        return cls.from_dict(data)


def named_fields(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in ``data``, whose names have to be strings."""
    for name in data:
        if not isinstance(name, str):
            raise ConfigError(f"{model.__name__} has no field {name!r}; {close_matches(str(name), model.model_fields)}")
    return dict(data)


def named_arguments(
    model: type[BaseModel], order: Sequence[str], args: tuple[Any, ...], values: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments of a call by name; those in ``args``, without one, are in this ``order``."""
    if len(args) > len(order):
        raise ConfigError(
            f"{model.__name__} takes {len(order)} parameters without a name, got {len(args)}: {', '.join(order)}"
        )
    named = dict(zip(order, args, strict=False))
    if twice := sorted(named.keys() & values.keys()):
        raise ConfigError(f"{model.__name__} got {', '.join(twice)} twice, with and without the name")
    return {**named, **values}


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; of a name written twice JSON would silently keep the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return found


def either(conf: Any, config: Any, function: str, names: tuple[str, str] = ("conf", "config")) -> Any:
    """The configuration that a function takes by two ``names``, as programs use both.

    >>> either(None, "settings", "fit")
    'settings'
    """
    if conf is not None and config is not None:
        raise ConfigError(f"{function} got its configuration twice, as {names[0]!r} and as {names[1]!r}")
    return config if conf is None else conf


def plain(value: Any) -> Any:
    """``value`` as nested dicts and lists; what has no plain form stays as it is."""
    if isinstance(value, ConfigModel):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
