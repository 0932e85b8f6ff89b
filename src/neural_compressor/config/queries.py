"""What programs ask of a configuration besides its fields: what it changes, which ops get it, what there is to tune over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from neural_compressor.config.base import plain
from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry

if TYPE_CHECKING:
    from typing_extensions import Self

    from neural_compressor.config.composable import ComposableConfig


@dataclass(frozen=True)
class FrameworkQueries:
    """What a framework knows: ``ops(model)`` by name with their types, and the configurations worth tuning over."""

    ops: Callable[[Any], Mapping[str, str]]
    tuning_set: Callable[[], Sequence[Composition]]


FRAMEWORK_QUERIES: Registry[FrameworkQueries] = Registry("framework")
"""By the framework of a configuration."""


class ConfigQueries(Composition):
    """The questions that the 3.x API has as methods of a configuration."""

    params_list: ClassVar[list[str]] = []
    """The names of its parameters."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.params_list = [name for name in cls.model_fields if name not in ("white_list", "local")]

    def to_diff_dict(self) -> dict[str, Any]:
        """The parameters that differ from their defaults."""
        return {name: plain(value) for name, (value, _) in self.changed(*self.params_list).items()}

    def to_config_mapping(
        self, config_list: Sequence[Composition] | None = None, model_info: Sequence[tuple[str, str]] = ()
    ) -> dict[tuple[str, str], ComposableConfig | None]:
        """The configuration of each op in ``model_info``, pairs of name and type: of this one or of a sum."""
        config: Composition = self
        for number, each in enumerate(config_list or ()):
            config = each if number == 0 else config + each
        found = config.resolve(dict(model_info))
        return {(name, kind): found[name] for name, kind in model_info}

    @classmethod
    def get_model_info(cls, model: Any) -> list[tuple[str, str]]:
        """The ops of a model that can be quantized: pairs of name and type."""
        return list(_queries(cls).ops(model).items())

    @classmethod
    def get_config_set_for_tuning(cls) -> list[Self]:
        """The configurations of this class that are worth trying; the default one where there is no better list."""
        return [each for each in _queries(cls).tuning_set() if type(each) is cls] or [cls()]

    @classmethod
    def get_predefined_configs(cls) -> dict[str, Self]:
        """The defaults by kind of processor. Kernels are chosen by what the machine has, so that they do the same."""
        return {kind: cls() for kind in PROCESSORS}


PROCESSORS = ("client", "server")


def check_processor(processor_type: str | None) -> None:
    """Refuse a kind of processor that there is not; those that there are have the same defaults."""
    if processor_type is not None and str(processor_type).lower() not in PROCESSORS:
        raise ConfigError(f"processor_type: got {processor_type!r}, expected one of {', '.join(PROCESSORS)}, or None")


def _queries(cls: type[Composition]) -> FrameworkQueries:
    return FRAMEWORK_QUERIES[cls.framework]
