"""Initializers that a model lists as inputs too, so that callers may give others in their place.

They are constants while a model is worked on, as a weight must be to be quantized. Those that no change has touched are
inputs again in the result. Models of IR 3 had to list every initializer: there it means nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging

import onnx_ir as ir
from onnx_ir.passes import common

logger = logging.getLogger("neural_compressor")
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
