"""Weights and activations of ops by name, as ``inspect_tensor`` of every adaptor gives them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neural_compressor.errors import ConfigError
from neural_compressor.paths import write_errors
from neural_compressor.registry import close_matches

INSPECT_TYPES = ("activation", "weight", "all")


def inspected(
    kind: str,
    ops: Sequence[Any],
    known: Collection[str],
    usual: Sequence[str],
    weights: Callable[[str], Mapping[str, Any]],
    activations: Callable[[list[str]], list[dict[str, Any]]],
) -> dict[str, Any]:
    """``{'weight': {op: {name: array}}, 'activation': [{op: {'output0': array}}, ...]}``, or the one that ``kind`` is.

    ``ops`` are names, or pairs of name and type, of those that are ``known``; none stand for the ``usual`` ones. Of an op
    without ``weights`` nothing is listed; ``activations`` are those of all ops, iteration by iteration.
    """
    if kind not in INSPECT_TYPES:
        raise ConfigError(f"unknown inspect_type {kind!r}; {close_matches(str(kind), INSPECT_TYPES)}")
    names = [op[0] if isinstance(op, tuple | list) else op for op in ops] or list(usual)
    for name in names:
        if name not in known:
            raise ConfigError(f"no op is called {name!r}; {close_matches(str(name), known)}")
    found: dict[str, Any] = {}
    if kind != "activation":
        arrays = {name: weights(name) for name in names}
        found["weight"] = {name: tensors for name, tensors in arrays.items() if tensors}
    if kind != "weight":
        found["activation"] = activations(names)
    return found


def save_inspected(found: Mapping[str, Any], workspace: Path) -> None:
    """Write what :func:`inspected` gave into the workspace, as one file of arrays."""
    folder = workspace / "inspect_saved"
    flat = {f"weight/{op}/{n}": a for op, arrays in found.get("weight", {}).items() for n, a in arrays.items()}
    for index, ops in enumerate(found.get("activation", []), start=1):
        flat |= {f"activation{index}/{op}/{n}": a for op, arrays in ops.items() for n, a in arrays.items()}
    with write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "inspect_result.npz", **flat)
