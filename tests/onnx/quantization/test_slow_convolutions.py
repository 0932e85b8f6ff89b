"""Convolutions that stay in float in a static model keep their weights in integers all the same."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.quantization import StaticQuantConfig, quantize
from neural_compressor.schemes import PER_CHANNEL


@pytest.fixture
def net():
    """A depthwise convolution between two functions that have no integer kernel."""
    rng = np.random.default_rng(0)
    shapes = {"w": (64, 3, 3, 3), "d": (64, 1, 5, 5), "p": (8, 64, 1, 1)}
    weights = [numpy_helper.from_array((rng.normal(size=s) * 0.2).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["b"], name="tanh"),
        helper.make_node("Conv", ["b", "d"], ["c"], name="depthwise", group=64),
        helper.make_node("Tanh", ["c"], ["e"], name="tanh_too"),
        helper.make_node("Conv", ["e", "p"], ["y"], name="last"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def samples():
    """Images."""
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(1, 3, 12, 12)).astype(np.float32)} for _ in range(4)]


def source_types(model):
    """What the weight of each convolution comes from."""
    source = {name: node.op_type for node in model.graph.node for name in node.output}
    return {node.name: source.get(node.input[1]) for node in model.graph.node if node.op_type == "Conv"}


def check_stored(model):
    assert source_types(model) == {"first": "DequantizeLinear", "depthwise": "Mul", "last": "DequantizeLinear"}
    assert {i.data_type for i in model.graph.initializer if np.prod(i.dims) > 64} == {TensorProto.INT8}
    record = read_record(ir.from_proto(model))
    scheme = record.ops["depthwise", "Conv"]
    assert (scheme.weight.dtype.name, scheme.activation) == ("int8", None)
    assert "before it" in record.reasons["depthwise", "Conv"]


def test_the_weight_is_stored_in_integers(net, samples, reader, run):
    new = quantize(net, None, StaticQuantConfig(reader(samples), quant_format="QDQ", per_channel=True))
    check_stored(new)
    expected, found = run(net, samples[0]), run(new, samples[0])
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("given", [{"per_channel": False}, {"weight_type": "QInt4"}], ids=["per tensor", "int4"])
def test_it_is_int8_by_channel_whatever_the_others_are(given, net, samples, reader):
    new = quantize(net, None, StaticQuantConfig(reader(samples), quant_format="QDQ", **given))
    weight = read_record(ir.from_proto(new)).ops["depthwise", "Conv"].weight
    assert (weight.dtype.name, weight.granularity) == ("int8", PER_CHANNEL)
    assert source_types(new)["depthwise"] == "Mul"


def test_and_so_it_is_in_the_older_interface(net, samples):
    data = [(sample["x"], 0) for sample in samples]
    config = PostTrainingQuantConfig(quant_format="QDQ", calibration_sampling_size=4)
    check_stored(quantization.fit(net, config, calib_dataloader=data).model)


@pytest.mark.parametrize(
    "config",
    [
        lambda reader: StaticQuantConfig(reader, quant_format="QDQ", nodes_to_quantize=["depthwise"]),
        lambda reader: StaticQuantConfig(reader, quant_format="QDQ").set_local(
            "depthwise", StaticQuantConfig(quant_format="QDQ")
        ),
    ],
    ids=["list", "rule"],
)
def test_a_node_that_is_named_is_quantized(config, net, samples, reader):
    assert source_types(quantize(net, None, config(reader(samples))))["depthwise"] == "DequantizeLinear"
