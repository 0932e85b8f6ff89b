"""Weights in integers that the runtime turns into floats when it loads a model."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from neural_compressor.dtypes import dtype
from neural_compressor.errors import QuantizationError
from neural_compressor.onnx.files.model_file import read_model, write_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.passes.store_weights import STORED, is_stored, storable_nodes, store_weights, stored_floats
from neural_compressor.schemes import PER_TENSOR, OpScheme, Plan, TensorScheme, float_op

CONV, UP = ("conv", "Conv"), ("up", "ConvTranspose")


def planned(*keys, weight=STORED):
    return Plan(dict.fromkeys(keys, OpScheme(weight, mode="dynamic")))


def weights(*shape, seed=0):
    # Channels of very different sizes, which one scale for all would lose.
    array = np.random.default_rng(seed).standard_normal(shape)
    return (array * np.geomspace(0.01, 10, shape[0]).reshape(-1, *[1] * (len(shape) - 1))).astype(np.float32)


def store(model, *keys, **options):
    new = normalise(ir.from_proto(model))
    return new, store_weights(new, planned(*keys, **options))


def outputs(model, feed, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL, path=""):
    options = ort.SessionOptions()
    options.graph_optimization_level, options.optimized_model_filepath = level, str(path)
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    if proto is not model:
        onnx.checker.check_model(proto, full_check=True)
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feed)


def loaded(model, tmp_path):
    """What the runtime makes of a model: the types of all nodes, those of subgraphs too."""
    feed = {value.name: np.zeros((1, 3, 8, 8), np.float32) for value in model.graph.inputs if value.dtype != 9}
    feed |= {value.name: np.array(True) for value in model.graph.inputs if value.dtype == 9}
    outputs(model, feed, ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED, tmp_path / "loaded.onnx")
    return [node.op_type for node in ir.load(tmp_path / "loaded.onnx").graph.all_nodes()]


@pytest.fixture
def one(build):
    """A convolution with its normalisation."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv"),
        helper.make_node("BatchNormalization", ["c", *"ssss"], ["y"], name="bn"),
    ]
    constants = {"w": weights(16, 3, 3, 3), "b": np.arange(16), "s": np.ones(16)}
    return build(nodes, {"x": [1, 3, 8, 8]}, {"y": None}, constants)


@pytest.fixture
def image():
    return {"x": np.random.default_rng(9).standard_normal((1, 3, 8, 8)).astype(np.float32)}


def test_codes_and_scales_are_those_of_the_formula(one):
    stored, left = store(one, CONV)
    array = weights(16, 3, 3, 3)
    scale = np.abs(array).max(axis=(1, 2, 3)) / np.float32(127)
    found = {name: value.const_value.numpy() for name, value in stored.graph.initializers.items()}
    np.testing.assert_allclose(found["w_scale"].ravel(), scale, rtol=1e-6)
    np.testing.assert_array_equal(found["w_quantized"], np.round(array / scale.reshape(-1, 1, 1, 1)))
    assert found["w_quantized"].dtype == np.int8
    assert "w" not in found
    assert not left


def test_the_model_computes_with_the_rounded_weight_and_the_runtime_has_it_in_float(one, image, tmp_path):
    stored, _ = store(one, CONV)
    (conv,) = (node for node in stored.graph if node.op_type == "Conv")
    rounded = onnx.ModelProto()
    rounded.CopyFrom(one)
    rounded.graph.initializer[0].CopyFrom(numpy_helper.from_array(stored_floats(conv.inputs[1]), "w"))
    np.testing.assert_allclose(outputs(stored, image)[0], outputs(rounded, image)[0], rtol=1e-5, atol=1e-5)
    assert np.abs(stored_floats(conv.inputs[1]) - weights(16, 3, 3, 3)).max() <= 10 * 4 / 127 / 2
    # As it does for the float model, down to the normalisation that goes into the weight.
    assert loaded(stored, tmp_path) == loaded(normalise(ir.from_proto(one)), tmp_path)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_every_level_gives_the_same(one, image, level):
    stored, _ = store(one, CONV)
    found = outputs(stored, image, getattr(ort.GraphOptimizationLevel, level))[0]
    np.testing.assert_allclose(found, outputs(stored, image)[0], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("group", [1, 2, 16])
def test_transposed_convolutions_have_scales_along_an_axis_that_fits(build, group):
    node = helper.make_node("ConvTranspose", ["x", "t"], ["y"], name="up", group=group)
    array = weights(16, 16, 3, 3)[:, : 16 // group] if group < 16 else weights(16, 1, 6, 6)
    model = build([node], {"x": [1, 16, 4, 4]}, {"y": None}, {"t": array})
    stored, left = store(model, UP)
    assert not left
    (up,) = (node for node in stored.graph if node.op_type == "ConvTranspose")
    axis = 1 if group == 1 else 0
    step = np.abs(array).max(axis=tuple(i for i in range(4) if i != axis), keepdims=True) / 127
    assert (np.abs(stored_floats(up.inputs[1]) - array) <= step * 0.5001).all()


@pytest.mark.parametrize(
    "scheme",
    [TensorScheme(dtype("int8"), granularity=PER_TENSOR), TensorScheme(dtype("uint8"), symmetric=False)],
    ids=["one scale", "zero point"],
)
def test_other_schemes_are_stored_too(one, image, scheme, tmp_path):
    stored, _ = store(one, CONV, weight=scheme)
    array = weights(16, 3, 3, 3)
    (conv,) = (node for node in stored.graph if node.op_type == "Conv")
    assert np.abs(stored_floats(conv.inputs[1]) - array).max() <= np.ptp(array) / 250
    assert "Cast" not in loaded(stored, tmp_path)
    assert np.isfinite(outputs(stored, image)[0]).all()


def test_a_weight_that_several_read_is_stored_once_and_only_where_all_have_it_so(build, image):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
        helper.make_node("Conv", ["x", "w"], ["b"], name="again"),
        helper.make_node("Add", ["a", "b"], ["y"], name="add"),
    ]
    model = build(nodes, {"x": [1, 3, 8, 8]}, {"y": None}, {"w": weights(16, 3, 3, 3)})
    stored, left = store(model, CONV, ("again", "Conv"))
    assert [node.op_type for node in stored.graph] == ["Cast", "Mul", "Conv", "Conv", "Add"]
    assert not left
    assert np.isfinite(outputs(stored, image)[0]).all()
    kept, left = store(model, CONV)
    assert [node.op_type for node in kept.graph] == ["Conv", "Conv", "Add"]
    assert left == {CONV: "another op reads its weight as well, in float"}


def test_a_weight_that_the_model_hands_out_stays(build):
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    model = build([node], {"x": [1, 3, 8, 8]}, {"y": None, "w": [16, 3, 3, 3]}, {"w": weights(16, 3, 3, 3)})
    assert "another op" in store(model, CONV)[1][CONV]


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_weights_of_subgraphs_are_stored_where_they_are(where, image, tmp_path):
    constant = numpy_helper.from_array(weights(16, 3, 3, 3), "w")
    result = helper.make_tensor_value_info("z", 1, None)
    conv = helper.make_node("Conv", ["x", "w"], ["z"], name="conv")
    other = helper.make_node("Sigmoid", ["x"], ["z"], name="sigmoid")
    branches = {
        "then_branch": helper.make_graph([conv], "then", [], [result], [constant] if where == "inside" else []),
        "else_branch": helper.make_graph([other], "else", [], [result]),
    }
    inputs = [helper.make_tensor_value_info("x", 1, [1, 3, 8, 8]), helper.make_tensor_value_info("flag", 9, [])]
    graph = helper.make_graph(
        [helper.make_node("If", ["flag"], ["y"], name="if", **branches)],
        "outer",
        inputs,
        [helper.make_tensor_value_info("y", 1, None)],
        [constant] if where == "outside" else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feed = image | {"flag": np.array(True)}
    expected = outputs(model, feed)[0]
    stored, left = store(model, CONV)
    assert not left
    np.testing.assert_allclose(outputs(stored, feed)[0], expected, atol=np.abs(expected).max() / 50)
    assert sorted(loaded(stored, tmp_path)) == ["Conv", "If", "Sigmoid"]


def test_what_cannot_be_stored_or_would_not_be_smaller_says_so(build):
    nodes = [
        helper.make_node("Conv", ["x", "small"], ["a"], name="small"),
        helper.make_node("Conv", ["a", "given"], ["y"], name="given"),
    ]
    model = build(nodes, {"x": [1, 3, 8, 8], "given": [8, 3, 3, 3]}, {"y": None}, {"small": weights(3, 3, 3, 3)})
    reasons = {name: why for (name, _), why in storable_nodes(normalise(ir.from_proto(model))).items()}
    assert reasons == {
        "small": "its weight would not be smaller in int8",
        "given": "its weight is not a constant",
    }
    stored, left = store(model, ("small", "Conv"), ("given", "Conv"), ("gone", "Conv"))
    assert {name: left[name, "Conv"] for name in reasons} == reasons
    assert "not needed" in left["gone", "Conv"]
    assert [node.op_type for node in stored.graph] == ["Conv", "Conv"]


def test_the_least_weight_that_is_stored_makes_the_file_smaller(build):
    names = {"w": "/model/backbone/stage.3/blocks.11/depthwise/conv.weight"}
    for inputs in range(1, 40):
        node = helper.make_node("Conv", ["x", names["w"]], ["y"], name="/model/backbone/stage.3/blocks.11/Conv")
        model = build([node], {"x": [1, inputs, 8, 8]}, {"y": None}, {names["w"]: weights(4, inputs, 3, 3)})
        stored, left = store(model, (node.name, "Conv"))
        if not left:
            break
    assert ir.to_proto(stored).ByteSize() < ir.to_proto(normalise(ir.from_proto(model))).ByteSize()


def test_weights_in_a_file_of_their_own_are_stored(one, image, tmp_path):
    expected = outputs(store(one, CONV)[0], image)[0]
    data = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save(one, tmp_path / "model.onnx", **data)
    stored = normalise(read_model(tmp_path / "model.onnx"))
    assert not store_weights(stored, planned(CONV))
    proto = onnx.load(write_model(stored, tmp_path / "stored.onnx"))
    np.testing.assert_array_equal(outputs(proto, image)[0], expected)


def test_a_broken_weight_names_the_node(build):
    array = weights(16, 3, 3, 3)
    array[3, 1, 1, 1] = np.nan
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    with pytest.raises(QuantizationError, match="'conv'"):
        store(build([node], {"x": [1, 3, 8, 8]}, {"y": None}, {"w": array}), CONV)


def test_a_plan_says_it_with_a_weight_and_no_activation():
    scheme = OpScheme(STORED, mode="static")
    assert is_stored(CONV, scheme)
    assert is_stored(UP, OpScheme.from_dict(scheme.to_dict()))
    assert not is_stored(("table", "Gather"), scheme)
    assert not is_stored(CONV, float_op())
    assert not is_stored(CONV, OpScheme(STORED, TensorScheme(dtype("uint8")), "static"))


def test_other_values_are_not_taken_for_stored_weights(one):
    model = normalise(ir.from_proto(one))
    assert all(stored_floats(value) is None for node in model.graph for value in node.inputs)
