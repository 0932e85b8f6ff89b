"""Calls of the ONNX API as its documentation spells them."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from neural_compressor import PostTrainingQuantConfig, quantization
from neural_compressor.errors import ConfigError
from onnx_neural_compressor import data_reader, logger
from onnx_neural_compressor.algorithms import Smoother
from onnx_neural_compressor.quantization import (
    QuantFormat,
    algorithm_entry,
    config,
    matmul_4bits_quantizer,
    matmul_nbits_quantizer,
    quantize,
    tuning,
)

RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((4, 64)).astype(np.float32) * np.where(np.arange(64) == 7, 50, 1).astype(np.float32)


def two_products():
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 64]) for name in "xy")
    weights = [numpy_helper.from_array(RNG.standard_normal((64, 64)).astype(np.float32), name) for name in ("w0", "w1")]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"),
        helper.make_node("MatMul", ["h", "w1"], ["y"], name="second"),
    ]
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Reader(data_reader.CalibrationDataReader):
    def __init__(self):
        self.rewind()

    def get_next(self):
        return next(self.samples, None)

    def rewind(self):
        self.samples = iter([{"x": INPUTS[:2]}, {"x": INPUTS[2:]}])


def run(model):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": INPUTS})[0]


def types(model):
    return [node.op_type for node in model.graph.node]


def test_four_bits():
    algorithm = matmul_4bits_quantizer.RTNWeightOnlyQuantConfig()
    quantizer = matmul_4bits_quantizer.MatMul4BitsQuantizer(two_products(), 32, True, algo_config=algorithm, quiet=True)
    quantizer.process()
    assert types(quantizer.model) == ["MatMulNBits"] * 2
    assert [a.i for node in quantizer.model.graph.node for a in node.attribute if a.name == "bits"] == [4, 4]


@pytest.mark.parametrize("algorithm", ["rtn", "gptq", "awq"])
def test_entries_of_weight_only_algorithms(algorithm):
    entry = getattr(algorithm_entry, f"{algorithm}_quantize_entry")
    made = getattr(config, f"get_default_{algorithm}_config")()
    assert types(entry(two_products(), made, Reader())).count("MatMulNBits") == 2


def test_entries_of_integer_algorithms():
    static = algorithm_entry.static_quantize_entry(two_products(), config.StaticQuantConfig(Reader()))
    assert "QLinearMatMul" in types(static)
    assert "DynamicQuantizeLinear" in types(
        algorithm_entry.dynamic_quantize_entry(two_products(), config.DynamicQuantConfig())
    )


@pytest.mark.parametrize("folding", [True, False])
def test_the_smoother_changes_weights_and_not_the_result(folding):
    model = two_products()
    smoothed = Smoother(model, Reader()).transform(alpha=0.5, folding=folding)
    np.testing.assert_allclose(run(smoothed), run(model), rtol=1e-3, atol=1e-2)
    before, after = (
        np.abs(
            max((numpy_helper.to_array(i) for i in m.graph.initializer if i.dims == [64, 64]), key=lambda w: w.max())
        )
        for m in (model, smoothed)
    )
    assert after.max() > 1.5 * before.max()  # the channel of the outlier


def test_what_the_smoother_chooses_from():
    model, between = two_products(), {"alpha_min": 0.7, "alpha_max": 0.7}
    chosen = Smoother(model, Reader()).transform(alpha="auto", auto_alpha_args=between, folding=False)
    given = Smoother(model, Reader()).transform(alpha=0.7, folding=False)
    assert types(chosen) == types(given)
    assert np.array_equal(run(chosen), run(given))


def test_entries_write_the_model(tmp_path):
    for name, model in {
        "static.onnx": algorithm_entry.static_quantize_entry(
            two_products(), config.StaticQuantConfig(), Reader(), tmp_path / "static.onnx"
        ),
        "dynamic.onnx": algorithm_entry.dynamic_quantize_entry(
            two_products(), config.DynamicQuantConfig(), tmp_path / "dynamic.onnx"
        ),
        "smooth.onnx": algorithm_entry.smooth_quant_entry(
            two_products(), config.SmoothQuantConfig(), Reader(), model_output=str(tmp_path / "smooth.onnx")
        ),
    }.items():
        assert np.array_equal(run(model), run(onnx.load(tmp_path / name)))


def test_sets_with_parameters_of_ones_own():
    for form in QuantFormat:
        found = config.StaticQuantConfig.get_config_set_for_tuning(
            quant_format=form, execution_provider="CPUExecutionProvider"
        )
        assert len(found) > 1
        assert {(each.quant_format, each.per_channel) for each in found} == {(form, True)}
    assert len(config.StaticQuantConfig.get_config_set_for_tuning(calibrate_method="MSE")) == 2
    with pytest.raises(ConfigError, match="did you mean 'quant_format'"):
        config.StaticQuantConfig.get_config_set_for_tuning(quant_formt="QDQ")


def test_sets_and_questions():
    names = {each.name for each in config.get_all_config_set()}
    assert names >= {"rtn", "gptq", "awq", "static_quant", "smooth_quant", "dynamic_quant"}
    assert all(isinstance(each, config.RTNConfig) for each in config.RTNConfig.get_config_set_for_tuning())
    assert config.RTNConfig.get_model_info(two_products()) == [("first", "MatMul"), ("second", "MatMul")]
    assert config.config_registry.get_cls_configs()["onnxrt"]["rtn"] is config.RTNConfig
    loader = tuning.ConfigLoader(config.RTNConfig(weight_bits=[4, 8]), tuning.SequentialSampler)
    assert [each.weight_bits for each in loader] == [4, 8]
    with pytest.raises(ConfigError, match="extra_options"):
        config.StaticQuantConfig(extra_options=config.ExtraOptions(Nonsense=1))


def test_the_log_is_a_module(caplog):
    with caplog.at_level("INFO", "neural_compressor"):
        logger.info("said %d", 3)
    assert "said 3" in caplog.text


def test_options_of_dynamic_quantization():
    assert config.DynamicQuantConfig(extra_options={"ActivationSymmetric": False}).extra_options == {}
    with pytest.raises(ConfigError, match=r"ActivationSymmetric.*StaticQuantConfig"):
        config.DynamicQuantConfig(extra_options={"ActivationSymmetric": True})


def test_sets_to_tune_over_in_a_format():
    for form in (QuantFormat.QDQ, QuantFormat.QOperator):
        assert {each.quant_format for each in config.get_woq_tuning_config(quant_format=form)} == {form}


@pytest.mark.parametrize(("given", "written"), [({}, 4), ({"accuracy_level": 0}, 0), ({"accuracy_level": 1}, 1)])
def test_the_accuracy_level_that_is_given_is_written(given, written):
    for kind in (matmul_nbits_quantizer.MatMulNBitsQuantizer, matmul_4bits_quantizer.MatMul4BitsQuantizer):
        quantizer = kind(two_products(), 32, True, quiet=True, **given)
        quantizer.process()
        found = [a.i for node in quantizer.model.graph.node for a in node.attribute if a.name == "accuracy_level"]
        assert found == [written, written]


@pytest.mark.parametrize("approach", ["static", "dynamic", "weight_only"])
def test_nodes_in_any_order(tmp_path, approach):
    model = two_products()
    turned = onnx.ModelProto()
    turned.CopyFrom(model)
    del turned.graph.node[:]
    turned.graph.node.extend([*model.graph.node][::-1])
    data = None if approach == "dynamic" else [(INPUTS, 0)]
    conf = PostTrainingQuantConfig(approach=approach)
    found = [
        run(quantization.fit(each, conf, data, workspace=tmp_path / str(number), quiet=True).model)
        for number, each in enumerate((model, turned))
    ]
    assert np.array_equal(*found)


@pytest.mark.parametrize("algorithm", ["RTN", "GPTQ", "AWQ"])
def test_weight_only_algorithms_through_fit(tmp_path, algorithm):
    weight = {"bits": 4, "group_size": 32, "scheme": "sym", "algorithm": algorithm}
    conf = PostTrainingQuantConfig(approach="weight_only", op_type_dict={".*": {"weight": weight}})
    made = quantization.fit(two_products(), conf, [(INPUTS, 0)], workspace=tmp_path, quiet=True)
    assert types(made.model).count("MatMulNBits") == 2


@pytest.mark.parametrize(("level", "written"), [(1, 1), (0, 4), (None, 4)])
def test_the_accuracy_level_of_recipes_is_written(tmp_path, level, written):
    weight = {"bits": 4, "group_size": 32, "algorithm": "RTN"}
    recipes = {} if level is None else {"rtn_args": {"accuracy_level": level}}
    conf = PostTrainingQuantConfig(approach="weight_only", op_type_dict={".*": {"weight": weight}}, recipes=recipes)
    made = quantization.fit(two_products(), conf, workspace=tmp_path, quiet=True).model
    assert [a.i for node in made.graph.node for a in node.attribute if a.name == "accuracy_level"] == [written, written]


def test_an_accuracy_level_that_is_not_written_is_refused(tmp_path):
    rules = {".*": {"weight": {"bits": 4, "group_size": 32, "algorithm": "RTN"}}}
    conf = PostTrainingQuantConfig(
        approach="weight_only", op_type_dict=rules, quant_format="QDQ", recipes={"rtn_args": {"accuracy_level": 1}}
    )
    with pytest.raises(ConfigError, match="rtn_args has no 'accuracy_level'"):
        quantization.fit(two_products(), conf, workspace=tmp_path, quiet=True)


@pytest.mark.parametrize(
    "given",
    [
        {"rtn": {"global": {"weight_bits": 4}, "local": {"second": {"weight_bits": 8}}}},
        config.RTNConfig().set_local("second", config.RTNConfig(weight_bits=8)).to_dict(),
        [config.RTNConfig(white_list=["first"]), config.RTNConfig(weight_bits=8, white_list=["second"])],
    ],
)
def test_settings_as_plain_data(given):
    made = quantize(two_products(), None, given, quiet=True)
    assert [a.i for node in made.graph.node for a in node.attribute if a.name == "bits"] == [4, 8]
    with pytest.raises(ConfigError, match="settings by algorithm, and 'rnt' is none; did you mean 'rtn'"):
        quantize(two_products(), None, {"rnt": {}})
