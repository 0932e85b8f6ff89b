"""Pruning, distillation and search by the names of the 2.x API, out of scope: an import from here says so."""

from __future__ import annotations


def __getattr__(name: str) -> object:
    # Python asks for the path where something below is imported.
    if name.startswith("__") and name != "__path__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise ImportError(
        f"{__name__} is not here: this toolkit quantizes models, and pruning, distillation and architecture search are out "
        "of its scope"
    )
