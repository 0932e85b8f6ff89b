"""Matrices that are nothing beside their model are not quantized by themselves, unless a user names them."""

import logging
from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.quantization import GPTQConfig, RTNConfig, TuningConfig, autotune, quantize


@pytest.fixture
def tower():
    """``tower(*widths)``: products called after their place, each with a ReLU behind it."""

    def build(*widths, channels=0):
        random = np.random.default_rng(0)
        shapes = list(pairwise(widths))
        weights = {f"w{i}": random.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
        nodes, last = [], "x"
        for place in range(len(shapes)):
            nodes.append(helper.make_node("MatMul", [last, f"w{place}"], [f"a{place}"], name=f"product{place}"))
            nodes.append(helper.make_node("Relu", [f"a{place}"], [last := f"r{place}"]))
        if channels:
            weights["image"] = random.standard_normal((channels, channels, 3, 3)).astype(np.float32)
            weights["axes"] = np.array([2, 3])
            nodes.append(helper.make_node("Unsqueeze", [last, "axes"], ["u"]))
            nodes.append(helper.make_node("Conv", ["u", "image"], [last := "c"], name="conv", pads=[1, 1, 1, 1]))
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", widths[0]])
        y = helper.make_tensor_value_info(last, TensorProto.FLOAT, None)
        constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
        graph = helper.make_graph(nodes, "tower", [x], [y], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    return build


def quantized(model):
    return [node.name for node in model.graph.node if node.op_type == "MatMulNBits"]


def reasons(model):
    return {name: why for (name, _), why in read_record(ir.from_proto(model)).reasons.items()}


def test_a_small_head_stays_in_float_and_the_user_is_told(tower, caplog):
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        model = quantize(tower(512, 384, 8), None, RTNConfig())
    assert quantized(model) == ["product0"]
    assert "1.5% of the model" in reasons(model)["product1"]
    assert "1 nodes are quantized, in float stay 1 MatMul" in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        RTNConfig(nodes_to_quantize=["product."]),
        RTNConfig(op_types_to_quantize=["MatMul"]),
        RTNConfig().set_local("product1", RTNConfig(weight_bits=8)),
    ],
)
def test_one_that_is_named_is_quantized(tower, config):
    assert quantized(quantize(tower(512, 384, 8), None, config)) == ["product0", "product1"]


def test_small_ones_that_are_much_of_the_model_are_quantized(tower):
    assert quantized(quantize(tower(512, 384, 64), None, RTNConfig())) == ["product0", "product1"]
    assert quantized(quantize(tower(64, 32, 8), None, RTNConfig())) == ["product0", "product1"]


@pytest.mark.parametrize("config", [RTNConfig(), GPTQConfig()])
def test_a_model_with_nothing_else_stays_as_it_is_and_a_warning_says_so(tower, caplog, config):
    source = tower(8, 64, channels=64)
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        model = quantize(source, None, config)  # which asks for no data
    assert "nothing is quantized" in caplog.text
    assert "1.4% of the model" in caplog.text
    assert [node.op_type for node in model.graph.node] == [node.op_type for node in source.graph.node]
    onnx.checker.check_model(model, full_check=True)
    quantize(model, None, RTNConfig(op_types_to_quantize=["MatMul"]))  # it is a float model still


def test_tuning_does_not_try_what_would_quantize_nothing(tower, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tuning = TuningConfig(config_set=[RTNConfig()])
    with pytest.raises(ConfigError, match="too little to matter"):
        autotune(tower(8, 64, channels=64), tuning, lambda path: 1.0)
