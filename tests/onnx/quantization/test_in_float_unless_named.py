"""Op types that are slower in integers stay in float, with the reason, unless a user names them."""

import logging

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.quantization import (
    DynamicQuantConfig,
    RTNConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    quantize,
)
from neural_compressor.onnx.quantization_record import read_record

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
    weights = {"w": random(4, 3, 3, 3), "t": random(4, 2, 2, 2)}
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


def test_dynamic_convolutions_stay_in_float_and_are_listed(convnet, types):
    quantized = quantize(convnet, None, DynamicQuantConfig())
    assert "ConvInteger" not in types(quantized)
    assert "MatMulInteger" in types(quantized)
    assert "slower on a CPU than in float; name it" in reasons(quantized)["conv"]


@pytest.mark.parametrize("config", FORMS, ids=["types", "nodes", "white_list", "rule by name", "rule by type"])
def test_dynamic_convolutions_can_be_had_by_name(config, convnet, types):
    assert "ConvInteger" in types(quantize(convnet, None, config))


def test_in_a_model_with_nothing_else_they_are_quantized_and_told_of(upsampler, types, caplog):
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        quantized = quantize(upsampler, None, DynamicQuantConfig())
    assert "ConvInteger" in types(quantized)
    assert "conv" not in reasons(quantized)
    assert "nothing else to quantize" in caplog.text
    assert "1 Conv (with ranges taken at run time a convolution is 2 to 20 times slower on a CPU" in caplog.text


def test_transposed_convolutions_stay_in_float_and_are_listed(upsampler, images, reader, types):
    config = StaticQuantConfig(reader(images), quant_format="QDQ")
    quantized = quantize(upsampler, None, config)
    assert "no integer ConvTranspose" in reasons(quantized)["up"]
    assert not [i for i in quantized.graph.initializer if i.name.startswith("t_quantized")]
    config.set_local("up", StaticQuantConfig(quant_format="QDQ"))
    asked_for = quantize(upsampler, None, config)
    assert "up" not in reasons(asked_for)
    feeding = {name: node.op_type for node in asked_for.graph.node for name in node.output}
    (up,) = (node for node in asked_for.graph.node if node.op_type == "ConvTranspose")
    assert [feeding.get(name) for name in up.input] == ["DequantizeLinear"] * 2


def test_other_providers_have_their_own_say(upsampler, images, reader):
    config = StaticQuantConfig(reader(images), execution_provider="TensorrtExecutionProvider")
    quantized = quantize(upsampler, None, config, graph_only=True)
    assert "up" not in reasons(quantized)


def test_tuning_leaves_out_what_would_quantize_nothing(upsampler, images, reader, tmp_path, caplog):
    conf = TuningConfig(config_set=[DynamicQuantConfig(), StaticQuantConfig()], workspace=tmp_path)
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        best = autotune(upsampler, conf, lambda path: 1.0, calibration_data_reader=reader(images))
    assert "DynamicQuantConfig() is not tried: nothing in the model would be quantized" in caplog.text
    assert read_record(ir.from_proto(best)).ops["conv", "Conv"].mode == "static"
    with pytest.raises(ConfigError, match="nothing in the model"):
        autotune(
            upsampler,
            TuningConfig(config_set=[DynamicQuantConfig(), RTNConfig()], workspace=tmp_path),
            lambda path: 1.0,
        )


def test_the_op_wise_interface_does_the_same(convnet, images, tmp_path, types):
    def fitted(**rules):
        conf = PostTrainingQuantConfig(approach="dynamic", **rules)
        return quantization.fit(convnet, conf, workspace=tmp_path, quiet=True)

    plain = fitted()
    assert "ConvInteger" not in types(plain.model)
    (conv,) = (op for op in plain.result.ops if op.name == "conv")
    assert "slower on a CPU than in float; a rule that speaks of it" in conv.reason
    for rules in (
        {"op_type_dict": {"Conv": {"weight": {"dtype": "int8"}}}},
        {"op_name_dict": {"conv": {"weight": {"granularity": "per_tensor"}}}},
    ):
        assert "ConvInteger" in types(fitted(**rules).model)


def test_the_op_wise_interface_quantizes_them_where_there_is_nothing_else(upsampler, tmp_path, types):
    conf = PostTrainingQuantConfig(approach="dynamic")
    assert "ConvInteger" in types(quantization.fit(upsampler, conf, workspace=tmp_path, quiet=True).model)
