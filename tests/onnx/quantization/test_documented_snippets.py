"""The documented calls, as they are printed."""

import onnx
import pytest

from neural_compressor.errors import CalibrationError

STATIC = """
from onnx_neural_compressor.quantization import quantize, config
from onnx_neural_compressor import data_reader


class DataReader(data_reader.CalibrationDataReader):
    def get_next(self): ...

    def rewind(self): ...


calibration_data_reader = DataReader()  # only needed by StaticQuantConfig
qconfig = config.StaticQuantConfig(calibration_data_reader)  # or qconfig = DynamicQuantConfig()
quantize(model, q_model_path, qconfig)
"""

RULES = """
fp32_config = config.GPTQConfig(weight_dtype="fp32")
quant_config = config.GPTQConfig(
    weight_bits=4,
    weight_dtype="int",
    weight_sym=False,
    weight_group_size=32,
)
quant_config.set_local("/h.4/mlp/fc_out/MatMul", fp32_config)
"""


def test_a_reader_as_printed_has_no_data_and_that_is_said(mlp, tmp_path):
    with pytest.raises(CalibrationError, match="no samples"):
        exec(STATIC, {"model": mlp, "q_model_path": tmp_path / "q.onnx"})
    assert list(tmp_path.iterdir()) == []


def test_static_with_a_path(mlp, vectors, tmp_path, types, run):
    onnx.save(mlp, tmp_path / "float.onnx")
    code = STATIC.replace("def get_next(self): ...", "def get_next(self): return next(rest, None)")
    names = {"model": str(tmp_path / "float.onnx"), "q_model_path": str(tmp_path / "q.onnx"), "rest": iter(vectors)}
    exec(code, names)
    quantized = onnx.load(tmp_path / "q.onnx")
    assert "MatMul" not in types(quantized)
    exact = run(mlp, vectors[0])
    assert abs(run(quantized, vectors[0]) - exact).max() < 0.05 * abs(exact).max()


def test_dynamic_with_a_model(mlp, tmp_path, types):
    code = STATIC.replace("config.StaticQuantConfig(calibration_data_reader)", "config.DynamicQuantConfig()")
    exec(code, {"model": mlp, "q_model_path": tmp_path / "q.onnx"})
    assert types(onnx.load(tmp_path / "q.onnx")).count("MatMulInteger") == 2


def test_rules_by_name(mlp, vectors, reader, types):
    from onnx_neural_compressor.quantization import config, quantize

    names = {"config": config}
    exec(RULES, names)
    quantized = quantize(mlp, None, names["quant_config"], calibration_data_reader=reader(vectors))
    assert types(quantized).count("MatMulNBits") == 1
    assert [node.name for node in quantized.graph.node if node.op_type == "MatMul"] == ["/h.4/mlp/fc_out/MatMul"]


def test_import_paths():
    from onnx_neural_compressor import data_reader
    from onnx_neural_compressor.quantization import (
        CalibrationMethod,
        QuantFormat,
        QuantType,
        config,
        matmul_nbits_quantizer,
        quantize,
        tuning,
    )

    assert callable(quantize)
    assert callable(tuning.autotune)
    assert tuning.TuningConfig is config.TuningConfig
    assert matmul_nbits_quantizer.MatMulNBitsQuantizer
    assert data_reader.CalibrationDataReader
    assert [QuantType.QUInt8.value, QuantFormat.QDQ.value, CalibrationMethod.Entropy.value] == [1, 1, 1]
    assert config.RTNConfig().name == "rtn"
