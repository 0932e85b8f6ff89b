"""Weight algorithms and passes over SavedModels, which work on the constants of the converted file."""

from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.schemes import Method, OpScheme, Pass, Plan
from neural_compressor.tensorflow.adaptor import TensorFlowAdaptor
from neural_compressor.tensorflow.executor import Executor
from neural_compressor.tensorflow.litert.file_graph import FileGraph
from neural_compressor.tensorflow.litert.flatbuffer import op_kinds
from neural_compressor.tensorflow.litert.model import read_saved_model

STATIC = {"weight": {"dtype": "int8", "granularity": "per_channel"}, "activation": {"dtype": "int8", "scheme": "asym"}}


def random(*shape, seed=0, scale=0.3):
    return np.random.default_rng(seed).normal(scale=scale, size=shape).astype("float32")


class Mlp(tf.Module):
    def __init__(self):
        super().__init__()
        self.parts = [tf.Variable(random(a, b, seed=a)) for a, b in ((32, 48), (48, 24), (24, 4))]
        self.biases = [tf.Variable(random(b, seed=b)) for b in (48, 24, 4)]

    @tf.function(input_signature=[tf.TensorSpec((None, 32), tf.float32, name="x")])
    def serve(self, x):
        for number in range(3):
            x = x @ self.parts[number] + self.biases[number]
            x = tf.nn.relu(x) if number < 2 else x
        return {"y": x}


class Cnn(tf.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (tf.Variable(random(3, 3, a, b, seed=b)) for a, b in ((3, 16), (16, 8)))
        self.middle = tf.Variable(random(3, 3, 16, 1))
        self.bias, self.last = tf.Variable(random(16)), tf.Variable(random(8, 5))

    @tf.function(input_signature=[tf.TensorSpec((None, 12, 12, 3), tf.float32, name="image")])
    def serve(self, image):
        x = tf.nn.relu(tf.nn.conv2d(image, self.first, 1, "SAME") + self.bias)
        x = tf.nn.relu(tf.nn.depthwise_conv2d(x, self.middle, [1, 1, 1, 1], "SAME") + self.bias)
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(x, self.second, 2, "VALID") + 0.1), 2, 2, "VALID")
        return {"y": tf.reduce_mean(x, axis=(1, 2)) @ self.last}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folders = {}
    for kind in (Mlp, Cnn):
        net, folders[kind] = kind(), str(tmp_path_factory.mktemp(kind.__name__) / "saved")
        tf.saved_model.save(net, folders[kind], signatures=net.serve)
    return folders


def correlated(count=512, width=32, seed=1):
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(count, 8)) @ rng.normal(size=(8, width))
    return (mixed + 0.1 * rng.normal(size=(count, width))).astype("f4")


def images():
    return random(16, 12, 12, 3, seed=5, scale=1.0)


def prepared(folder):
    adaptor = TensorFlowAdaptor()
    return adaptor, list(adaptor.query_fw_capability(folder)["opwise"])


def weight_only(keys, algorithm, **more):
    weight = {"dtype": "int4", "scheme": "sym", "granularity": "per_channel", "algorithm": algorithm, **more}
    return {key: {"weight": weight, "activation": {"dtype": "fp32", "quant_mode": "weight_only"}} for key in keys}


@pytest.mark.parametrize(
    "step", [Pass("equalize"), Pass("smooth"), Pass("smooth", {"folding": False, "alpha": "auto"})], ids=repr
)
@pytest.mark.parametrize("kind", [Mlp, Cnn])
def test_passes_over_the_float_file_change_no_result(saved, kind, step):
    model = read_saved_model(Path(saved[kind]))
    data = correlated() if kind is Mlp else images()
    data[..., 2] *= 30
    changed = Executor(model).run(Plan(passes=[step]), lambda m: m(data), data)
    before, after = FileGraph(model), FileGraph(changed)
    arrays = [graph.arrays(name) for graph in (before, after) for name in before.named if graph.arrays(name)]
    half = len(arrays) // 2
    assert any(
        not np.array_equal(one[name], two[name])
        for one, two in zip(arrays[:half], arrays[half:], strict=True)
        for name in one
    )
    expected = model(data)
    np.testing.assert_allclose(changed(data), expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_smoothing_helps_where_inputs_have_outliers(saved):
    data = correlated()
    data[:, 3] *= 100
    adaptor, keys = prepared(saved[Mlp])
    expected = adaptor.predict(saved[Mlp], data)

    def error(recipes):
        static = {"op": dict.fromkeys(keys, STATIC), "recipe_cfgs": recipes}
        return np.linalg.norm(adaptor.predict(adaptor.quantize(static, saved[Mlp], [data]), data) - expected)

    assert error({"smooth_quant": True}) < 0.5 * error({})


def test_bias_correction_takes_the_mean_error_out(saved):
    data = np.abs(correlated()) + 1
    adaptor, keys = prepared(saved[Mlp])
    first = keys[0][0]
    expected = adaptor.inspect_tensor(saved[Mlp], [data], [first])["activation"][0][first]["output0"].mean(0)

    def mean_error(passes):
        tuned = {"op": weight_only(keys[:1], "rtn"), "passes": passes}
        quantized = adaptor.quantize(tuned, saved[Mlp], [data])
        found = adaptor.inspect_tensor(quantized, [data], [first])["activation"][0][first]["output0"]
        return np.abs(found.mean(0) - expected).mean()

    assert mean_error([{"name": "correct_biases"}]) < 0.6 * mean_error([])


@pytest.mark.parametrize("kind", [Mlp, Cnn])
def test_gptq_is_better_than_rounding(saved, kind):
    data = correlated() if kind is Mlp else images()
    adaptor, keys = prepared(saved[kind])
    keys = [key for key in keys if key[1] in ("MatMul", "Conv2D")]
    expected = adaptor.predict(saved[kind], data)

    def error(algorithm, **more):
        quantized = adaptor.quantize({"op": weight_only(keys, algorithm, **more)}, saved[kind], [data])
        return np.linalg.norm(adaptor.predict(quantized, data) - expected)

    rounding = error("rtn")
    assert error("gptq") < 0.9 * rounding
    assert error("hqq", scheme="asym") < 1.2 * rounding
    if kind is Mlp:
        assert error("awq") < 1.05 * rounding


def test_recipes_of_fit_are_passes_over_the_file(saved, tmp_path):
    data = correlated()
    conf = PostTrainingQuantConfig(recipes={"smooth_quant": True, "equalization": True})
    found = quantization.fit(saved[Mlp], conf, calib_dataloader=[data], workspace=tmp_path, quiet=True)
    assert [step.name for step in found.model.plan.passes] == ["smooth", "equalize", "correct_biases"]


def test_what_is_not_carried_out_is_refused_before_any_work(saved):
    adaptor, keys = prepared(saved[Mlp])
    with pytest.raises(ConfigError, match="autoround"):
        adaptor.quantize({"op": weight_only(keys, "autoround")}, saved[Mlp], [correlated()])
    with pytest.raises(CalibrationError, match="data"):
        adaptor.quantize({"op": weight_only(keys, "gptq")}, saved[Mlp])
    with pytest.raises(ConfigError, match=r"no pass over LiteRT files.*rotate"):
        adaptor.quantize({"op": {}, "passes": [{"name": "rotate"}]}, saved[Mlp], [correlated()])
    steps = [{"name": "smooth", "options": {"op_types": ["Dense"]}}]
    with pytest.raises(ConfigError, match=r"op_types has 'Dense'.*MatMul"):
        adaptor.quantize({"op": {}, "passes": steps}, saved[Mlp], [correlated()])
    scheme = OpScheme.from_dict(weight_only(keys, "rtn")[keys[0]])
    plan = Plan({keys[0]: replace(scheme, method=Method("rtn", {"full_range": True}))})
    with pytest.raises(ConfigError, match="full_range"):
        adaptor.quantize(plan.to_tune_cfg(), saved[Mlp], [correlated()])
    adaptor, keys = prepared(saved[Cnn])
    convolutions = [key for key in keys if key[1] == "Conv2D"]
    with pytest.raises(ConfigError, match=r"awq.*patches.*use gptq"):
        adaptor.quantize({"op": weight_only(convolutions, "awq")}, saved[Cnn], [images()])


def test_tensors_of_files_are_shown_as_floats_and_set(saved):
    data = correlated()
    adaptor, keys = prepared(saved[Mlp])
    quantized = adaptor.quantize({"op": dict.fromkeys(keys, STATIC)}, saved[Mlp], [data])
    names = [name for name, _ in keys]
    plain, rounded = (adaptor.inspect_tensor(m, [data], names, (1,), "all") for m in (saved[Mlp], quantized))
    for name in names:
        one, two = (found["weight"][name] for found in (plain, rounded))
        assert set(one) == set(two) == {"weight", "bias"}
        assert 0 < np.abs(one["weight"] - two["weight"]).max() < np.abs(one["weight"]).max() / 120
        one, two = (found["activation"][0][name]["output0"] for found in (plain, rounded))
        assert np.linalg.norm(one - two) < 0.1 * np.linalg.norm(one)
    last = names[-1]
    changed = adaptor.set_tensor(saved[Mlp], {f"{last}.bias": plain["weight"][last]["bias"] + 1})
    np.testing.assert_allclose(changed(data), adaptor.predict(saved[Mlp], data) + 1, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match=r"no tensor.*bias"):
        adaptor.set_tensor(saved[Mlp], {f"{last}.bais": 1.0})
    with pytest.raises(ConfigError, match="set it in the float model"):
        adaptor.set_tensor(quantized, {f"{last}.weight": np.zeros((4, 24))})


def test_records_say_what_runs_each_op(saved):
    adaptor, keys = prepared(saved[Mlp])
    dynamic = {**STATIC, "activation": {"dtype": "int8", "scheme": "asym", "quant_mode": "dynamic"}}
    half = {"weight": {"dtype": "fp16"}, "activation": {"dtype": "fp16"}}
    for scheme, kernel in (
        (STATIC, "LiteRT FULLY_CONNECTED"),
        (dynamic, "LiteRT FULLY_CONNECTED"),
        (half, "LiteRT DEQUANTIZE + FULLY_CONNECTED"),
        (weight_only(keys, "rtn")[keys[0]], "LiteRT DEQUANTIZE + FULLY_CONNECTED"),
    ):
        quantized = adaptor.quantize({"op": dict.fromkeys(keys, scheme)}, saved[Mlp], [correlated()])
        kernels = {record.kernel for record in adaptor.summary(quantized) if record.op_type == keys[0][1]}
        assert kernels == {kernel}
        assert ("DEQUANTIZE" in op_kinds(quantized.content)[:-1]) == ("DEQUANTIZE" in kernel)


def test_one_tensor_has_one_quantizer_and_records_say_whose(saved):
    """The second product reads what the first gives in the range of the first, whatever its own scheme says."""
    data = correlated()
    data[0] *= 50
    adaptor, keys = prepared(saved[Mlp])
    wide = {**STATIC, "activation": {"dtype": "int8", "scheme": "asym", "algorithm": "percentile"}}
    quantized = adaptor.quantize({"op": {keys[0]: STATIC, keys[1]: wide, keys[2]: wide}}, saved[Mlp], [data])
    reasons = {record.name: record.reason for record in adaptor.summary(quantized)}
    assert keys[0][0] in reasons[keys[1][0]]
    assert "minmax" in reasons[keys[1][0]]
    assert reasons[keys[0][0]] == reasons[keys[2][0]] == ""
    sites = {name.split(":")[-1]: name for name in quantized.quantization.ranges}
    assert len(sites) == len(quantized.quantization.ranges) == 4


def test_the_order_of_named_inputs_is_that_of_lists(tmp_path):
    a, b = keras.Input((4,), name="zeta"), keras.Input((6,), name="alpha")
    out = keras.layers.Dense(3)(keras.layers.Concatenate()([keras.layers.Dense(5)(a), b]))
    keras.Model([a, b], out).export(tmp_path / "saved", verbose=False)
    batches = [(random(8, 4, seed=n), random(8, 6, seed=n + 9)) for n in range(2)]
    conf = PostTrainingQuantConfig(inputs=["zeta", "alpha"])
    found = quantization.fit(
        str(tmp_path / "saved"), conf, calib_dataloader=batches, workspace=tmp_path / "ws", quiet=True
    )
    given = dict(zip(("zeta", "alpha"), batches[0], strict=True))
    np.testing.assert_array_equal(found.model(list(batches[0])), found.model(given))
    with pytest.raises(CalibrationError, match="alpha"):
        quantization.fit(str(tmp_path / "saved"), conf, calib_dataloader=[{"zeta": batches[0][0]}], quiet=True)
