"""Enumerations that agree with those of ONNX Runtime."""

import onnx
import onnxruntime.quantization as ort_quantization
import pytest

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.quantization.quant_types import CalibrationMethod, QuantFormat, QuantType, choice


@pytest.mark.parametrize("kind", [QuantType, QuantFormat, CalibrationMethod], ids=lambda kind: kind.__name__)
def test_names_and_values_are_those_of_the_runtime(kind):
    theirs = getattr(ort_quantization, kind.__name__)
    shared = [member for member in kind if member.name in theirs.__members__]
    assert len(shared) >= 2
    for member in shared:
        assert theirs[member.name].value == member.value
        assert choice(kind)(theirs[member.name]) is member
        assert str(member) == str(theirs[member.name].name)


def test_tensor_types_are_those_of_onnx():
    assert [
        member.tensor_type for member in (QuantType.QInt8, QuantType.QUInt8, QuantType.QUInt16, QuantType.QInt4)
    ] == [
        onnx.TensorProto.INT8,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.UINT16,
        onnx.TensorProto.INT4,
    ]


@pytest.mark.parametrize(
    ("kind", "text", "member"),
    [
        (QuantType, "QUInt8", QuantType.QUInt8),
        (QuantType, "quint8", QuantType.QUInt8),
        (QuantType, "int4", QuantType.QInt4),
        (QuantFormat, "qdq", QuantFormat.QDQ),
        (CalibrationMethod, "kl", CalibrationMethod.Entropy),
        (CalibrationMethod, "MSE", CalibrationMethod.MSE),
    ],
)
def test_strings_are_taken(kind, text, member):
    assert choice(kind)(text) is member


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (QuantType, "QInt9"),
        (QuantType, 1),
        (QuantType, QuantFormat.QDQ),
        (QuantType, ort_quantization.QuantType.QFLOAT8E4M3FN),
        (CalibrationMethod, ort_quantization.CalibrationMethod.Distribution),
        (CalibrationMethod, "QOperator"),
    ],
)
def test_anything_else_is_refused_with_what_is_known(kind, value):
    with pytest.raises(ConfigError, match=next(iter(kind)).name):
        choice(kind)(value)


def test_each_method_has_an_observer():
    assert [member.observer for member in CalibrationMethod] == ["minmax", "kl", "percentile", "mse"]
