"""Samples checked against the inputs of a model before the runtime sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.runtime.data_reader import as_array
from neural_compressor.registry import close_matches


def feeds(model: ir.Model, sample: Mapping[str, Any], number: int) -> dict[str, np.ndarray]:
    """The arrays of sample ``number`` by input name; what does not fit the model is an error that says what would."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name in sample:
        if name not in inputs:
            raise CalibrationError(f"sample {number} has an input {name!r}; {close_matches(str(name), inputs)}")
    missing = [name for name in inputs if name not in sample]
    if missing:
        raise CalibrationError(f"sample {number} lacks the inputs {missing}; it has {sorted(sample)}")
    return {name: _fitting(value, sample[name], number) for name, value in inputs.items()}


def _fitting(value: ir.Value, given: Any, number: int) -> np.ndarray:
    where = f"input {value.name!r} of sample {number}"
    array = as_array(given, str(value.name), number)
    if value.dtype is not None and value.dtype != ir.DataType.STRING and array.dtype != value.dtype.numpy():
        raise CalibrationError(f"{where} is {array.dtype}, and the model takes {value.dtype.numpy()}")
    if value.shape is None:
        return array
    # Exporters write -1 for a size that is not fixed.
    wanted = [dim if isinstance(dim, int) and dim >= 0 else None for dim in value.shape]
    if len(wanted) != array.ndim or any(w not in (None, g) for w, g in zip(wanted, array.shape, strict=True)):
        shape = ", ".join("any" if size is None else str(size) for size in wanted)
        raise CalibrationError(f"{where} has shape {array.shape}, and the model takes ({shape})")
    return array
