"""One function for each algorithm, as existing programs call them. All are :func:`quantize`, which returns the model."""

from __future__ import annotations

from typing import Any

import onnx

from neural_compressor.onnx.quantization import quantize

__all__ = [
    "awq_quantize_entry",
    "dynamic_quantize_entry",
    "gptq_quantize_entry",
    "rtn_quantize_entry",
    "smooth_quant_entry",
    "static_quantize_entry",
]


def _entry(model: Any, quant_config: Any, calibration_data_reader: Any = None) -> onnx.ModelProto:
    """The model quantized as ``quant_config`` says."""
    new = quantize(model, None, quant_config, calibration_data_reader=calibration_data_reader)
    assert new is not None  # it is written to a file only where one is named
    return new


rtn_quantize_entry = gptq_quantize_entry = awq_quantize_entry = _entry
static_quantize_entry = dynamic_quantize_entry = smooth_quant_entry = _entry
