"""Whether an execution provider computes an operator, found out by giving it the operator."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx
import onnx_ir as ir
import onnxruntime as ort

from neural_compressor.onnx.files.scratch import raise_if_full, scratch_folder
from neural_compressor.onnx.graph.op_signature import signature

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
