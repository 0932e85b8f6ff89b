"""Signatures of nodes: the types that inputs and outputs may have, from the definition of the operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime.capi.onnxruntime_pybind11_state as runtime


@dataclass(frozen=True)
class Signature:
    """The type of each input and output of a node: one type, or the name of a variable and the types it admits.

    Inputs and outputs with the same variable have the same type.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    admitted: Mapping[str, frozenset[str]]


def signature(node: ir.Node, versions: Mapping[str, int]) -> Signature | None:
    """The signature of ``node`` under the operator ``versions`` of its model; None where its operator is not known."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema = _schema(domain, node.op_type, versions.get(domain, 1))
    if schema is None:
        return None
    inputs, outputs = _types(schema.inputs, len(node.inputs)), _types(schema.outputs, len(node.outputs))
    if inputs is None or outputs is None:
        return None
    admitted = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    return Signature(inputs, outputs, admitted)


@cache
def _schema(domain: str, op_type: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        found = [
            s for s in _runtime_schemas() if (s.domain, s.name) == (domain, op_type) and s.since_version <= version
        ]
        return max(found, key=lambda s: s.since_version, default=None)


@cache
def _runtime_schemas() -> Sequence[Any]:
    return tuple(runtime.get_all_operator_schema())


def _types(parameters: Iterable[Any], count: int) -> tuple[str, ...] | None:
    """The types of ``count`` places; None where the last may repeat with a type of its own each time."""
    formal = list(parameters)
    types = [p.type_str if hasattr(p, "type_str") else p.typeStr for p in formal]
    if formal and formal[-1].option.name == "Variadic":
        if not (formal[-1].is_homogeneous if hasattr(formal[-1], "is_homogeneous") else formal[-1].isHomogeneous):
            return None
        types += types[-1:] * (count - len(types))
    return tuple(types[:count]) if len(types) >= count else None
