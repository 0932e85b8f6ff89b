"""Calibration data."""

from neural_compressor.onnx.data_reader import CalibrationDataReader

__all__ = ["CalibrationDataReader"]
