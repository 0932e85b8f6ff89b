"""Calibration data."""

from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader

__all__ = ["CalibrationDataReader"]
