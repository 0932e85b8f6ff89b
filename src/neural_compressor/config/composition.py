"""Base of one configuration and of a sum of several; the classes there are, and what frameworks know of models."""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isabstract
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from neural_compressor.config.base import ConfigModel, named_fields
from neural_compressor.config.op_selector import Assignment, assign, type_names
from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry
from neural_compressor.schemes import OpKey

if TYPE_CHECKING:
    from typing_extensions import Self

    from neural_compressor.config.composable import ComposableConfig

C = TypeVar("C", bound="type[Composition]")
Ops = Mapping[str, "str | type"]
"""The ops of a model by name, each with its class or the name of its class."""

_LOG = logging.getLogger(__name__)


class Composition(ConfigModel):
    """What one configuration and a sum of several have in common."""

    framework: ClassVar[str] = ""
    name: ClassVar[str] = ""

    @property
    @abstractmethod
    def parts(self) -> tuple[ComposableConfig, ...]:
        """The configurations of one algorithm each."""

    @property
    def every(self) -> list[Any]:
        """The parts, each with the configurations of its rules behind it."""
        return [each for part in self.parts for each in (part, *(rule.config for rule in part.local))]

    @property
    @abstractmethod
    def identity(self) -> str:
        """The same for configurations that do the same, however they are spelled."""

    @abstractmethod
    def expand(self) -> Sequence[Composition]:
        """The single configurations of the space that list-valued parameters span."""

    def assign(self, ops: Ops, in_float: Mapping[OpKey, str] | None = None) -> dict[str, Assignment[ComposableConfig]]:
        """What :meth:`resolve` gives, with the rule that decided about each op; ``in_float`` as :func:`assign` reads it."""
        claims = [part.claims() for part in self.parts]
        given = assign([claim for of_part in claims for claim in of_part], type_names(ops), in_float)
        won = {id(assignment.claim) for assignment in given.values()}
        for part, of_part in zip(self.parts, claims, strict=True):
            if ops and of_part and not any(id(claim) in won for claim in of_part):
                _LOG.warning("%r applies to no op: other parts of the sum take all it asks for", part)
        return given

    def resolve(self, ops: Ops) -> dict[str, ComposableConfig | None]:
        """The configuration of each op, without rules; None for an op that no configuration claims.

        A rule that matches none of ``ops`` is an error, and so is a configuration that spans a space.
        """
        return {name: assignment.config for name, assignment in self.assign(ops).items()}

    def to_config_mapping(
        self, config_list: Sequence[Composition] | None = None, model_info: Sequence[tuple[str, str]] = ()
    ) -> dict[tuple[str, str], ComposableConfig | None]:
        """The configuration of each op in ``model_info``, pairs of name and type: this one's, or that of ``config_list``."""
        config: Composition = self
        for number, each in enumerate(config_list or ()):
            config = each if number == 0 else config + each
        found = config.resolve(dict(model_info))
        return {(name, kind): found[name] for name, kind in model_info}

    def to_json_string(self) -> str:
        """The settings as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __add__(self, other: Composition) -> Composition:
        from neural_compressor.config.composed import sum_of

        return sum_of(self.parts + other.parts) if isinstance(other, Composition) else NotImplemented

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Read what ``to_dict`` writes; the class it says must be this one or a child of it."""
        if not isinstance(config_dict, Mapping):
            return super().from_dict(config_dict)
        fields = dict(config_dict)
        kind: Any = CONFIGS[str(fields.pop("config"))] if "config" in fields else cls
        if isabstract(kind):
            raise ConfigError(
                f"got {dict(config_dict)!r}, whose 'config' should say which configuration it is; known: "
                f"{', '.join(CONFIGS)}"
            )
        if not issubclass(kind, cls):
            raise ConfigError(f"{cls.__name__} cannot be read from the settings of a {kind.__name__}")
        read: Self = kind(**kind._read(named_fields(kind, fields)))
        return read

    @classmethod
    def _read(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """The arguments that ``fields`` of a dict stand for."""
        return _with_rules(cls, fields)


def _with_rules(kind: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """``fields`` with local rules as a list, also where they are as ``{"global": {...}, "local": {"fc1": {...}}}``."""
    shared, rules = fields.get("global", {}), fields.get("local")
    if "global" not in fields and not isinstance(rules, Mapping):
        return fields
    if not isinstance(shared, Mapping) or not isinstance(rules or {}, Mapping):
        raise ConfigError(f"{kind.__name__}.from_dict: got {fields!r}, expected global and local to be mappings")
    rest = {name: value for name, value in fields.items() if name not in ("global", "local")}
    local = [_local_rule(kind, op, each) for op, each in (rules or {}).items()]
    return {**rest, **named_fields(kind, shared), "local": local}


def _local_rule(kind: Any, op: Any, said: Any) -> dict[str, Any]:
    """A rule for the op that is its key, or that it names itself; of ``kind``, or of what it says."""
    if not isinstance(said, Mapping):
        raise ConfigError(
            f"{kind.__name__}.from_dict: the local rule for {op!r} is {said!r}, expected parameters by name"
        )
    fields = dict(said)
    named = fields.pop("op", op)
    return {"op": named, "config": Composition.from_dict(fields) if "config" in fields else kind.from_dict(fields)}


CONFIGS: Registry[type[Composition]] = Registry("configuration", entry_point_group="neural_compressor.configs")
"""Configuration classes by framework and algorithm, as in ``torch.rtn``: what a file says it holds."""


def register_config(framework: str, name: str) -> Callable[[C], C]:
    """Decorator that makes a class the configuration of the algorithm ``name`` in ``framework``."""

    def register(cls: C) -> C:
        cls.framework, cls.name = framework, name
        CONFIGS.add(f"{framework}.{name}", cls)
        return cls

    return register


@dataclass(frozen=True)
class FrameworkQueries:
    """What a framework knows: ``ops(model)`` by name with their types, and the configurations worth tuning over."""

    ops: Callable[[Any], Mapping[str, str]]
    tuning_set: Callable[[], Sequence[Composition]]


FRAMEWORK_QUERIES: Registry[FrameworkQueries] = Registry("framework")
"""By the framework of a configuration."""
PROCESSORS = ("client", "server")


def ops_of(framework: str, model: Any) -> list[tuple[str, str]]:
    """The ops of a model that can be quantized: pairs of name and type."""
    return list(FRAMEWORK_QUERIES[framework].ops(model).items())


def check_processor(processor_type: Any) -> None:
    """Refuse a kind of processor that there is not; those that there are have the same defaults."""
    known = isinstance(processor_type, str) and processor_type.lower() in PROCESSORS
    if not (known or processor_type is None):
        raise ConfigError(f"processor_type: got {processor_type!r}, expected one of {', '.join(PROCESSORS)}, or None")
