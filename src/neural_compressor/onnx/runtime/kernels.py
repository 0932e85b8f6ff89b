"""Which types an execution provider has kernels for, as the installed runtime tells or shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import onnx_ir as ir
import onnxruntime as ort
import onnxruntime.capi.onnxruntime_pybind11_state as runtime

from neural_compressor.onnx.runtime.kernel_probe import computes
from neural_compressor.onnx.runtime.providers import provider_runs

Kernel = tuple[tuple[int, int], Mapping[str, Collection[str]]]
"""The operator versions it is for, and the types that the variables of the operator may stand for."""
_NO_LIBRARY = ("CPUExecutionProvider", "AzureExecutionProvider")
"""Providers that are part of the runtime itself."""


def has_kernel(
    node: ir.Node, versions: Mapping[str, int], provider: str, variables: Collection[str], kind: ir.DataType
) -> bool:
    """Whether ``provider`` computes ``node`` with the type variables ``variables`` of its operator standing for ``kind``.

    A provider of which nothing can be known here is taken to have all kernels.
    """
    if not _can_list():
        return not provider_runs(provider) or _probed(node, versions, provider, frozenset(variables), kind)
    known = _kernels(provider)
    if not known:
        return True
    domain = "" if node.domain == "ai.onnx" else node.domain
    version, wanted = versions.get(domain, 1), f"tensor({kind.name.lower()})"
    return any(
        first <= version <= last and all(wanted in types.get(name, (wanted,)) for name in variables)
        for (first, last), types in known.get((domain, node.op_type), ())
    )


@cache
def _can_list() -> bool:
    """Whether kernels can be listed: the runtime crashes where the library of a provider it was built with is missing."""
    return all(name in _NO_LIBRARY for name in ort.get_available_providers())


_seen: dict[tuple[object, ...], bool] = {}


def _probed(
    node: ir.Node, versions: Mapping[str, int], provider: str, variables: frozenset[str], kind: ir.DataType
) -> bool:
    types = tuple(None if value is None else value.dtype for value in node.inputs)
    key = (node.domain, node.op_type, versions.get(node.domain, 1), types, len(node.outputs), provider, variables, kind)
    if key not in _seen:
        _seen[key] = computes(node, versions, provider, variables, kind)
    return _seen[key]


@cache
def _kernels(provider: str) -> dict[tuple[str, str], list[Kernel]]:
    found: dict[tuple[str, str], list[Kernel]] = {}
    for kernel in _every_kernel():
        if kernel.provider == provider:
            key = ("" if kernel.domain == "ai.onnx" else kernel.domain, kernel.op_name)
            found.setdefault(key, []).append((tuple(kernel.version_range), dict(kernel.type_constraints)))
    return found


@cache
def _every_kernel() -> tuple[Any, ...]:
    return tuple(runtime.get_all_opkernel_def())
