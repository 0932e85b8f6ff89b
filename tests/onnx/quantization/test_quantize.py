"""Models quantized through the one entry point."""

import logging

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from neural_compressor.errors import CapabilityError, ConfigError, MissingDependencyError
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.methods.static import calibration
from neural_compressor.onnx.methods.static.calibration import calibrate
from neural_compressor.onnx.quantization import (
    AWQConfig,
    DynamicQuantConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    quantize,
)

FC_IN, FC_OUT = "/h.4/mlp/fc_in/MatMul", "/h.4/mlp/fc_out/MatMul"


def error(quantized, reference):
    return float(np.linalg.norm(quantized - reference) / np.linalg.norm(reference))


CONFIGS = {
    "dynamic": (DynamicQuantConfig(), 0.05),
    "dynamic per channel": (DynamicQuantConfig(per_channel=True), 0.05),
    "static": (StaticQuantConfig(), 0.05),
    "static QDQ": (StaticQuantConfig(quant_format="QDQ", per_channel=True), 0.05),
    "static entropy": (StaticQuantConfig(calibrate_method="entropy"), 0.1),
    "static percentile": (StaticQuantConfig(calibrate_method="percentile"), 0.1),
    "static mse": (StaticQuantConfig(calibrate_method="mse"), 0.1),
    "static 16 bits": (StaticQuantConfig(quant_format="QDQ", activation_type="QUInt16"), 0.05),
    "static int4 weights": (StaticQuantConfig(quant_format="QDQ", weight_type="QInt4", per_channel=True), 0.3),
    "static reduced": (StaticQuantConfig(reduce_range=True), 0.1),
    "smooth": (SmoothQuantConfig(), 0.05),
    "smooth of a list": (SmoothQuantConfig(alpha=[0.3, 0.7], quant_format="QDQ"), 0.05),
    "smooth auto": (SmoothQuantConfig(alpha="auto", folding=False), 0.05),
    "rtn": (RTNConfig(), 0.25),
    "rtn 8 bits": (RTNConfig(weight_bits=8), 0.03),
    "rtn QDQ": (RTNConfig(quant_format="QDQ", weight_sym=False), 0.25),
    "rtn 2 bits": (RTNConfig(weight_bits=2, weight_sym=False), 0.9),
    "gptq": (GPTQConfig(), 0.25),
    "gptq in order": (GPTQConfig(actorder=True, mse=True, layer_wise_quant=True), 0.25),
    "awq": (AWQConfig(), 0.25),
    "hqq": (HQQConfig(), 0.25),
}


@pytest.mark.parametrize(("config", "tolerance"), CONFIGS.values(), ids=CONFIGS.keys())
def test_each_algorithm_gives_a_valid_model_that_computes_nearly_the_same(
    config, tolerance, mlp, vectors, reader, run, types
):
    quantized = quantize(mlp, None, config, calibration_data_reader=reader(vectors))
    onnx.checker.check_model(quantized, full_check=True)
    exact = run(mlp, vectors[0])
    default = run(quantized, vectors[0], ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    assert 0 < error(run(quantized, vectors[0]), exact) < tolerance
    assert error(default, exact) < tolerance
    assert {"Add", "Relu"} - set(types(quantized)) != {"Add", "Relu"} or config.approach == "static"


@pytest.mark.parametrize("config", [StaticQuantConfig(), StaticQuantConfig(quant_format="QDQ", per_channel=True)])
def test_convolutions_with_their_normalisation(config, convnet, images, reader, run, types):
    quantized = quantize(convnet, None, config, calibration_data_reader=reader(images))
    assert "BatchNormalization" not in types(quantized)
    assert error(run(quantized, images[0]), run(convnet, images[0])) < 0.05


def test_the_source_stays_as_it_was(mlp, vectors, reader, tmp_path):
    before = mlp.SerializeToString()
    quantize(mlp, tmp_path / "q.onnx", StaticQuantConfig(reader(vectors)))
    assert mlp.SerializeToString() == before
    model = ir.from_proto(mlp)
    quantize(model, None, RTNConfig())
    assert [node.op_type for node in model.graph] == ["MatMul", "Add", "Relu", "MatMul"]


def test_paths_in_and_out(mlp, vectors, tmp_path, run):
    onnx.save(mlp, tmp_path / "float.onnx")
    assert quantize(tmp_path / "float.onnx", tmp_path / "new" / "q.onnx", RTNConfig(weight_bits=8)) is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["q.onnx"]
    assert error(run(tmp_path / "new" / "q.onnx", vectors[0]), run(mlp, vectors[0])) < 0.05


@pytest.mark.parametrize("kind", [StaticQuantConfig, GPTQConfig, SmoothQuantConfig, RTNConfig])
def test_weights_in_a_file_of_their_own(kind, mlp, vectors, reader, tmp_path, run):
    exact = run(mlp, vectors[0])
    onnx.save(mlp, tmp_path / "float.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    quantize(tmp_path / "float.onnx", tmp_path / "q.onnx", kind(), calibration_data_reader=reader(vectors))
    (tmp_path / "w.bin").unlink()
    assert error(run(tmp_path / "q.onnx", vectors[0]), exact) < 0.25


def test_a_model_may_replace_its_own_file(mlp, tmp_path, types):
    path = tmp_path / "model.onnx"
    onnx.save(mlp, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    quantize(path, path, RTNConfig())
    assert types(onnx.load(path)).count("MatMulNBits") == 2


def test_smaller_weights_make_a_smaller_file(mlp, tmp_path):
    onnx.save(mlp, tmp_path / "float.onnx")
    quantize(mlp, tmp_path / "q.onnx", RTNConfig(weight_group_size=-1))
    assert (tmp_path / "q.onnx").stat().st_size < 0.3 * (tmp_path / "float.onnx").stat().st_size


# -- calibration data ------------------------------------------------------------------------------------------------


def test_data_of_the_configuration_comes_before_that_of_the_call(mlp, vectors, reader):
    own, other = reader(vectors), reader(vectors)
    quantize(mlp, None, StaticQuantConfig(own), calibration_data_reader=other)
    assert own.get_next() is None
    assert other.get_next() is not None


def test_readers_are_rewound_for_each_pass_and_each_call(mlp, vectors, reader):
    data = reader(vectors)
    first = quantize(mlp, None, SmoothQuantConfig(calibration_data_reader=data))
    assert data.starts == 3  # made, rewound before the first pass, and before the second
    again = quantize(mlp, None, SmoothQuantConfig(calibration_data_reader=data))
    assert first.SerializeToString() == again.SerializeToString()


def test_a_reader_without_rewind_serves_where_one_pass_is_enough(mlp, vectors, once):
    quantize(mlp, None, StaticQuantConfig(once(vectors)))
    quantize(mlp, None, GPTQConfig(calibration_data_reader=once(vectors)))


def test_as_many_samples_as_asked_for(mlp, vectors, reader):
    data = reader(vectors)
    quantize(mlp, None, StaticQuantConfig(data, calibration_sampling_size=3))
    left = 0
    while data.get_next() is not None:
        left += 1
    assert left == len(vectors) - 3


# -- rules -----------------------------------------------------------------------------------------------------------


def products(model):
    return {node.name for node in model.graph.node if node.op_type in ("MatMul", "Gemm")}


@pytest.mark.parametrize(
    "config",
    [
        RTNConfig(nodes_to_exclude=[FC_OUT]),
        RTNConfig(nodes_to_quantize=[FC_IN]),
        RTNConfig(quant_last_matmul=False),
        RTNConfig().set_local(".*fc_out.*", RTNConfig(weight_dtype="fp32")),
        DynamicQuantConfig(nodes_to_exclude=".*fc_out.*"),
        DynamicQuantConfig(quant_last_matmul=False),
        StaticQuantConfig(nodes_to_exclude=[FC_OUT]),
        StaticQuantConfig(quant_last_matmul=False),
    ],
    ids=repr,
)
def test_nodes_can_be_left_in_float(config, mlp, vectors, reader):
    assert products(quantize(mlp, None, config, calibration_data_reader=reader(vectors))) == {FC_OUT}


def test_a_rule_of_its_own_for_a_type(mlp, types):
    config = RTNConfig().set_local("MatMul", RTNConfig(weight_bits=8))
    quantized = quantize(mlp, None, config)
    bits = [a.i for node in quantized.graph.node for a in node.attribute if a.name == "bits"]
    assert bits == [8, 8]


def test_algorithms_side_by_side(mlp, vectors, reader, run, types):
    config = RTNConfig(weight_bits=8, white_list=[FC_OUT]) + StaticQuantConfig(reader(vectors))
    quantized = quantize(mlp, None, config)
    assert types(quantized).count("MatMulNBits") == 1
    assert {"QuantizeLinear", "QLinearMatMul", "MatMulIntegerToFloat", "QGemm"} & set(types(quantized))
    assert error(run(quantized, vectors[0]), run(mlp, vectors[0])) < 0.1
    record = read_record(ir.from_proto(quantized))
    modes = {name: scheme.mode for (name, _), scheme in record.ops.items()}
    assert (modes[FC_IN], modes[FC_OUT]) == ("static", "weight_only")


def test_settings_of_the_whole_model_must_agree(mlp, vectors, reader):
    config = StaticQuantConfig(reader(vectors), extra_options={"CalibPercentile": 99.0})
    config.set_local(FC_OUT, StaticQuantConfig(extra_options={"CalibPercentile": 90.0}))
    with pytest.raises(ConfigError, match="whole model"):
        quantize(mlp, None, config)


def test_ratios_shrink_ranges(mlp, run, vectors):
    plain, shrunk = (quantize(mlp, None, RTNConfig(ratios=ratios)) for ratios in ({}, {"w1": 0.5, FC_OUT: 0.9}))
    scales = [
        {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer if "scales" in i.name}
        for model in (plain, shrunk)
    ]
    (first, second), (half, most) = (list(each.values()) for each in scales)
    np.testing.assert_allclose(half, first * 0.5, rtol=1e-6)
    np.testing.assert_allclose(most, second * 0.9, rtol=1e-6)
    with pytest.raises(ConfigError, match="did you mean 'w2', 'w1'"):
        quantize(mlp, None, RTNConfig(ratios={"w3": 0.5}))


def test_a_node_named_in_vain_is_said(mlp, caplog):
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        quantize(mlp, None, RTNConfig(nodes_to_quantize=[FC_IN, "/h.4/mlp/act/Relu"]))
    assert "/h.4/mlp/act/Relu stays in float: Relu" in caplog.text


def test_a_node_that_simplifying_takes_away_can_be_named(convnet, images, reader, caplog):
    config = StaticQuantConfig(reader(images), nodes_to_exclude=["bn"])
    quantize(convnet, None, config)
    assert caplog.text == ""


def test_products_keep_their_names_where_the_graph_is_simplified(mlp, vectors, reader):
    config = StaticQuantConfig(reader(vectors), nodes_to_exclude=[FC_IN])
    for level in (None, "ORT_DISABLE_ALL", ort.GraphOptimizationLevel.ORT_ENABLE_BASIC):
        assert products(quantize(mlp, None, config, level)) == {FC_IN}


def test_nothing_to_quantize_is_an_error_that_says_why(make_model):
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [("x", [4])], [("y", [4])], {})
    with pytest.raises(ConfigError, match="nothing in the model would be quantized"):
        quantize(model, None, RTNConfig())


# -- execution providers ---------------------------------------------------------------------------------------------


def test_a_provider_that_is_not_there_is_an_error_by_name(mlp, vectors, reader):
    config = StaticQuantConfig(reader(vectors), execution_provider="TensorrtExecutionProvider")
    with pytest.raises(MissingDependencyError, match="TensorrtExecutionProvider"):
        quantize(mlp, None, config)


def test_a_graph_for_another_provider_without_its_device(mlp, vectors, reader, types, run):
    config = StaticQuantConfig(reader(vectors), execution_provider="TensorrtExecutionProvider")
    quantized = quantize(mlp, None, config, graph_only=True)
    assert {"QuantizeLinear", "DequantizeLinear", "MatMul"} <= set(types(quantized))
    zeros = [i for i in quantized.graph.initializer if "zero_point" in i.name]
    assert zeros
    assert all(i.data_type == onnx.TensorProto.INT8 and not onnx.numpy_helper.to_array(i).any() for i in zeros)
    assert error(run(quantized, vectors[0]), run(mlp, vectors[0])) < 0.1


def test_what_the_provider_has_not_is_an_error_where_it_was_asked_for(mlp, vectors, reader):
    config = StaticQuantConfig(
        reader(vectors), execution_provider="TensorrtExecutionProvider", activation_type="QUInt16"
    )
    with pytest.raises(CapabilityError, match="uint16"):
        quantize(mlp, None, config, graph_only=True)
    with pytest.raises(CapabilityError, match="uint16"):
        quantize(mlp, None, StaticQuantConfig(reader(vectors), activation_type="QUInt16"))


def test_no_ranges_are_collected_that_the_one_plan_does_not_need(make_model, vectors, reader, monkeypatch):
    """An Add of floats stays one, so nobody asks what it reads; a plan with other ops in float might."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]),
        helper.make_node("Sigmoid", ["x"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    model = make_model(nodes, [("x", ["n", 64])], [("y", ["n", 64])], {"w": np.eye(64, dtype=np.float32)})
    asked = []

    def recorded(model, wanted, *rest):
        asked.extend(wanted)
        return calibrate(model, wanted, *rest)

    monkeypatch.setattr(calibration, "calibrate", recorded)
    quantize(model, None, StaticQuantConfig(quant_format="QDQ"), calibration_data_reader=reader(vectors))
    assert asked == ["c"]


def test_the_terminal_says_what_runs_how_and_why(mlp, vectors, reader, capsys):
    def told(config, **how):
        quantize(mlp, None, config, **how)
        out, err = capsys.readouterr()
        assert out == ""
        assert "\x1b" not in err, "no colours where it is no terminal"
        return err

    assert "integers: 2 MatMul (MatMulNBits)" in told(RTNConfig(white_list=["MatMul"]))
    rules = RTNConfig(white_list=["MatMul"]).set_local(FC_IN, RTNConfig(weight_dtype="fp32"))
    assert "float: 1 MatMul (" in told(rules)
    static = told(StaticQuantConfig(reader(vectors), nodes_to_quantize=[FC_IN, FC_OUT]))
    assert "integers: 1 MatMul (MatMulIntegerToFloat)" in static
    assert "float: 1 Add (nodes_to_quantize does not name it)" in static
    assert told(RTNConfig(), quiet=True) == ""
