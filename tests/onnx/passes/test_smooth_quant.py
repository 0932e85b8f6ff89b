"""Outliers of activations moved into the weights."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor.algorithms.smoothquant import AUTO_ALPHAS, check_alpha
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.onnx.graph.linear_ops import linear_ops
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.methods.static.quantizer import quantize_static
from neural_compressor.onnx.passes.smooth_quant import (
    INT8_A_CHANNEL,
    ChannelStatistics,
    channel_statistics,
    group_scale,
    output_error,
    smooth,
)
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader, Samples
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import PER_CHANNEL, OpScheme, PerChannel, Plan, TensorScheme, fake_quantize, sqnr_db

WIDTH, OUTLIERS = 32, (3, 17)


@pytest.fixture
def model(build):
    """Normalisation with two channels of outliers; two products that share its output, a gated third one."""
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.5, 1.5, WIDTH)
    scale[list(OUTLIERS)] = 80
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["n"], name="norm", axis=-1),
        helper.make_node("MatMul", ["n", "up"], ["u"], name="up"),
        helper.make_node("MatMul", ["n", "gate"], ["g"], name="gate"),
        helper.make_node("Sigmoid", ["g"], ["s"], name="sigmoid"),
        helper.make_node("Mul", ["u", "s"], ["m"], name="mul"),
        helper.make_node("Gemm", ["m", "down", "bias"], ["y"], name="down"),
    ]
    constants = {
        "scale": scale,
        "shift": rng.normal(size=WIDTH),
        "up": rng.normal(size=(WIDTH, 48)) * 0.1,
        "gate": rng.normal(size=(WIDTH, 48)) * 0.1,
        "down": rng.normal(size=(48, 16)),
        "bias": rng.normal(size=16),
    }
    return normalise(ir.from_proto(build(nodes, {"x": ["n", WIDTH]}, {"y": ["n", 16]}, constants)))


@pytest.fixture
def images(build):
    """Three convolutions, one of groups and one by channel, with a dead channel between."""
    rng = np.random.default_rng(1)
    first = rng.normal(size=(8, 4, 3, 3))
    first[5], first[2] = 0, first[2] * 50
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["b"], name="groups", group=2),
        helper.make_node("Conv", ["b", "w3"], ["y"], name="depthwise", group=6),
    ]
    constants = {"w1": first, "w2": rng.normal(size=(6, 4, 3, 3)), "w3": rng.normal(size=(6, 1, 2, 2))}
    return normalise(ir.from_proto(build(nodes, {"x": ["n", 4, 8, 8]}, {"y": None}, constants)))


def data(*shape, count=4):
    rng = np.random.default_rng(2)
    return [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(count)]


def outputs(model, samples):
    session = make_session(model)
    return np.concatenate([session.run(None, sample)[0] for sample in samples])


def kinds(model):
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, "auto", [0.2, 0.8]], ids=str)
@pytest.mark.parametrize("folding", [True, False])
@pytest.mark.parametrize("scales_per_op", [True, False])
def test_the_smoothed_model_computes_the_same(model, images, alpha, folding, scales_per_op):
    for each, samples in ((model, data(16, WIDTH)), (images, data(2, 4, 8, 8))):
        expected = outputs(each, samples)
        new = smooth(each, samples, alpha, folding=folding, scales_per_op=scales_per_op)
        onnx.checker.check_model(ir.to_proto(new), full_check=True)
        np.testing.assert_allclose(outputs(new, samples), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        np.testing.assert_array_equal(outputs(each, samples), expected)


def test_outlier_channels_shrink(model):
    samples = data(16, WIDTH)

    def spread(each):
        value = next(op.input.name for op in linear_ops(each) if op.node.name == "up")
        absmax = channel_statistics(each, {value: -1}, samples)[value].absmax
        return absmax.max() / np.median(absmax)

    assert spread(smooth(model, samples, 0.5)) < 0.3 * spread(model)


def test_shared_scales_fold_into_what_comes_before_and_own_scales_need_a_node_each(model):
    samples = data(16, WIDTH)
    folded = smooth(model, samples, scales_per_op=False)
    assert kinds(folded) == kinds(model)
    # Two products read the same value: with scales of their own each needs it divided for itself.
    assert kinds(smooth(model, samples)).count("Mul") == kinds(model).count("Mul") + 2
    assert kinds(smooth(model, samples, folding=False, scales_per_op=False)).count("Mul") == 1 + 2


def test_convolutions_fold_through_the_activation_between_them(images):
    samples = data(2, 4, 8, 8)
    new = smooth(images, samples)
    assert kinds(new) == ["Mul", *kinds(images)]  # nothing comes before the first one


def test_only_the_op_types_asked_for_are_smoothed(model):
    new = smooth(model, data(16, WIDTH), op_types=["Gemm"], folding=False)
    assert [n.name for n in new.graph if n.op_type == "Mul"] == ["mul", "down_Mul"]


def test_the_error_of_static_int8_gets_smaller(model):
    samples = data(64, WIDTH)
    weight = TensorScheme(dtype("int8"), granularity=PER_CHANNEL, pair_safe=True)
    scheme = OpScheme(weight, TensorScheme(dtype("uint8"), symmetric=False), "static")
    plan = Plan({("up", "MatMul"): scheme, ("gate", "MatMul"): scheme})
    expected = outputs(model, samples)

    def exactness(each):
        return sqnr_db(expected, outputs(quantize_static(each, plan, Samples(_Reader(samples))), samples))

    plain = exactness(model)
    assert exactness(smooth(model, samples, 0.5)) > plain + 6
    assert exactness(smooth(model, samples, "auto", scales_per_op=False)) > plain + 6


class _Reader(CalibrationDataReader):
    def __init__(self, samples):
        self.samples = samples
        self.rewind()

    def get_next(self):
        return next(self._rest, None)

    def rewind(self):
        self._rest = iter(self.samples)


def test_the_expected_error_is_the_error_that_is_measured(model):
    """Of the product in 8 bits, over many inputs, for scales good and bad."""
    samples = data(2000, WIDTH, count=1)
    op = next(o for o in linear_ops(model) if o.node.name == "up")
    x = make_session(model, ["n"]).run(None, samples[0])[0]
    seen = channel_statistics(model, {"n": -1}, samples)["n"]
    reach = np.abs(op.weight).max(axis=1)
    for alpha in (None, 0.3, 0.5, 0.9):
        scale = np.ones(WIDTH, np.float32) if alpha is None else group_scale([op], seen, [alpha])
        assert scale.shape == reach.shape
        rounded_x = fake_quantize(x / scale, TensorScheme(dtype("uint8"), symmetric=False))
        rounded_w = fake_quantize(op.scaled(scale), TensorScheme(dtype("int8"), granularity=PerChannel(1)))
        measured = np.square(rounded_x @ rounded_w - x @ op.weight).sum(axis=1).mean()
        assert output_error(op, seen, scale) == pytest.approx(measured, rel=0.35)


def test_auto_takes_the_least_error_and_no_scale_where_none_helps(model):
    seen = channel_statistics(model, {"n": -1, "m": -1}, data(64, WIDTH))
    up, down = (next(o for o in linear_ops(model) if o.node.name == name) for name in ("up", "down"))
    best = group_scale([up], seen["n"], AUTO_ALPHAS)
    each = [output_error(up, seen["n"], group_scale([up], seen["n"], [alpha])) for alpha in AUTO_ALPHAS]
    assert output_error(up, seen["n"], best) == pytest.approx(min(each))
    # Channels that are alike already, and weights made uneven by what hardly looks at them.
    flat = ChannelStatistics(-np.ones(48), np.ones(48), np.ones(48) / 3, 64)
    assert group_scale([down], flat, [0.0, 0.1]) is None


def test_auto_goes_by_the_scales_that_the_weights_will_have(model):
    """One scale for all of a weight has less room for outliers than one a channel, and another alpha is best."""
    whole, seen = TensorScheme(dtype("int8")), channel_statistics(model, {"n": -1}, data(64, WIDTH))["n"]
    op = next(o for o in linear_ops(model) if o.node.name == "up")
    uneven = np.asarray(op.weight) * np.geomspace(0.01, 1, op.weight.shape[1], dtype=np.float32)
    op.node.inputs[1].const_value = ir.tensor(uneven)
    x = make_session(model, ["n"]).run(None, data(64, WIDTH)[0])[0]

    def measured(scale):
        rounded_x = fake_quantize(x / scale, TensorScheme(dtype("uint8"), symmetric=False))
        return np.square(rounded_x @ fake_quantize(op.scaled(scale), whole) - x @ op.weight).sum()

    ones = np.ones(WIDTH, np.float32)
    best, other = (group_scale([op], seen, AUTO_ALPHAS, scheme) for scheme in (whole, INT8_A_CHANNEL))
    assert best is None or measured(best) <= measured(ones)
    assert measured(ones if best is None else best) < measured(other)


def test_a_channel_too_small_for_a_step_loses_no_more_than_it_has(model):
    op = next(o for o in linear_ops(model) if o.node.name == "up")
    high = np.full(WIDTH, 1e-3)
    high[0] = 255.0
    seen = ChannelStatistics(-0 * high, high, high**2 / 3, 1000)
    exact = replace_weight(op, np.sign(op.weight))
    assert output_error(exact, seen, np.ones(WIDTH)) == pytest.approx(op.weight.shape[1] / 12, rel=0.01)


def replace_weight(op, weight):
    """``op`` with another weight: ones, which integers hold exactly."""
    op.node.inputs[1].const_value = ir.tensor(weight.astype(np.float32))
    return op


def test_no_more_samples_are_read_than_asked_for(model):
    read = []

    def reading():
        for sample in data(8, WIDTH, count=9):
            read.append(1)
            yield sample

    smooth(model, reading(), calib_iter=3)
    assert len(read) == 3


def test_statistics_in_parts_are_those_of_the_whole():
    x = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    whole, parts = ChannelStatistics.of(x), ChannelStatistics.of(x[:7]) + ChannelStatistics.of(x[7:])
    for name in ("low", "high", "mean_square"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-6)
    np.testing.assert_allclose(whole.mean_square, (x**2).mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("alpha", [-0.1, 1.5, "automatic", [], [0.5, 2], True, None])
def test_an_alpha_that_makes_no_sense_is_an_error(alpha):
    with pytest.raises(ConfigError, match="alpha is"):
        check_alpha(alpha)


def test_bad_data_is_an_error(model):
    with pytest.raises(CalibrationError, match="NaN"):
        smooth(model, [{"x": np.full((2, WIDTH), np.nan, np.float32)}])
    with pytest.raises(CalibrationError, match="sample 0"):
        smooth(model, [{"x": np.ones((2, 5), np.float32)}])
    with pytest.raises(CalibrationError):
        smooth(model, [])


def test_a_model_without_products_stays_as_it_is(build, caplog):
    plain = normalise(
        ir.from_proto(build([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]}, {}))
    )
    assert kinds(smooth(plain, data(2, 4))) == ["Relu"]
    assert "nothing to smooth" in caplog.text
