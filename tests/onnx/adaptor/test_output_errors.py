"""How far the outputs of quantized ops are off."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from neural_compressor.dtypes import dtype
from neural_compressor.onnx.adaptor import op_records as module
from neural_compressor.onnx.adaptor.onnxrt import ONNXRTAdaptor
from neural_compressor.onnx.adaptor.op_records import output_errors, own_errors
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.schemes import Method, OpScheme, Pass, PerGroup, Plan, TensorScheme

CPU = ("CPUExecutionProvider",)


@pytest.fixture
def chain(build):
    """``chain(noise)``: three products whose weights are off by some noise."""
    rng = np.random.default_rng(0)
    weights, noises = rng.normal(size=(3, 8, 8)), rng.normal(size=(3, 8, 8))

    def make(noise):
        nodes = [helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], name=f"m{i}") for i in range(3)]
        constants = {f"w{i}": weights[i] + noise * noises[i] for i in range(3)}
        return normalise(ir.from_proto(build(nodes, {"v0": ["n", 8]}, {"v3": ["n", 8]}, constants)))

    return make


def by_hand(original, noisy, feed):
    x = y = feed
    errors = {}
    for i in range(3):
        x, y = (v @ m.graph.initializers[f"w{i}"].const_value.numpy() for v, m in ((x, original), (y, noisy)))
        errors[f"m{i}"] = np.sum((x - y) ** 2) / np.sum(x**2)
    return errors


@pytest.mark.parametrize("at_a_time", [1, 1 << 28])
def test_errors_are_those_of_the_outputs_whatever_fits_at_a_time(chain, monkeypatch, at_a_time):
    monkeypatch.setattr(module, "_AT_A_TIME", at_a_time)
    original, noisy = chain(0.0), chain(0.01)
    feed = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
    feeds = [{"v0": feed[:2]}, {"v0": feed[2:]}]
    found = output_errors(noisy, original, {"m0", "m1", "m2"}, feeds, CPU)
    assert found == pytest.approx(by_hand(original, noisy, feed), rel=0.01)
    assert found["m0"] < found["m2"]  # what came in from before counts


def test_ops_that_are_not_asked_for_or_not_there_are_left_out(chain):
    feed = {"v0": np.ones((2, 8), np.float32)}
    assert set(output_errors(chain(0.1), chain(0.0), {"m1", "gone"}, [feed], CPU)) == {"m1"}
    assert output_errors(chain(0.1), chain(0.0), set(), [feed], CPU) == {}


@pytest.mark.parametrize("at_a_time", [1, 1 << 28])
def test_an_error_of_its_own_is_that_on_the_float_inputs(chain, monkeypatch, at_a_time):
    monkeypatch.setattr(module, "_AT_A_TIME", at_a_time)
    original, noisy = chain(0.0), chain(0.01)
    feed = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
    found = own_errors(noisy, original, {"m0", "m1", "m2"}, [{"v0": feed[:2]}, {"v0": feed[2:]}], CPU)
    x, expected = feed, {}
    for i in range(3):
        exact, off = (x @ m.graph.initializers[f"w{i}"].const_value.numpy() for m in (original, noisy))
        expected[f"m{i}"] = np.sum((exact - off) ** 2) / np.sum(exact**2)
        x = exact
    assert found == pytest.approx(expected, rel=0.01)


ACTIVATION = TensorScheme(dtype("uint8"), symmetric=False)
INT4 = TensorScheme(dtype("int4"), granularity=PerGroup(16))
SCHEMES = {
    "static": OpScheme(TensorScheme(dtype("int8")), ACTIVATION, "static"),
    "dynamic": OpScheme(TensorScheme(dtype("int8")), ACTIVATION, "dynamic"),
    "rtn": OpScheme(INT4, mode="weight_only", method=Method("rtn")),
    "awq": OpScheme(INT4, mode="weight_only", method=Method("awq")),
}


@pytest.mark.parametrize("mode", SCHEMES)
def test_the_adaptor_gives_what_each_op_gives_when_it_alone_is_quantized(build, mode):
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="m0"),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("MatMul", ["b", "w1"], ["c"], name="m1"),
        helper.make_node("Mul", ["c", "s"], ["d"], name="scale"),
        helper.make_node("MatMul", ["d", "w2"], ["y"], name="m2"),
    ]
    constants = {f"w{i}": rng.normal(size=(32, 32)).astype(np.float32) for i in range(3)}
    constants["s"] = np.exp(rng.normal(size=32)).astype(np.float32)
    model = build(nodes, {"x": ["n", 32]}, {"y": ["n", 32]}, constants)
    data = [(rng.normal(size=(16, 32)).astype(np.float32), 0) for _ in range(4)]
    passes = [Pass("optimize", {"level": "DISABLE_ALL", "simplify": "none"})]
    ops = {(f"m{i}", "MatMul"): SCHEMES[mode] for i in range(3)}
    found = ONNXRTAdaptor().op_errors(Plan(ops, passes=passes), model, data)
    for key, scheme in ops.items():
        (alone,) = ONNXRTAdaptor().op_errors(Plan({key: scheme}, passes=passes), model, data).values()
        assert found[key] == pytest.approx(alone, rel=0.05), key
    assert max(found.values()) < 3 * min(found.values()) + 1e-4


@pytest.mark.parametrize("asked", [2, 100])
def test_samples_are_counted(build, asked):
    weight = np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32)
    model = build(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], {"x": [1, 32]}, {"y": [1, 32]}, {"w": weight}
    )
    data = [(np.random.default_rng(i).normal(size=(1, 32)).astype(np.float32), 0) for i in range(5)]
    adaptor = ONNXRTAdaptor()
    plan = Plan({("m", "MatMul"): SCHEMES["static"]}, asked)
    adaptor.quantize(plan.to_tune_cfg(), model, data)
    assert adaptor.samples_seen == {asked: min(asked, 5)}
