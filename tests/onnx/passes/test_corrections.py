"""Layers whose weights are rounded, corrected so that their outputs keep mean and spread."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.dtypes import dtype
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.graph.ops import quantizable_nodes
from neural_compressor.onnx.passes.corrections import Corrections, corrected
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import OpScheme, PerChannel, PerTensor, Plan, TensorScheme, quantize

CPU = ("CPUExecutionProvider",)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Reader:
    """The same samples again and again."""

    def __init__(self, samples):
        self.samples = samples
        self.rewind()

    def get_next(self):
        return next(self.rest, None)

    def rewind(self):
        self.rest = iter(self.samples)


LAYERS = {
    "conv": (helper.make_node("Conv", ["x", "w"], ["y"], name="op"), (2, 4, 6, 6), {"w": (8, 4, 1, 1)}),
    "conv with a bias": (
        helper.make_node("Conv", ["x", "w", "b"], ["y"], name="op"),
        (2, 4, 6, 6),
        {"w": (8, 4, 1, 1), "b": (8,)},
    ),
    "conv in groups": (
        helper.make_node("Conv", ["x", "w"], ["y"], name="op", group=2),
        (2, 4, 6, 6),
        {"w": (6, 2, 1, 1)},
    ),
    "gemm": (helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="op"), (16, 12), {"w": (12, 8), "b": (8,)}),
    "gemm transposed": (helper.make_node("Gemm", ["x", "w"], ["y"], name="op", transB=1), (16, 12), {"w": (8, 12)}),
    "matmul": (helper.make_node("MatMul", ["x", "w"], ["y"], name="op"), (3, 5, 12), {"w": (12, 8)}),
}


def layer(name, build):
    node, shape, weights = LAYERS[name]
    arrays = {key: normal(*size, seed=i) for i, (key, size) in enumerate(weights.items())}
    rank = len(shape)
    model = build([node], {"x": ["n", *shape[1:]]}, {"y": [None] * rank}, arrays)
    return normalise(read_model(model)), normal(*shape, seed=9) + 3 * np.arange(shape[-1]).astype(np.float32)


def plan_of(model, granularity=None):
    weight = TensorScheme(dtype("int4"), symmetric=True, granularity=granularity or PerChannel(0))
    activation = TensorScheme(dtype("uint8"), symmetric=False)
    return Plan({key: OpScheme(weight, activation, "static") for key in quantizable_nodes(model)})


def with_rounded_weight(model, granularity=None):
    """What quantization makes of the weight, and of nothing else."""
    new = model.clone()
    (info,) = quantizable_nodes(new).values()
    per_channel = PerChannel(info.axis) if granularity is None else granularity
    scheme = TensorScheme(dtype("int4"), symmetric=True, granularity=per_channel)
    info.weight.const_value = ir.tensor(quantize(info.weight.const_value.numpy(), scheme).dequantize())
    return new


def run(model, x):
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return make_session(model).run(None, {"x": x})[0]


def channel_means(array, name):
    return array.mean(axis=tuple(i for i in range(array.ndim) if i != (1 if "conv" in name else array.ndim - 1)))


@pytest.mark.parametrize("name", LAYERS)
def test_the_bias_brings_the_mean_of_each_output_back(name, build):
    model, x = layer(name, build)
    samples = Samples(Reader([{"x": part} for part in np.split(x, len(x))]))
    new = corrected(model, plan_of(model), samples, Corrections(bias=True), CPU)
    models = (model, with_rounded_weight(model), with_rounded_weight(_one_layer(new)))
    exact, plain, mended = (channel_means(run(each, x), name) for each in models)
    assert np.abs(plain - exact).max() > 0.01
    np.testing.assert_allclose(mended, exact, atol=2e-4)


def _one_layer(model):
    """The model with the addition behind a product, which is no layer, not among its quantizable nodes."""
    model = model.clone()
    for node in model.graph:
        if node.op_type == "Add":
            node.op_type = "Sum"
    return model


@pytest.mark.parametrize("granularity", [None, PerTensor()], ids=["each channel", "the tensor"])
def test_the_weight_keeps_its_spread(granularity, build):
    model, _ = layer("conv in groups", build)
    new = corrected(model, plan_of(model, granularity), Samples(Reader([])), Corrections(weight=True), CPU)
    (before,), (after,) = (quantizable_nodes(m).values() for m in (model, with_rounded_weight(new, granularity)))
    axes = (1, 2, 3) if granularity is None else None
    exact, found = (np.std(i.weight.const_value.numpy(), axis=axes) for i in (before, after))
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    (plain,) = quantizable_nodes(with_rounded_weight(model, granularity)).values()
    assert np.abs(np.std(plain.weight.const_value.numpy(), axis=axes) - exact).max() > 1e-3


def test_an_addition_behind_a_product_takes_the_correction_up(build):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="op"),
        helper.make_node("Add", ["p", "b"], ["y"], name="add"),
    ]
    model = normalise(
        read_model(build(nodes, {"x": ["n", 5, 12]}, {"y": ["n", 5, 8]}, {"w": normal(12, 8), "b": normal(8)}))
    )
    plan = Plan({key: scheme for key, scheme in plan_of(model).items() if key[1] == "MatMul"})
    x = normal(4, 5, 12) + 1
    new = corrected(model, plan, Samples(Reader([{"x": x}])), Corrections(bias=True), CPU)
    assert [node.op_type for node in new.graph] == ["MatMul", "Add"]
    assert new.graph.outputs[0].name == "y"


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_recipes_make_a_coarse_model_better(form, digits_model, digits, tmp_path):
    images = digits[0]

    def error(**recipes):
        rule = {"weight": {"granularity": "per_tensor"}}
        conf = PostTrainingQuantConfig(
            quant_format=form, backend="default", device="cpu", op_type_dict={"MatMul|Gemm": rule}, recipes=recipes
        )
        done = quantization.fit(
            digits_model, conf, calib_dataloader=[(images[:200], 0)], workspace=tmp_path, quiet=True
        )
        onnx.checker.check_model(done.model, full_check=True)
        exact, found = (done.adaptor.predict(m, images[:200]) for m in (digits_model, done.model))
        return np.abs((found - exact).mean(axis=0)).max()

    assert error(fast_bias_correction=True, weight_correction=True) < 0.7 * error()


def test_layers_that_stay_in_float_are_not_corrected(build, tmp_path):
    """Groups of few channels are slower in integers: their weight stays as it is, but for int8 by channel."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="first"),
        helper.make_node("Conv", ["h", "g"], ["y"], name="grouped", group=4),
    ]
    weights = {"w": normal(8, 4, 1, 1), "g": normal(8, 2, 3, 3, seed=1)}
    model = build(nodes, {"x": [1, 4, 6, 6]}, {"y": [1, 8, 4, 4]}, weights)
    data = [{"x": normal(1, 4, 6, 6, seed=10 + i)} for i in range(4)]
    rule = {"Conv": {"weight": {"granularity": ["per_tensor"]}}}
    recipes = {"weight_correction": True, "fast_bias_correction": True}
    found = []
    for each in (recipes, {}):
        conf = PostTrainingQuantConfig(recipes=each, quant_format="QDQ", op_type_dict=rule)
        new = quantization.fit(model, conf, calib_dataloader=data, workspace=tmp_path, quiet=True).model
        (conv,) = (node for node in new.graph.node if node.name == "grouped")
        found.append(len(conv.input))
    assert found == [2, 2]  # no bias was added to it
