"""Sums of configurations."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import PlainValidator

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import CONFIGS, Composition, ops_of
from neural_compressor.config.op_selector import OpNames
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches

if TYPE_CHECKING:
    from typing_extensions import Self

_LOG = logging.getLogger(__name__)


def _parts(value: Any) -> tuple[ComposableConfig, ...]:
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise ConfigError(f"got {value!r}, expected a list of at least two configurations")
    found: list[Any] = [Composition.from_dict(item) if isinstance(item, Mapping) else item for item in value]
    for item in found:
        if not isinstance(item, ComposableConfig):
            raise ConfigError(f"got {item!r}, expected a configuration of one algorithm")
    frameworks = sorted({item.framework for item in found})
    if len(frameworks) > 1:
        raise ConfigError(f"the configurations are for several frameworks ({', '.join(frameworks)}), a model has one")
    return tuple(item.model_copy(deep=True) for item in found)


@CONFIGS.register("composed")
class ComposedConfig(Composition):
    """A sum of configurations, each for the ops it claims.

    A local rule of any of them beats a white list, and a white list beats a configuration for everything. Of two local
    rules, and of two white lists, the later wins; of two configurations for everything the first takes all. So the sum
    of two that have neither rules nor white lists does what the first does, and a warning says so.
    """

    name: ClassVar[str] = "composed"

    configs: Annotated[tuple[ComposableConfig, ...], PlainValidator(_parts)]

    @property
    def parts(self) -> tuple[ComposableConfig, ...]:
        return self.configs

    @property
    def identity(self) -> str:
        return json.dumps([part.identity for part in self.configs])

    def set_local(self, operator_name_or_list: OpNames, config: ComposableConfig) -> Self:
        """Give these ops ``config``, whatever the parts say. Returns this configuration."""
        if not isinstance(config, ComposableConfig):
            raise ConfigError(f"ComposedConfig.set_local: got {config!r}, expected a configuration of one algorithm")
        self.configs = sum_of(
            (*self.configs, type(config)(white_list=[]).set_local(operator_name_or_list, config))
        ).parts
        return self

    def get_model_info(self, model: Any, example_inputs: Any = None) -> list[tuple[str, str]]:
        """As of each part: all are for one framework."""
        return ops_of(self.configs[0].framework, model)

    @property
    def config_list(self) -> list[ComposableConfig]:
        """The parts, by the name that programs know."""
        return list(self.configs)

    def expand(self) -> list[ComposedConfig]:
        """All combinations of the single configurations of the parts, the last part varying fastest; each once."""
        found: dict[str, ComposedConfig] = {}
        for choice in product(*(part.expand() for part in self.configs)):
            single = ComposedConfig(configs=choice)
            found.setdefault(single.identity, single)
        return list(found.values()) if len(found) > 1 else [self]

    def to_dict(self) -> dict[str, Any]:
        """One key an algorithm, or a list of ``configs`` where one is there twice."""
        parts = {part.name: part.to_dict() for part in self.configs if part.name}
        if len(parts) < len(self.configs):
            return {"config": self.name, "configs": [part.to_dict() for part in self.configs]}
        return {"config": self.name, **parts}

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], config_registry: Mapping[str, Any] | None = None) -> Self:
        """Read what :meth:`to_dict` writes; ``config_registry`` has the classes of parts that do not say theirs."""
        if config_registry is not None and isinstance(config_dict, Mapping):
            found = {name: each for name, each in config_dict.items() if name != "config"}
            if unknown := [name for name in found if name not in config_registry]:
                raise ConfigError(
                    f"unknown algorithm {unknown[0]!r}; {close_matches(str(unknown[0]), config_registry)}"
                )
            return cls(configs=tuple(config_registry[name].from_dict(each) for name, each in found.items()))
        return super().from_dict(config_dict)

    @classmethod
    def _read(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if "configs" in fields:
            return fields
        for name, each in fields.items():
            if not isinstance(each, Mapping) or "config" not in each:
                raise ConfigError(
                    f"ComposedConfig.from_dict: {name!r} does not say which configuration it is, as in "
                    "{'config': 'torch.rtn', ...}; or give config_registry, classes by algorithm"
                )
        return {"configs": list(fields.values())}

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.configs))

    __str__ = __repr__


def config_of(given: Any, framework: str) -> Any:
    """The configuration that a user hands over: itself, a list to add up, what ``to_dict`` wrote, or settings by algorithm.

    Anything else comes back as it is.
    """
    if isinstance(given, Mapping) and given:
        if "config" in given:
            return Composition.from_dict(given)
        prefix = f"{framework}."
        known: dict[str, Any] = {n.removeprefix(prefix): CONFIGS[n] for n in CONFIGS if n.startswith(prefix)}
        for name in given:
            if name not in known:
                raise ConfigError(
                    f"quant_config is a dict of settings by algorithm, and {name!r} is none; "
                    f"{close_matches(str(name), known)}"
                )
        return sum_of([known[name].from_dict(each) for name, each in given.items()])
    if isinstance(given, list | tuple) and given:
        each = [config_of(item, framework) for item in given]
        if all(isinstance(item, Composition) for item in each):
            return sum_of([part for item in each for part in item.parts])
    return given


def sum_of(parts: Iterable[ComposableConfig]) -> Composition:
    """The configurations one after the other; neighbours of one class and white list become one.

    That has the parameters which win in a sum: of two for everything the first, of two with a white list the later.
    """
    merged: list[ComposableConfig] = []
    for part in parts:
        last = merged[-1] if merged else None
        if last is not None and type(part) is type(last) and part.white_list == last.white_list:
            kept, other = (last, part) if part.white_list is None else (part, last)
            if part.white_list != () and kept.alone().identity != other.alone().identity:
                _LOG.warning("the parameters of %r apply to no op: %r takes all", other.alone(), kept.alone())
            both = kept.model_copy(deep=True)
            both.local = (*last.local, *part.local)
            merged[-1] = both
        else:
            merged.append(part)
    return merged[0].model_copy(deep=True) if len(merged) == 1 else ComposedConfig(configs=tuple(merged))
