"""Types that operators and kernels of an execution provider take, as the installed runtime lists or shows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort
import onnxruntime.capi.onnxruntime_pybind11_state as runtime

from neural_compressor.onnx.files.scratch import scratch_folder
from neural_compressor.onnx.runtime.providers import provider_runs
from neural_compressor.paths import raise_if_full

_COPIES = ("MemcpyFromHost", "MemcpyToHost")
"""What the runtime puts between devices."""


def computes(
    node: ir.Node, versions: Mapping[str, int], provider: str, variables: Collection[str], kind: ir.DataType
) -> bool:
    """Whether a session of ``provider`` alone takes ``node`` with ``variables`` of its operator standing for ``kind``.

    The runtime makes up for a missing kernel with casts, which do not count.
    """
    model = _alone(node, versions, variables, kind)
    if model is None:
        return False
    with scratch_folder() as folder:
        path = folder / "taken.onnx"
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = str(path)
        if provider != "CPUExecutionProvider":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        try:
            ort.InferenceSession(model.SerializeToString(), options, providers=[provider], enable_fallback=0)
        except Exception:  # noqa: BLE001 - the runtime's errors share no other base class
            raise_if_full(folder, model.ByteSize())
            return False
        taken = onnx.load(path)
    return [each.op_type for each in taken.graph.node if each.op_type not in _COPIES] == [node.op_type]


def _alone(
    node: ir.Node, versions: Mapping[str, int], variables: Collection[str], kind: ir.DataType
) -> onnx.ModelProto | None:
    """A model of ``node`` only, whose inputs are given from outside; None where the type of one is not known."""
    types = signature(node, versions)
    if types is None:
        return None
    proto = ir.serde.serialize_node(node)
    inputs = []
    for place, value in enumerate(node.inputs):
        if value is None:
            continue
        dtype = kind if types.inputs[place] in variables else value.dtype
        if dtype is None:
            return None
        proto.input[place] = f"x{place}"
        shape = None if value.shape is None else [None] * len(value.shape)
        inputs.append(onnx.helper.make_tensor_value_info(f"x{place}", dtype.value, shape))
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output if name]
    graph = onnx.helper.make_graph([proto], "probe", inputs, outputs)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


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
