"""What was done to a model, in its metadata."""

import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError
from neural_compressor.onnx.files.quantization_record import KEY, QuantizationRecord, read_record, write_record
from neural_compressor.schemes import OpScheme, PerGroup, TensorScheme, float_op

GROUPED = OpScheme(TensorScheme(dtype("int4"), granularity=PerGroup(32), algorithm="gptq"), None, "weight_only")
RECORD = QuantizationRecord(
    {("a", "MatMul"): GROUPED, ("b", "MatMul"): GROUPED, ("c/1.x", "Conv"): float_op("fp32")},
    {("c/1.x", "Conv"): "kept", ("d", "LSTM"): "kept"},
    '{"alpha": 0.5}',
)


@pytest.fixture
def model(build):
    return ir.from_proto(build([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]}, {}))


def test_a_file_tells_what_was_done(model, tmp_path):
    assert read_record(model) is None
    write_record(model, RECORD)
    ir.save(model, tmp_path / "model.onnx")
    assert read_record(ir.load(tmp_path / "model.onnx")) == RECORD


def test_a_scheme_and_a_reason_are_written_once():
    many = QuantizationRecord({(f"n{i}", "MatMul"): GROUPED for i in range(100)}, {("c", "Conv"): "kept"})
    assert many.to_json().count("per_group") == 1
    assert len(many.to_json()) < 100 * 20 + 300


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"version": 1, "schemes": [], "ops": [["a", "b", 3]], "why": []}'])
def test_a_damaged_record_is_an_error(model, text):
    model.metadata_props[KEY] = text
    with pytest.raises(FormatError, match="damaged"):
        read_record(model)
