"""What can be done to a model before it becomes objects, and takes a fraction of the time there."""

from __future__ import annotations

import onnx

LEAST_OPSET = 13
"""The oldest that is worked on: from here on scales may differ along an axis."""
RAISED_OPSET = 14
"""What older models are raised to: from here on hard swish is an op, and conversion takes its time only once."""
_EXTERNAL = onnx.TensorProto.EXTERNAL


class EarlyPasses:
    """Lifts the constants of a graph, raises its opset and infers shapes; those written in the file are not trusted.

    ``inferred`` says afterwards that this went well. What did not is left as it was, for whoever can say why.
    """

    def __init__(self) -> None:
        self.inferred = False

    def __call__(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """``model``, which is used up, or a new one; initializers may come without data."""
        if model.functions:  # which are inlined first
            return model
        _lift_constants(model.graph)
        try:
            raised = _raised(model)
            _forget_shapes(raised.graph)
            inferred = onnx.shape_inference.infer_shapes(raised, data_prop=True)
        except (RuntimeError, ValueError):
            return model
        self.inferred = True
        return inferred


def _raised(model: onnx.ModelProto) -> onnx.ModelProto:
    version = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
    if version >= LEAST_OPSET:
        return model
    if any(tensor.data_location == _EXTERNAL for tensor in model.graph.initializer):
        raise ValueError("conversion does not carry external data")
    return onnx.version_converter.convert_version(model, RAISED_OPSET)


def _lift_constants(graph: onnx.GraphProto) -> None:
    """Make initializers of the Constant nodes that hold a tensor; an output of the graph keeps its node."""
    kept, outputs = [], {output.name for output in graph.output}
    for node in graph.node:
        is_tensor = node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value"
        if not is_tensor or node.domain not in ("", "ai.onnx") or node.output[0] in outputs:
            kept.append(node)
            continue
        tensor = graph.initializer.add()
        tensor.CopyFrom(node.attribute[0].t)
        tensor.name = node.output[0]
    if len(kept) < len(graph.node):
        others = onnx.GraphProto(node=kept)
        graph.ClearField("node")
        graph.node.MergeFrom(others.node)


def _forget_shapes(graph: onnx.GraphProto) -> None:
    graph.ClearField("value_info")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _forget_shapes(attribute.g)
