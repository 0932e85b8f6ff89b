"""Pruning, distillation and search by the names of the 2.x API, out of scope: an import from here says so."""

from __future__ import annotations

# Python asks for the path where something below is imported. Other names are asked for by tools too.
_NAMES = ("__path__", "callbacks", "distillation", "hpo", "pruner")


def __getattr__(name: str) -> object:
    if name in _NAMES or name[:1].isupper():
        raise ImportError(
            f"{__name__} is not here: this toolkit quantizes models, and pruning, distillation and architecture search are "
            "out of its scope"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
