"""Op types that are slower in integers have their weights stored in them and compute in float, unless a user names them."""

import logging

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.quantization import (
    DynamicQuantConfig,
    RTNConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    quantize,
)

FORMS = [
    DynamicQuantConfig(op_types_to_quantize=["Conv"]),
    DynamicQuantConfig(nodes_to_quantize=["conv"]),
    DynamicQuantConfig(white_list=["Conv"]),
    DynamicQuantConfig().set_local("conv", DynamicQuantConfig(per_channel=True)),
    DynamicQuantConfig().set_local("Conv", DynamicQuantConfig(per_channel=True)),
]


def reasons(model):
    return {name: why for (name, _), why in read_record(ir.from_proto(model)).reasons.items()}


@pytest.fixture
def upsampler(random):
    """A convolution and one that goes the other way."""
    weights = {"w": random(16, 3, 3, 3), "t": random(16, 8, 2, 2)}
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["a"], name="conv"),
        helper.make_node("ConvTranspose", ["a", "t"], ["y"], name="up", strides=[2, 2]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [image], [y], [numpy_helper.from_array(a, n) for n, a in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def random():
    """Small random weights."""
    return lambda *shape: np.random.default_rng(1).standard_normal(shape).astype(np.float32) * 0.3


def stored(model):
    """The types of convolutions whose weights are integers that a Cast and a Mul make floats of."""
    source = {name: node for node in model.graph.node for name in node.output}
    codes = {i.name for i in model.graph.initializer if i.data_type == TensorProto.INT8}

    def is_stored(name):
        chain = [source.get(name), source.get(source[name].input[0])] if name in source else [None, None]
        return [n and n.op_type for n in chain] == ["Mul", "Cast"] and chain[1].input[0] in codes

    convolutions = (node for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose"))
    return [node.op_type for node in convolutions if is_stored(node.input[1])]


def test_dynamic_convolutions_compute_in_float_with_their_weights_stored(convnet, images, types, run, caplog):
    with caplog.at_level(logging.INFO, "neural_compressor"):
        quantized = quantize(convnet, None, DynamicQuantConfig())
    assert stored(quantized) == ["Conv"]
    assert "ConvInteger" not in types(quantized)
    assert "MatMulInteger" in types(quantized)
    why = "with ranges taken at run time a convolution is 2 to 20 times slower on a CPU than in float"
    assert f"1 nodes are quantized; with weights in int8 compute in float 1 Conv ({why})" in caplog.text
    record = read_record(ir.from_proto(quantized))
    scheme = record.ops["conv", "Conv"]
    assert (scheme.precision, scheme.activation, scheme.mode) == ("int8", None, "dynamic")
    assert record.reasons["conv", "Conv"] == why
    expected = run(convnet, images[0])
    np.testing.assert_allclose(run(quantized, images[0]), expected, atol=np.abs(expected).max() / 20)


@pytest.mark.parametrize("config", FORMS, ids=["types", "nodes", "white_list", "rule by name", "rule by type"])
def test_dynamic_convolutions_can_be_had_by_name(config, convnet, types):
    assert "ConvInteger" in types(quantize(convnet, None, config))


def test_rules_are_about_single_nodes(make_model, random, types):
    nodes = [helper.make_node("Conv", ["x", f"w{i}"], [f"y{i}"], name=f"conv{i}") for i in range(3)]
    constants = {f"w{i}": random(16, 3, 3, 3) for i in range(3)}
    model = make_model(nodes, [("x", [1, 3, 8, 8])], [(f"y{i}", [1, 16, 6, 6]) for i in range(3)], constants)
    config = DynamicQuantConfig(nodes_to_exclude=["conv2"]).set_local("conv1", DynamicQuantConfig(per_channel=True))
    quantized = quantize(model, None, config)
    assert stored(quantized) == ["Conv"]
    assert sorted(kind for kind in types(quantized) if kind.startswith("Conv")) == ["Conv", "Conv", "ConvInteger"]
    assert reasons(quantized)["conv2"] == "nodes_to_exclude names it"


@pytest.mark.parametrize("options", [{"weight_type": "QUInt8"}, {"per_channel": True}, {"reduce_range": True}], ids=str)
def test_what_integer_kernels_need_does_not_matter_to_stored_weights(options, upsampler):
    plain, other = (quantize(upsampler, None, DynamicQuantConfig(**each)) for each in ({}, options))
    assert other.graph == plain.graph


def test_a_model_of_convolutions_alone_is_stored_and_smaller(upsampler, images, types, run):
    quantized = quantize(upsampler, None, DynamicQuantConfig())
    assert stored(quantized) == ["Conv", "ConvTranspose"]
    assert set(types(quantized)) == {"Cast", "Mul", "Conv", "ConvTranspose"}
    expected = run(upsampler, images[0])
    np.testing.assert_allclose(run(quantized, images[0]), expected, atol=np.abs(expected).max() / 50)
    sizes = [sum(len(i.raw_data) for i in model.graph.initializer) for model in (quantized, upsampler)]
    assert sizes[0] < 0.35 * sizes[1]


def test_where_nothing_can_be_stored_nothing_is_quantized(make_model, random):
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    model = make_model([node], [("x", [1, 3, 8, 8])], [("y", [1, 2, 6, 6])], {"w": random(2, 3, 3, 3)})
    with pytest.raises(ConfigError, match=r"2 to 20 times slower .* its weight would not be smaller"):
        quantize(model, None, DynamicQuantConfig())


def test_a_model_with_stored_weights_is_not_quantized_again(upsampler):
    with pytest.raises(ConfigError, match="quantized already: its metadata have the weight of 'conv' in int8"):
        quantize(quantize(upsampler, None, DynamicQuantConfig()), None, DynamicQuantConfig())


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_transposed_convolutions_compute_in_float_with_their_weights_stored(form, upsampler, images, reader, run):
    quantized = quantize(upsampler, None, StaticQuantConfig(reader(images), quant_format=form))
    assert stored(quantized) == ["ConvTranspose"]
    assert "no integer ConvTranspose" in reasons(quantized)["up"]
    assert read_record(ir.from_proto(quantized)).ops["up", "ConvTranspose"].activation is None
    expected = run(upsampler, images[0])
    np.testing.assert_allclose(run(quantized, images[0]), expected, atol=np.abs(expected).max() / 20)


def test_transposed_convolutions_can_be_had_by_name(upsampler, images, reader):
    config = StaticQuantConfig(reader(images), quant_format="QDQ")
    asked_for = quantize(upsampler, None, config.set_local("up", StaticQuantConfig(quant_format="QDQ")))
    assert "up" not in reasons(asked_for)
    feeding = {name: node.op_type for node in asked_for.graph.node for name in node.output}
    (up,) = (node for node in asked_for.graph.node if node.op_type == "ConvTranspose")
    assert [feeding.get(name) for name in up.input] == ["DequantizeLinear"] * 2
    # In integer operators there is none, so that it is stored all the same.
    config = StaticQuantConfig(reader(images), quant_format="QOperator", op_types_to_quantize=["ConvTranspose"])
    assert stored(quantize(upsampler, None, config)) == ["ConvTranspose"]


def test_other_providers_have_their_own_say(upsampler, images, reader):
    config = StaticQuantConfig(reader(images), execution_provider="TensorrtExecutionProvider")
    quantized = quantize(upsampler, None, config, graph_only=True)
    assert "up" not in reasons(quantized)


def test_tuning_tries_stored_weights_and_takes_nodes_back_to_float(upsampler, tmp_path):
    def exact_in_its_last_node(path):
        return 1.0 if "ConvTranspose" not in stored(onnx.load(path)) else 0.5

    conf = TuningConfig(config_set=[DynamicQuantConfig()], workspace=tmp_path, max_trials=9)
    best = autotune(upsampler, conf, exact_in_its_last_node)
    assert stored(best) == ["Conv"]
    assert reasons(best)["up"] == "kept in float"


def test_tuning_leaves_out_what_would_quantize_nothing(upsampler, images, reader, tmp_path, caplog):
    conf = TuningConfig(config_set=[RTNConfig(), StaticQuantConfig()], workspace=tmp_path)
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        best = autotune(upsampler, conf, lambda path: 1.0, calibration_data_reader=reader(images))
    assert "RTNConfig() is not tried: nothing in the model would be quantized" in caplog.text
    assert read_record(ir.from_proto(best)).ops["conv", "Conv"].mode == "static"
    with pytest.raises(ConfigError, match="nothing in the model"):
        autotune(upsampler, TuningConfig(config_set=[RTNConfig()], workspace=tmp_path), lambda path: 1.0)


def test_the_op_wise_interface_does_the_same(convnet, tmp_path, types):
    def fitted(**rules):
        conf = PostTrainingQuantConfig(approach="dynamic", **rules)
        return quantization.fit(convnet, conf, workspace=tmp_path, quiet=True)

    plain = fitted()
    assert stored(plain.model) == ["Conv"]
    (conv,) = (op for op in plain.result.ops if op.name == "conv")
    assert (conv.precision, conv.activation, conv.mode, conv.simulated) == ("int8", "fp32", "dynamic", True)
    assert conv.kernel == "float: the runtime turns the weight into floats when it loads the model"
    assert 30 < conv.weight_sqnr < 60
    for rules in (
        {"op_type_dict": {"Conv": {"weight": {"dtype": "int8"}}}},
        {"op_name_dict": {"conv": {"weight": {"granularity": "per_tensor"}}}},
    ):
        assert "ConvInteger" in types(fitted(**rules).model)


@pytest.mark.parametrize("approach", ["dynamic", "static"])
def test_the_op_wise_interface_takes_stored_weights_back_to_float(approach, upsampler, images, tmp_path):
    def exact_in_its_last_node(model):
        return 1.0 if "ConvTranspose" not in stored(model) else 0.5

    conf = PostTrainingQuantConfig(approach=approach)
    batches = [(sample["image"], 0) for sample in images]
    fitted = quantization.fit(
        upsampler, conf, batches, eval_func=exact_in_its_last_node, workspace=tmp_path, quiet=True
    )
    assert stored(fitted.model) == (["Conv"] if approach == "dynamic" else [])
    assert {op.name: op.precision for op in fitted.result.ops} == {"conv": "int8", "up": "fp32"}
