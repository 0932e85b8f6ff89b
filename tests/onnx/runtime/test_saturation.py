"""Weights that give the same on every x86 CPU, and models that do not."""

import logging

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.adaptor import ONNXRTAdaptor
from neural_compressor.onnx.files.quantization_record import read_record
from neural_compressor.onnx.graph.sum_order import conv_order, matrix_order
from neural_compressor.onnx.quantization import DynamicQuantConfig, StaticQuantConfig, quantize
from neural_compressor.onnx.quantization.config import get_integer_tuning_config
from neural_compressor.onnx.runtime import saturation
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader
from neural_compressor.onnx.runtime.saturation import overflowing_ops, saturates_here, warn_if_saturating

ONE = np.float32(1)


def large(*shape: int, seed: int = 0) -> np.ndarray:
    """Weights near the ends of their range, mostly of one sign, as no pair of which is safe by itself."""
    rng = np.random.default_rng(seed)
    return (rng.uniform(0.8, 1, shape) * np.where(rng.random(shape) < 0.9, 1, -1)).astype(np.float32)


def model_of(nodes, inputs, outputs, weights, domains=("",)):
    imports = [helper.make_opsetid(domain, 1 if domain else 17) for domain in domains]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def read(model: onnx.ModelProto) -> ir.Model:
    return ir.from_proto(model)


class Reader(CalibrationDataReader):
    def __init__(self, samples):
        self.samples = samples
        self.rewind()

    def get_next(self):
        return next(self.rest, None)

    def rewind(self):
        self.rest = iter(self.samples)


def product(bias: bool = False):
    """A product of 40 by 24, whose inputs are the largest there are."""
    node = helper.make_node("Gemm" if bias else "MatMul", ["x", "w", *(["b"] if bias else [])], ["y"], name="product")
    weights = {"w": large(40, 24), **({"b": large(24)} if bias else {})}
    model = model_of([node], [("x", TensorProto.FLOAT, ["n", 40])], [("y", TensorProto.FLOAT)], weights)
    x = np.ones((3, 40), np.float32)
    return model, {"x": x}, x @ weights["w"] + weights.get("b", 0)


def conv(inputs=6, groups=1, kernel=(3, 3), outputs=12):
    weight = large(outputs, inputs // groups, *kernel)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", group=groups)
    shape = [1, inputs, *(size + 2 for size in kernel)]
    model = model_of([node], [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT)], {"w": weight})
    exact = np.zeros((1, outputs, *[3] * len(kernel)), np.float32)
    exact += weight.sum(axis=tuple(range(1, weight.ndim))).reshape(1, -1, *[1] * len(kernel))
    return model, {"x": np.ones(shape, np.float32)}, exact


def recurrent():
    """An LSTM whose sums are large, scaled so that its gates are not at their ends."""
    size, hidden = 8, 6
    w, r = large(1, 4 * hidden, size) / 30, large(1, 4 * hidden, hidden, seed=1) / 30
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="lstm", hidden_size=hidden)
    x = np.ones((2, 1, size), np.float32)
    model = model_of([node], [("x", TensorProto.FLOAT, x.shape)], [("y", TensorProto.FLOAT)], {"w": w, "r": r})
    return model, {"x": x}, run(model, {"x": x})


def attention():
    size = 16
    node = helper.make_node("Attention", ["x", "w", "b"], ["y"], name="attention", domain="com.microsoft", num_heads=2)
    x = np.ones((1, 3, size), np.float32)
    weights = {"w": large(size, 3 * size), "b": np.zeros(3 * size, np.float32)}
    domains = ("", "com.microsoft")
    model = model_of([node], [("x", TensorProto.FLOAT, x.shape)], [("y", TensorProto.FLOAT)], weights, domains)
    return model, {"x": x}, x @ weights["w"][:, 2 * size :]


def run(model, feeds):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def static(feeds, **more):
    return StaticQuantConfig(Reader([feeds, {k: 0 * v for k, v in feeds.items()}]), **more)


STATIC = {
    "product": product,
    "product with bias": lambda: product(bias=True),
    "convolution": conv,
    "convolution of odd channels": lambda: conv(5),
    "convolution of one channel": lambda: conv(1),
    "groups": lambda: conv(16, 2, outputs=16),
    "signals": lambda: conv(6, kernel=(3,)),
    "volumes": lambda: conv(3, kernel=(2, 2, 2)),
}
DYNAMIC = {
    "product": product,
    "product with bias": lambda: product(bias=True),
    "lstm": recurrent,
    "attention": attention,
}


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("quant_format", ["QDQ", "QOperator"])
@pytest.mark.parametrize("make", STATIC.values(), ids=STATIC)
def test_static_models_travel(make, quant_format, per_channel):
    """Large inputs, large weights: sums that do not fit are cut off at half of what they are."""
    model, feeds, exact = make()
    config = static(feeds, quant_format=quant_format, per_channel=per_channel)
    new = quantize(model, None, config)
    assert overflowing_ops(read(new)) == []
    assert read_record(read(new)).target_cpu == "any"
    np.testing.assert_allclose(run(new, feeds), exact, atol=0.02 * np.abs(exact).max())


@pytest.mark.parametrize("quant_format", ["QDQ", "QOperator"])
@pytest.mark.parametrize("make", STATIC.values(), ids=STATIC)
def test_signed_activations_travel(make, quant_format):
    """Between quantizers the runtime makes unsigned ones of them."""
    model, feeds, exact = make()
    new = quantize(model, None, static(feeds, quant_format=quant_format, activation_type="QInt8", per_channel=True))
    np.testing.assert_allclose(run(new, feeds), exact, atol=0.02 * np.abs(exact).max())


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("make", DYNAMIC.values(), ids=DYNAMIC)
def test_dynamic_models_travel(make, per_channel):
    model, feeds, exact = make()
    new = quantize(model, None, DynamicQuantConfig(per_channel=per_channel))
    assert overflowing_ops(read(new)) == []
    assert read_record(read(new)).target_cpu == "any"
    np.testing.assert_allclose(run(new, feeds), exact, atol=0.02 * np.abs(exact).max())


@pytest.mark.parametrize("make", STATIC.values(), ids=STATIC)
def test_weights_for_vnni_use_all_of_int8(make):
    model, feeds, exact = make()
    new = quantize(model, None, static(feeds, per_channel=True, target_cpu="vnni"))
    assert overflowing_ops(read(new)) == [model.graph.node[0].name]
    assert read_record(read(new)).target_cpu == "vnni"
    right = np.allclose(run(new, feeds), exact, atol=0.02 * np.abs(exact).max())
    assert right != saturates_here()


def test_what_no_kernel_adds_in_pairs_is_rounded_as_ever():
    """Depthwise convolutions and unsigned weights."""
    model, feeds, exact = conv(12, 12)
    reader = static(feeds).calibration_data_reader
    for more in (
        {"nodes_to_quantize": ["conv"]},
        {"weight_type": "QUInt8", "extra_options": {"WeightSymmetric": True}},
    ):
        both = [quantize(model, None, StaticQuantConfig(reader, target_cpu=cpu, **more)) for cpu in ("any", "vnni")]
        any_cpu, vnni = ({t.name: t for t in new.graph.initializer} for new in both)
        assert any_cpu == vnni, more
        assert [read_record(read(new)).target_cpu for new in both] == ["any", "any"]
        np.testing.assert_allclose(run(both[0], feeds), exact, atol=0.02 * np.abs(exact).max())


def test_signed_zero_points_leave_a_bit():
    model, feeds, exact = product()
    new = quantize(model, None, static(feeds, extra_options={"WeightSymmetric": False}))
    assert overflowing_ops(read(new)) == []
    np.testing.assert_allclose(run(new, feeds), exact, atol=0.03 * np.abs(exact).max())


@pytest.mark.parametrize("approach", ["static", "dynamic"])
@pytest.mark.parametrize("cpu", ["any", "vnni"])
def test_fit_gives_what_quantize_gives(cpu, approach):
    model, feeds, _ = product()
    conf = PostTrainingQuantConfig(approach=approach, recipes={"target_cpu": cpu}, quant_format="QDQ")
    fitted = quantization.fit(model, conf, calib_dataloader=[feeds, {"x": 0 * feeds["x"]}]).model
    mine = (
        static(feeds, per_channel=True, quant_format="QDQ", target_cpu=cpu)
        if approach == "static"
        else DynamicQuantConfig(per_channel=True, target_cpu=cpu)
    )
    quantized = quantize(model, None, mine)
    assert read_record(read(fitted)).target_cpu == read_record(read(quantized)).target_cpu == cpu
    codes = [
        next(numpy_helper.to_array(t) for t in new.graph.initializer if t.data_type == TensorProto.INT8 and t.dims)
        for new in (fitted, quantized)
    ]
    np.testing.assert_array_equal(*codes)


def test_reduce_range_is_about_weights_alone():
    model, feeds, exact = product()
    new = quantize(model, None, static(feeds, reduce_range=True, per_channel=True))
    record = read_record(read(new))
    scheme = record.ops["product", "MatMul"]
    assert scheme.weight.reduce_range
    assert not scheme.weight.pair_safe
    assert not scheme.activation.reduce_range
    assert record.target_cpu == "any"
    np.testing.assert_allclose(run(new, feeds), exact, atol=0.03 * np.abs(exact).max())


def test_a_reduced_range_is_that_of_onnx_runtime(tmp_path):
    """Up to 64 either way: two products of it and a uint8 are 255 * (64 + 64) = 32640, which 16 bits hold."""
    from onnxruntime.quantization import CalibrationDataReader as TheirReader
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    model, feeds, exact = product()
    mine = quantize(model, None, static(feeds, reduce_range=True, per_channel=True, quant_format="QDQ"))
    samples = iter([feeds])
    reader = type("Reader", (TheirReader,), {"get_next": lambda self: next(samples, None)})()
    quantize_static(
        model,
        str(tmp_path / "theirs.onnx"),
        reader,
        quant_format=QuantFormat.QDQ,
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=True,
    )
    codes = [
        next(
            numpy_helper.to_array(t)
            for t in new.graph.initializer
            if t.data_type == TensorProto.INT8 and len(t.dims) > 1
        )
        for new in (mine, onnx.load(tmp_path / "theirs.onnx"))
    ]
    np.testing.assert_array_equal(*codes)
    assert np.abs(codes[0].astype(int)).max() == 64
    assert not overflowing_ops(read(mine))
    np.testing.assert_allclose(run(mine, feeds), exact, atol=0.03 * np.abs(exact).max())


def test_reduce_range_means_the_same_in_fit():
    model, feeds, _ = product()
    conf = PostTrainingQuantConfig(reduce_range=True, quant_format="QDQ")
    fitted = read_record(read(quantization.fit(model, conf, calib_dataloader=[feeds]).model))
    mine = quantize(model, None, static(feeds, reduce_range=True, per_channel=True, quant_format="QDQ"))
    assert fitted.ops == read_record(read(mine)).ops


def test_a_float_weight_behind_a_quantizer_is_safe_too():
    model, feeds, exact = conv()
    new = quantize(model, None, static(feeds, quant_format="QDQ", extra_options={"AddQDQPairToWeight": True}))
    np.testing.assert_allclose(run(new, feeds), exact, atol=0.02 * np.abs(exact).max())


def test_the_choice_is_known_to_tuning():
    assert {config.target_cpu for config in get_integer_tuning_config()} == {"any"}
    assert {config.target_cpu for config in get_integer_tuning_config("vnni")} == {"vnni"}
    both = StaticQuantConfig(target_cpu=["any", "vnni"]).expand()
    assert [config.target_cpu for config in both] == ["any", "vnni"]


def test_strategies_try_both_where_both_are_asked_for(tmp_path):
    """The first that is tried fails, so that the next one is."""
    model, feeds, _ = product()
    tried = []

    def evaluate(candidate):
        record = read_record(read(candidate))
        if record is not None:
            tried.append(record.target_cpu)
        return 0.0 if record is not None and record.target_cpu == "any" else 1.0

    conf = PostTrainingQuantConfig(
        recipes={"target_cpu": ["any", "vnni"]},
        op_type_dict={
            "MatMul": {
                "weight": {"scheme": ["sym"], "granularity": ["per_channel"]},
                "activation": {"dtype": ["uint8"], "scheme": ["asym"], "algorithm": ["minmax"]},
            }
        },
        quant_format="QDQ",
        quant_level=1,
        tuning_criterion=TuningCriterion(strategy="exhaustive", max_trials=40),
    )
    best = quantization.fit(
        model, conf, calib_dataloader=[feeds], eval_func=evaluate, workspace=tmp_path, quiet=True
    ).model
    assert set(tried) == {"any", "vnni"}
    assert read_record(read(best)).target_cpu == "vnni"


def test_an_unknown_cpu_is_an_error():
    with pytest.raises(ConfigError, match=r"target_cpu.*'avx2'.*any, vnni"):
        StaticQuantConfig(target_cpu="avx2")
    model, feeds, _ = product()
    with pytest.raises(ConfigError, match="avx2"):
        quantization.fit(model, PostTrainingQuantConfig(recipes={"target_cpu": "avx2"}), calib_dataloader=[feeds])


# -- which pairs meet ------------------------------------------------------------------------------------------------------


def matmul_integer(weight):
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    model = model_of([node], [("x", TensorProto.UINT8, None)], [("y", TensorProto.INT32)], {"w": weight})
    return run(model, {"x": np.full((2, weight.shape[0]), 255, np.uint8)}).max()


def qlinear_conv(weight):
    weights = {"w": weight, "s": ONE, "xz": np.uint8(0), "wz": np.int8(0), "ys": np.float32(254)}
    inputs = ["x", "s", "xz", "w", "s", "wz", "ys", "xz"]
    model = model_of([helper.make_node("QLinearConv", inputs, ["y"])], [("x", 2, None)], [("y", 2)], weights)
    x = np.full((1, weight.shape[1], *weight.shape[2:]), 255, np.uint8)
    return run(model, {"x": x}).max() * np.float32(254)


KERNELS = {
    "matrix": (matmul_integer, (7, 16), matrix_order(2)),
    "even channels": (qlinear_conv, (16, 2, 2, 2), conv_order(4)),
    "odd channels": (qlinear_conv, (16, 3, 2, 1), conv_order(4)),
    "volumes": (qlinear_conv, (16, 3, 1, 2, 1), conv_order(5)),
}


@pytest.mark.parametrize(("kernel", "shape", "order"), KERNELS.values(), ids=KERNELS)
def test_pairs_are_those_of_the_kernels(kernel, shape, order):
    """Of all pairs of large weights only those overflow that the order has side by side, and none where there is VNNI."""
    count = int(np.prod(shape)) // 16
    for first in range(count):
        for second in range(first + 1, count):
            rows = np.zeros((16, count), np.int8)
            rows[:, [first, second]] = 127
            overflows = kernel(order.restored(rows, shape)) != 2 * 127 * 255
            assert overflows == (saturates_here() and first % 2 == 0 and second == first + 1)


@pytest.mark.parametrize(("_", "shape", "order"), KERNELS.values(), ids=KERNELS)
def test_rows_and_back(_, shape, order):
    weight = np.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(order.restored(order.rows(weight), shape), weight)


# -- models of other tools ------------------------------------------------------------------------------------------------


def integer_product(codes, activation=TensorProto.UINT8):
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"], name="product")
    return model_of([node], [("x", activation, None)], [("y", TensorProto.INT32)], {"w": codes})


def qdq_conv(codes):
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "s", "wz"], ["wf"]),
        helper.make_node("Conv", ["xf", "wf"], ["y"], name="conv"),
    ]
    weights = {"w": codes, "s": ONE, "z": np.uint8(0), "wz": np.int8(0)}
    return model_of(nodes, [("x", TensorProto.UINT8, None)], [("y", TensorProto.FLOAT)], weights)


def test_overflowing_ops_of_any_model_are_found():
    full, safe = np.full((4, 3), 127, np.int8), np.full((4, 3), 64, np.int8)
    mixed = np.where(np.arange(4)[:, None] % 2, full, -full)  # neighbours of different signs
    assert overflowing_ops(read(integer_product(full))) == ["product"]
    assert overflowing_ops(read(integer_product(safe))) == []
    assert overflowing_ops(read(integer_product(mixed))) == []
    assert overflowing_ops(read(integer_product(full, TensorProto.INT8))) == []
    assert overflowing_ops(read(qdq_conv(np.full((2, 4, 1, 1), 100, np.int8)))) == ["conv"]
    assert overflowing_ops(read(qdq_conv(np.full((2, 1, 1, 1), 100, np.int8)))) == []


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(saturation, "_told", set())


def test_evaluating_where_sums_overflow_warns_once(monkeypatch, caplog, told):
    monkeypatch.setattr(saturation, "saturates_here", lambda: True)
    model = integer_product(np.full((4, 3), 127, np.int8))
    adaptor = ONNXRTAdaptor()
    with caplog.at_level(logging.WARNING, logger="neural_compressor"):
        for _ in range(2):
            adaptor.predict(model, {"x": np.zeros((1, 4), np.uint8)})
    (record,) = caplog.records
    assert "1 ops overflow on this CPU" in record.getMessage()
    assert "product" in record.getMessage()
    assert "target_cpu='any'" in record.getMessage()


def test_loading_warns(monkeypatch, caplog, told, tmp_path):
    monkeypatch.setattr(saturation, "saturates_here", lambda: True)
    onnx.save(integer_product(np.full((4, 3), 127, np.int8)), tmp_path / "model.onnx")
    with caplog.at_level(logging.WARNING, logger="neural_compressor"):
        ONNXRTAdaptor().load(tmp_path, None)
    assert "overflow" in caplog.text


def test_quantizing_for_vnni_warns_where_there_is_none(monkeypatch, caplog, told):
    monkeypatch.setattr(saturation, "saturates_here", lambda: True)
    model, feeds, _ = product()
    with caplog.at_level(logging.WARNING, logger="neural_compressor"):
        quantize(model, None, static(feeds))
        assert "overflow" not in caplog.text
        quantize(model, None, static(feeds, target_cpu="vnni"))
    assert "overflow" in caplog.text


def test_nothing_is_said_where_sums_are_exact(monkeypatch, caplog, told):
    monkeypatch.setattr(saturation, "saturates_here", lambda: False)
    with caplog.at_level(logging.WARNING, logger="neural_compressor"):
        warn_if_saturating(read(integer_product(np.full((4, 3), 127, np.int8))))
    assert not caplog.records
