"""Input that cannot be worked on: said at once, and no file is left behind or broken."""

import numpy as np
import onnx
import pytest
from onnx import helper

from neural_compressor.errors import CalibrationError, ConfigError, FormatError, WorkspaceError
from neural_compressor.onnx.quantization import (
    DynamicQuantConfig,
    GPTQConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    quantize,
)


@pytest.fixture
def out(tmp_path):
    """An output that exists, and must be the same after an error."""
    path = tmp_path / "out.onnx"
    path.write_bytes(b"what was there")
    yield path
    assert path.read_bytes() == b"what was there"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_missing_file(tmp_path, out):
    with pytest.raises(FormatError, match="does not exist"):
        quantize(tmp_path / "none.onnx", out, RTNConfig())


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_truncated_file(share, mlp, tmp_path, out):
    data = mlp.SerializeToString()
    (tmp_path / "cut.onnx").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(FormatError, match="truncated"):
        quantize(tmp_path / "cut.onnx", out, RTNConfig())


@pytest.mark.parametrize("content", [b"", b"\x80\x04not onnx", b"\x00" * 64])
def test_a_file_of_another_kind(content, tmp_path, out):
    (tmp_path / "other.onnx").write_bytes(content)
    with pytest.raises(FormatError, match="not an ONNX model"):
        quantize(tmp_path / "other.onnx", out, RTNConfig())


def test_missing_external_data(mlp, tmp_path, out):
    onnx.save(mlp, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(FormatError, match=r"'w.bin', which does not exist"):
        quantize(tmp_path / "m.onnx", out, RTNConfig())


def test_a_model_without_its_external_data(mlp, tmp_path, out):
    onnx.save(mlp, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    with pytest.raises(FormatError, match=r"'w.bin', which does not exist"):
        quantize(onnx.load(tmp_path / "m.onnx", load_external_data=False), out, RTNConfig())


def test_external_data_outside_of_the_folder(mlp, tmp_path, out):
    (tmp_path / "inside").mkdir()
    onnx.save(mlp, tmp_path / "inside" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "inside" / "w.bin").rename(tmp_path / "w.bin")
    model = onnx.load(tmp_path / "inside" / "m.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "../w.bin"
    onnx.save(model, tmp_path / "inside" / "m.onnx")
    with pytest.raises(FormatError, match="outside of the model's folder"):
        quantize(tmp_path / "inside" / "m.onnx", out, RTNConfig())


def test_an_empty_reader(mlp, out, reader):
    for config in (StaticQuantConfig(reader([])), SmoothQuantConfig(calibration_data_reader=reader([]))):
        with pytest.raises(CalibrationError, match="no samples"):
            quantize(mlp, out, config)
    with pytest.raises(CalibrationError, match="no samples"):
        quantize(mlp, out, GPTQConfig(), calibration_data_reader=reader([]))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"x": np.zeros((2, 63), np.float32)}, r"sample 0 has shape \(2, 63\)"),
        ({"x": np.zeros((2, 64), np.float64)}, "float64"),
        ({"X": np.zeros((2, 64), np.float32)}, "'X'"),
        ({}, "lacks the inputs"),
        ([1, 2], "inputs by name"),
    ],
    ids=["shape", "type", "name", "empty", "no mapping"],
)
@pytest.mark.parametrize("config", [StaticQuantConfig(), GPTQConfig(), SmoothQuantConfig()], ids=lambda c: c.name)
def test_samples_that_do_not_fit(config, sample, message, mlp, out, reader):
    with pytest.raises(CalibrationError, match=message):
        quantize(mlp, out, config, calibration_data_reader=reader([sample]))


def test_no_data_at_all(mlp, out):
    for config in (StaticQuantConfig(), SmoothQuantConfig(), GPTQConfig()):
        with pytest.raises(CalibrationError, match=f"{type(config).__name__} needs calibration data"):
            quantize(mlp, out, config)


def test_a_reader_that_cannot_be_rewound_where_two_passes_are_needed(mlp, out, vectors, once):
    with pytest.raises(CalibrationError, match="has no rewind"):
        quantize(mlp, out, SmoothQuantConfig(calibration_data_reader=once(vectors)))


@pytest.mark.parametrize("config", [StaticQuantConfig(), GPTQConfig(), SmoothQuantConfig()], ids=lambda c: c.name)
def test_activations_that_are_no_numbers(config, mlp, out, reader, vectors):
    bad = {"x": np.full((2, 64), np.nan, dtype=np.float32)}
    with pytest.raises(CalibrationError, match=r"(?i)nan|finite"):
        quantize(mlp, out, config, calibration_data_reader=reader([vectors[0], bad]))


@pytest.mark.parametrize(
    "config",
    [
        RTNConfig(nodes_to_exclude=["/h.4/mlp/fc_in/MatMull"]),
        RTNConfig(nodes_to_quantize=["/h.4/mlp/fc_in/MatMull"]),
        RTNConfig().set_local("/h.4/mlp/fc_in/MatMull", RTNConfig(weight_dtype="fp32")),
        DynamicQuantConfig(nodes_to_exclude=["/h.4/mlp/fc_in/MatMull"]),
    ],
    ids=repr,
)
def test_names_that_no_node_has(config, mlp, out):
    with pytest.raises(ConfigError, match=r"did you mean '/h.4/mlp/fc_in/MatMul'"):
        quantize(mlp, out, config)


def test_an_old_opset_is_raised(mlp, vectors, reader, run, make_model):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Squeeze", ["a"], ["y"], axes=[0], name="squeeze"),
    ]
    weight = np.eye(64, dtype=np.float32) * np.linspace(0.5, 1, 64, dtype=np.float32)
    model = make_model(nodes, [("x", [1, 64])], [("y", [64])], {"w": weight}, opset=9)
    sample = {"x": vectors[0]["x"][:1]}
    quantized = quantize(model, None, RTNConfig(weight_bits=8))
    assert quantized.opset_import[0].version >= 13
    np.testing.assert_allclose(run(quantized, sample), run(model, sample), atol=0.02)


def test_an_opset_that_cannot_be_raised(make_model, out):
    node = helper.make_node("Affine", ["x"], ["y"], alpha=2.0)
    model = make_model([node], [("x", [1, 4])], [("y", [1, 4])], {}, opset=1)
    with pytest.raises(FormatError, match="opset 1 and cannot be raised"):
        quantize(model, out, RTNConfig())


def test_an_output_that_cannot_be_written(mlp, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WorkspaceError, match="cannot be written"):
        quantize(mlp, tmp_path / "file" / "q.onnx", RTNConfig())
    with pytest.raises(WorkspaceError, match="is a folder"):
        quantize(mlp, tmp_path, RTNConfig())


@pytest.mark.parametrize(
    "config",
    [
        StaticQuantConfig(),
        StaticQuantConfig(quant_format="QDQ"),
        DynamicQuantConfig(),
        RTNConfig(),
        RTNConfig(quant_format="QDQ"),
    ],
    ids=repr,
)
def test_a_quantized_model_given_again(config, mlp, out, reader, vectors):
    once = quantize(mlp, None, config, calibration_data_reader=reader(vectors))
    with pytest.raises(ConfigError, match="quantized already"):
        quantize(once, out, config, calibration_data_reader=reader(vectors))


@pytest.mark.parametrize("config", [None, "rtn", {"weight_bits": 4}])
def test_what_is_no_configuration(config, mlp, out):
    with pytest.raises(ConfigError, match="quant_config"):
        quantize(mlp, out, config)


def test_what_is_no_model(out):
    with pytest.raises(ConfigError, match=r"expected a path or an onnx\.ModelProto"):
        quantize(42, out, RTNConfig())


def test_an_optimisation_level_that_does_not_exist(mlp, out):
    with pytest.raises(ConfigError, match="ENABLE_BASIC"):
        quantize(mlp, out, RTNConfig(), "ENABLE_BASICS")
