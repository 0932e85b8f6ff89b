"""The configuration of an export from PyTorch to ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.validators import names, whole_between, word
from neural_compressor.errors import ConfigError

_RECIPE = "QDQ_OP_FP32_BIAS"


def _quant_format(value: Any) -> str:
    if value in ("QLinear", "QLinearOps", "QOperator"):
        raise ConfigError(
            f"got {value!r}: quantized ops are written as float ops between QuantizeLinear and DequantizeLinear ('QDQ'), "
            "which ONNX Runtime fuses to integer kernels; for other nodes quantize the float ONNX model with "
            "quant_format='QOperator'"
        )
    return word(("QDQ",))(value)


def _dynamic_axes(value: Any) -> dict[str, Any] | None:
    if value is None or (isinstance(value, Mapping) and all(isinstance(name, str) for name in value)):
        return None if value is None else dict(value)
    raise ConfigError(f"got {value!r}, expected {{name: {{axis: name of its size}}}}")


def _recipe(value: Any) -> str:
    if value in (None, _RECIPE):
        return _RECIPE
    raise ConfigError(f"got {value!r}, expected {_RECIPE!r}: biases stay in float32, as the runtime rounds them itself")


class Torch2ONNXConfig(ConfigModel):
    """How ``export`` of a model writes an ONNX file.

    ``dtype`` says what the model is: ``"int8"`` a quantized one, ``"fp32"`` a float one. ``example_inputs`` show how it is
    called, and are those of ``fit`` where there were any. By default the first axis of inputs and outputs may have any size,
    and inputs are called as ``forward`` calls them.

    >>> Torch2ONNXConfig(dtype="int8", opset_version=14, quant_format="QDQ").opset_version
    14
    """

    dtype: Annotated[str, BeforeValidator(word(("int8", "fp32")))] = "int8"
    opset_version: Annotated[int, BeforeValidator(whole_between(13, 20))] = 17
    quant_format: Annotated[str, BeforeValidator(_quant_format)] = "QDQ"
    example_inputs: Any = None
    input_names: Annotated[list[str], BeforeValidator(names)] = Field(default_factory=list)
    output_names: Annotated[list[str], BeforeValidator(names)] = Field(default_factory=list)
    dynamic_axes: Annotated[dict[str, Any] | None, BeforeValidator(_dynamic_axes)] = None
    recipe: Annotated[str, BeforeValidator(_recipe)] = _RECIPE
