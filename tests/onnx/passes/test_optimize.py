"""Graphs simplified before they are quantized."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.model_file import weight_bytes
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.passes import simplify as optimization
from neural_compressor.onnx.passes.simplify import optimise
from neural_compressor.onnx.runtime.session import make_session


@pytest.fixture
def model(build):
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="bn"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("Flatten", ["r"], ["f"], name="flatten"),
        helper.make_node("Transpose", ["wt"], ["wm"], name="transpose"),
        helper.make_node("MatMul", ["f", "wm"], ["p"], name="product"),
        helper.make_node("Add", ["p", "shift"], ["y"], name="add"),
    ]
    constants = {
        "w": rng.normal(size=(4, 3, 3, 3)),
        **{name: rng.uniform(0.5, 1.5, 4) for name in "sbmv"},
        "wt": rng.normal(size=(5, 64)),
        "shift": rng.normal(size=5),
    }
    return normalise(ir.from_proto(build(nodes, {"x": [2, 3, 6, 6]}, {"y": [2, 5]}, constants)))


def names(model):
    return [node.name for node in model.graph]


def run(model):
    return make_session(model).run(None, {"x": np.random.default_rng(1).normal(size=(2, 3, 6, 6)).astype(np.float32)})[
        0
    ]


def test_by_default_products_keep_their_names_and_what_is_constant_is_computed(model):
    new = optimise(model)
    assert names(new) == ["conv", "relu", "flatten", "product", "add"]
    product = next(n for n in new.graph if n.name == "product")
    assert product.op_type == "MatMul"
    assert product.inputs[1].const_value is not None
    np.testing.assert_allclose(run(new), run(model), rtol=1e-4, atol=1e-4)
    assert set(new.opset_imports) == {""}


def test_a_level_that_is_asked_for_merges_the_sum_too(model):
    new = optimise(model, "ENABLE_BASIC")
    assert ("product", "Gemm") in [(n.name, n.op_type) for n in new.graph]
    np.testing.assert_allclose(run(new), run(model), rtol=1e-4, atol=1e-4)


def test_no_optimisation_leaves_the_model_as_it_is(model):
    assert optimise(model, "DISABLE_ALL") is model


def test_a_model_too_large_for_one_file_stays_as_it_is(model, monkeypatch, caplog):
    monkeypatch.setattr(optimization, "ONE_FILE_BYTES", 100)
    assert optimise(model) is model
    assert "not simplified" in caplog.text


def test_an_unknown_level_is_an_error(model):
    with pytest.raises(ConfigError, match="ENABLE_BASIC"):
        optimise(model, "BASIC")


def test_what_is_folded_into_several_branches_is_there_once(build):
    """Each branch reads a transposed weight of the model, which the runtime computes in every branch anew."""

    def branch(name, op_type):
        nodes = [
            helper.make_node("Transpose", ["weight"], [f"{name}_t"], name=f"{name}_transpose"),
            helper.make_node("MatMul", ["x", f"{name}_t"], [f"{name}_p"], name=f"{name}_product"),
            helper.make_node(op_type, [f"{name}_p"], [f"{name}_y"], name=f"{name}_end"),
        ]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", 1, [2, 40])])

    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], name="most", keepdims=0),
        helper.make_node("Greater", ["most", "limit"], ["large"], name="greater"),
        helper.make_node(
            "If", ["large"], ["y"], name="if", then_branch=branch("then", "Relu"), else_branch=branch("else", "Neg")
        ),
    ]
    weight = np.random.default_rng(0).normal(size=(40, 30))
    model = normalise(ir.from_proto(build(nodes, {"x": [2, 30]}, {"y": [2, 40]}, {"weight": weight, "limit": 1.0})))
    new = optimise(model)
    assert weight_bytes(new) == weight_bytes(model)
    for value in (0.5, 2.0):
        feed = {"x": np.full((2, 30), value, np.float32)}
        found, wanted = (make_session(each).run(None, feed)[0] for each in (new, model))
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
