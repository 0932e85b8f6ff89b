"""Times of a profile are given to the ops they belong to, whatever the runtime calls its nodes."""

import numpy as np
import pytest
from onnx import helper

from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.runtime import profiling


@pytest.fixture
def model(build):
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="conv1", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="conv2", pads=[1] * 4),
        helper.make_node("QuantizeLinear", ["c", "scale"], ["q"], name="c_Q"),
        helper.make_node("DequantizeLinear", ["q", "scale"], ["d"], name="c_DQ"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="pool"),
        helper.make_node("Flatten", ["e"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "w3"], ["m"], name="product"),
        helper.make_node("Add", ["m", "bias"], ["y"], name="add"),
    ]
    shapes = {"w1": (16, 8, 3, 3), "w2": (16, 16, 3, 3), "w3": (16, 4), "bias": (4,)}
    constants = {name: rng.normal(size=shape) for name, shape in shapes.items()} | {"scale": np.float32(0.1)}
    return normalise(read_model(build(nodes, {"x": ["n", 8, 8, 8]}, {"y": ["n", 4]}, constants)))


def test_each_op_gets_the_time_of_what_it_became(model, monkeypatch):
    times = {
        ("b_nchwc", "Conv"): 10,  # named after the output, with the Relu in it
        ("conv2_token_3", "QLinearConv"): 20,
        ("c_Q", "QuantizeLinear"): 4,
        ("product/MatMulAddFusion", "Gemm"): 5,
        ("ReorderOutput", "ReorderOutput"): 1,
    }
    monkeypatch.setattr(profiling, "node_times", lambda *args, **kwargs: times)
    shares = profiling.time_shares(model, {}, {"conv1", "conv2", "pool", "product"}, ())
    assert shares == pytest.approx({"conv1": 10 / 40, "conv2": 20 / 40, "pool": 4 / 40, "product": 5 / 40})


def test_a_real_profile_finds_the_ops(model):
    feed = {"x": np.ones((2, 8, 8, 8), np.float32)}
    ops = {"conv1", "conv2", "pool", "product"}
    shares = profiling.time_shares(model, feed, ops, ["CPUExecutionProvider"])
    assert set(shares) == ops
    assert 0 < sum(shares.values()) <= 1 + 1e-9
