"""Quantize ONNX models: static, dynamic and weight-only, under a configuration or tuned to keep a promise."""

from neural_compressor.errors import MissingDependencyError
from neural_compressor.onnx.quantization.deferred_import import deferred

try:
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401

    # It imports sympy for arithmetic on symbolic shapes, which is not done here: a quarter of a second and 33 MiB.
    with deferred("sympy", "onnx_ir._symbolic_shapes"):
        import onnx_ir  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        f"{error}; install what ONNX models need with: pip install 'open-neural-compressor[onnx]'"
    ) from error

from neural_compressor.onnx.quantization.config import (
    AWQConfig,
    ComposedConfig,
    DynamicQuantConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    TuningConfig,
    get_all_config_set,
)
from neural_compressor.onnx.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from neural_compressor.onnx.quantization.precision import convert_precision
from neural_compressor.onnx.quantization.quant_types import CalibrationMethod, QuantFormat, QuantType
from neural_compressor.onnx.quantization.quantize import quantize
from neural_compressor.onnx.quantization.tuning import autotune
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader

__all__ = [
    "AWQConfig",
    "CalibrationDataReader",
    "CalibrationMethod",
    "ComposedConfig",
    "DynamicQuantConfig",
    "GPTQConfig",
    "HQQConfig",
    "MatMulNBitsQuantizer",
    "QuantFormat",
    "QuantType",
    "RTNConfig",
    "SmoothQuantConfig",
    "StaticQuantConfig",
    "TuningConfig",
    "autotune",
    "convert_precision",
    "get_all_config_set",
    "quantize",
]
