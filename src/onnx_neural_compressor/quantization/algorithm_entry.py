"""One function for each algorithm, as existing programs call them. All are :func:`quantize`, and return the model.

They write it too, where ``model_output`` names a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from neural_compressor.onnx.files.model_file import read_model, write_model
from neural_compressor.onnx.quantization import quantize

__all__ = [
    "awq_quantize_entry",
    "dynamic_quantize_entry",
    "gptq_quantize_entry",
    "rtn_quantize_entry",
    "smooth_quant_entry",
    "static_quantize_entry",
]


def _with_data(
    model: Any, quant_config: Any, calibration_data_reader: Any = None, model_output: str | Path | None = None
) -> onnx.ModelProto:
    """The model quantized as ``quant_config`` says."""
    new = quantize(model, None, quant_config, calibration_data_reader=calibration_data_reader)
    assert new is not None  # quantize writes it to a file only where it is told one
    if model_output is not None:
        write_model(read_model(new), model_output)
    return new


def dynamic_quantize_entry(model: Any, quant_config: Any, model_output: str | Path | None = None) -> onnx.ModelProto:
    """The model quantized as ``quant_config``, which takes no data, says."""
    return _with_data(model, quant_config, None, model_output)


rtn_quantize_entry = gptq_quantize_entry = awq_quantize_entry = _with_data
static_quantize_entry = smooth_quant_entry = _with_data
