"""Models brought into the form that the rest works on: opset, shapes, names, constants as initializers.

:class:`EarlyPasses` does what it can on the protobuf message, before onnx_ir objects exist, in a fraction of the time.

Initializers that a model lists as inputs too, so that callers may give others in their place, are constants while it is
worked on, as a weight must be to be quantized. Those that no change has touched are inputs again in the result. Models of
IR 3 had to list every initializer: there it means nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from neural_compressor.errors import FormatError
from neural_compressor.onnx.files.model_file import initializers, read_model
from neural_compressor.onnx.files.quantization_record import read_record

logger = logging.getLogger("neural_compressor")

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


_KEPT_BYTES = 1024
"""Weights up to this size are shown to the converter of opsets and to shape inference: shapes and axes are among them."""


def normalised(model: Any) -> ir.Model:
    """A path or model, read and with the names that its ops have in plans, as a quantized one has them already."""
    found = read_model(model)
    return found if read_record(found) is not None else normalise(found.clone())


def normalise(model: ir.Model, least_opset: int = LEAST_OPSET, inferred: bool = False) -> ir.Model:
    """``model`` changed in place, computing the same: functions inlined, constants as initializers, all nodes named.

    Shapes written in the file are not trusted, since exporters leave wrong ones: they are inferred anew, unless they were
    ``inferred`` already. Initializers that are graph inputs become constants, until they are restored.
    """
    if model.functions:
        common.InlinePass()(model)
    hide_overridable(model)
    model = raise_opset(model, least_opset)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.NameFixPass()(model)  # names that are unique stay
    if not inferred:
        infer_shapes(model)
    return model


def opset(model: ir.Model) -> int:
    """The version of the standard operators that the model uses."""
    return int(model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1)))


def raise_opset(model: ir.Model, least: int) -> ir.Model:
    """``model``, or the same at opset ``least`` or a later one where it is older."""
    if opset(model) >= least:
        return model
    least = max(least, RAISED_OPSET)
    proto, held = _without_large(model)
    try:
        converted = onnx.version_converter.convert_version(proto, least)
    except (RuntimeError, ValueError) as error:
        raise FormatError(
            f"the model is of opset {opset(model)} and cannot be raised to {least}, which its quantization needs: {error}"
        ) from error
    new = ir.from_proto(converted)
    for value in [v for v in new.graph.inputs if v.name in held]:
        new.graph.inputs.remove(value)
        value.const_value = held[str(value.name)]
        new.graph.register_initializer(value)
    return new


def infer_shapes(model: ir.Model) -> None:
    """Types and shapes of all values, from the inputs on; those that cannot be known stay unknown."""
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if not value.is_graph_output():
                value.shape, value.type = None, None
    try:
        inferred = onnx.shape_inference.infer_shapes(_without_large(model)[0], data_prop=True)
    except (RuntimeError, ValueError) as error:
        logger.warning("the shapes of the model cannot be inferred, and stay unknown: %s", error)
        return
    _take_shapes(model.graph, inferred.graph)


def _take_shapes(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Take over what ``inferred``, the same graph in protobuf, knows of its values."""
    known = {info.name: info for info in (*inferred.value_info, *inferred.output)}
    for node, same in zip(graph, inferred.node, strict=True):
        for value in node.outputs:
            if value.name in known:
                ir.serde.deserialize_value_info_proto(known[value.name], value)
        for attribute in same.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _take_shapes(node.attributes[attribute.name].as_graph(), attribute.g)


def _without_large(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """The model's proto with large weights as inputs, and these by name."""
    held = {v: t for v, t in initializers(model) if v.graph is model.graph and t.nbytes > _KEPT_BYTES}
    for value in held:
        value.const_value = None
        model.graph.initializers.pop(str(value.name))
        model.graph.inputs.append(value)
    try:
        return ir.to_proto(model), {str(value.name): tensor for value, tensor in held.items()}
    finally:
        for value, tensor in held.items():
            model.graph.inputs.remove(value)
            value.const_value = tensor
            model.graph.register_initializer(value)


_KEY = "neural_compressor.overridable_inputs"
_FIRST_OPTIONAL = 4
"""The IR version from which on an initializer need not be an input."""


def hide_overridable(model: ir.Model) -> None:
    """Make constants of initializers that are inputs, and note them among the metadata."""
    found = [value for value in model.graph.inputs if value.is_initializer()]
    optional = (model.ir_version or 0) >= _FIRST_OPTIONAL
    model.ir_version = max(model.ir_version or 0, _FIRST_OPTIONAL)
    if not found:
        return
    if optional:
        model.metadata_props[_KEY] = json.dumps({str(value.name): _state(value) for value in found})
    common.RemoveInitializersFromInputsPass()(model)


def restore_overridable(model: ir.Model) -> None:
    """Make inputs again of those that are as they were; the others are told."""
    try:
        noted = json.loads(model.metadata_props.pop(_KEY, "{}"))
    except ValueError:  # a foreign file may have anything under this key
        return
    if not isinstance(noted, dict):
        return
    lost = []
    for name, state in noted.items():
        value = model.graph.initializers.get(name)
        if value is not None and _state(value) == state:
            model.graph.inputs.append(value)
        else:
            lost.append(name)
    if lost:
        logger.info("%s can no longer be given as inputs: they are weights now", lost)


def _state(value: ir.Value) -> list[str]:
    """What stays the same where nothing was done to a constant: its data and the types of the nodes that read it."""
    tensor = value.const_value
    assert tensor is not None
    users = sorted(use.node.op_type for use in value.uses())
    return [str(tensor.dtype), str(tensor.shape), hashlib.sha256(tensor.tobytes()).hexdigest(), *users]
