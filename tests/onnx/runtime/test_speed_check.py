"""A model that is slower than float is not handed over without a word."""

import logging

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor.kernel_race import Race
from neural_compressor.kernel_timings import KernelTimings
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.quantization import DynamicQuantConfig, quantize
from neural_compressor.onnx.runtime import profiling
from neural_compressor.onnx.runtime.op_race import racing
from neural_compressor.onnx.runtime.profiling import warn_if_slower


def chain(count: int, sizes=("n", 16)):
    """``count`` products, one behind the other."""
    nodes = [helper.make_node("MatMul", [f"x{i}", "w"], [f"x{i + 1}"], name=f"product_{i}") for i in range(count)]
    weight = numpy_helper.from_array(np.eye(sizes[-1], dtype=np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in ("x0", f"x{count}"))
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def ratio(monkeypatch):
    """Sets what running both models would find."""
    return lambda value: monkeypatch.setattr(profiling, "_ratio", lambda sessions, feed: value)


@pytest.fixture(autouse=True)
def _timing():
    with racing(Race(KernelTimings(None))):
        yield


def test_a_slower_model_is_said_to_be_one(ratio, caplog):
    ratio(1.31)
    with caplog.at_level(logging.WARNING, logger="neural_compressor"):
        quantize(chain(2), None, DynamicQuantConfig())
    assert "takes 1.31 times as long as float here" in caplog.text
    assert "product_" in caplog.text


def test_a_faster_one_needs_no_words(ratio, caplog):
    ratio(1.02)
    with caplog.at_level(logging.WARNING, logger="neural_compressor"):
        quantize(chain(2), None, DynamicQuantConfig())
    assert not caplog.records


def test_real_models_are_run():
    short, long = read_model(chain(1)), read_model(chain(200))
    assert warn_if_slower(short, long, lambda: None) > 1


@pytest.mark.parametrize("sizes", [("n", "m"), ("n", 16)], ids=["no sample", "too large"])
def test_what_is_not_compared_says_why(sizes, monkeypatch, caplog):
    monkeypatch.setattr(profiling, "MOST_BYTES", 1)
    model = chain(1)
    for value in (*model.graph.input, *model.graph.output):
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, sizes))
    with caplog.at_level(logging.INFO, logger="neural_compressor"):
        assert warn_if_slower(read_model(model), read_model(model), lambda: None) is None
    assert "not compared with float" in caplog.text


def test_nothing_is_timed_where_fixed_rules_decide(ratio):
    ratio(2.0)
    with racing(None):
        assert warn_if_slower(read_model(chain(1)), read_model(chain(1)), lambda: None) is None
