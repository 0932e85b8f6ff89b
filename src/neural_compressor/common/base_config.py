"""Bases of configurations by the names of the 3.x API.

There ``BaseConfig`` is the base of the configurations of one algorithm and ``ComposableConfig`` a sum of several; elsewhere
here these are :class:`~neural_compressor.config.ComposableConfig` and :class:`~neural_compressor.config.ComposedConfig`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from neural_compressor.config import composition
from neural_compressor.config.composable import ComposableConfig as BaseConfig
from neural_compressor.config.composed import ComposedConfig as ComposableConfig
from neural_compressor.config.composition import CONFIGS, Composition
from neural_compressor.errors import ConfigError

__all__ = ["BaseConfig", "ComposableConfig", "ConfigRegistry", "config_registry", "register_config"]

C = TypeVar("C", bound="type[Composition]")


def register_config(framework_name: str, algo_name: str, priority: float = 0) -> Callable[[C], C]:
    """Decorator that makes a class the configuration of an algorithm."""
    if priority:
        raise ConfigError(
            f"register_config: got priority={priority!r}; configurations are tried in the order of config_set, leave it out"
        )
    return composition.register_config(framework_name, algo_name)


class ConfigRegistry:
    """The configuration classes of the frameworks that are imported."""

    def get_cls_configs(self) -> dict[str, dict[str, type[Composition]]]:
        """Classes by framework and algorithm."""
        found: dict[str, dict[str, type[Composition]]] = {}
        for key in CONFIGS:
            framework, _, name = key.rpartition(".")
            if framework:
                found.setdefault(framework, {})[name] = CONFIGS[key]
        return found

    def get_all_config_cls_by_fwk_name(self, fwk_name: str) -> list[type[Composition]]:
        """Classes of one framework."""
        return list(self.get_cls_configs().get(fwk_name, {}).values())


config_registry = ConfigRegistry()
