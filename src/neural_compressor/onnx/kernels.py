"""Which types an execution provider has kernels for, as the installed runtime tells."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import onnx_ir as ir
import onnxruntime.capi.onnxruntime_pybind11_state as runtime

Kernel = tuple[tuple[int, int], Mapping[str, Collection[str]]]
"""The operator versions it is for, and the types that the variables of the operator may stand for."""


def has_kernel(
    node: ir.Node, versions: Mapping[str, int], provider: str, variables: Collection[str], kind: ir.DataType
) -> bool:
    """Whether ``provider`` computes ``node`` with the type variables ``variables`` of its operator standing for ``kind``.

    A provider whose kernels the runtime here does not list, such as one that compiles graphs, is taken to have them all.
    """
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
