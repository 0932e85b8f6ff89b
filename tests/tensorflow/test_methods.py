"""Weight algorithms, smoothing, equalization and bias correction on Keras graphs."""

import gc
import weakref

import keras
import numpy as np
import pytest

from neural_compressor import quantization
from neural_compressor.algorithms import ALGORITHMS, InputStatistics
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.schemes import OpScheme, Pass, Plan
from neural_compressor.tensorflow import SmoothQuantConfig, StaticQuantConfig, quantize_model
from neural_compressor.tensorflow.adaptor import KerasAdaptor
from neural_compressor.tensorflow.executor import Executor
from neural_compressor.tensorflow.statistics import layer_vectors
from neural_compressor.tensorflow.structure.ops import weights_of

layers = keras.layers


def mlp(seed=0):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.Input((32,)),
            layers.Dense(48, activation="relu", name="first", bias_initializer="random_normal"),
            layers.Dense(24, activation="relu", name="second"),
            layers.Dense(4, name="third"),
        ]
    )


def correlated(count=512, width=32, seed=1):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, 8)) @ rng.normal(size=(8, width)) + 0.1 * rng.normal(size=(count, width))).astype(
        "f4"
    )


def weight_only(algorithm, dtype="int4", **more):
    weight = {
        "dtype": dtype,
        "scheme": "asym",
        "granularity": "per_group",
        "group_size": 16,
        "algorithm": algorithm,
        **more,
    }
    return {("first", "Dense"): {"weight": weight, "activation": {"dtype": "fp32", "quant_mode": "weight_only"}}}


def output_error(algorithm):
    model, data = mlp(), correlated()
    adaptor = KerasAdaptor()
    quantized = adaptor.quantize({"op": weight_only(algorithm), "calib_sampling_size": 512}, model, [data])
    return float(np.linalg.norm(model.predict(data, verbose=0) - quantized.predict(data, verbose=0)))


def test_gptq_and_awq_are_better_than_rounding():
    rounding = output_error("rtn")
    assert output_error("gptq") < 0.8 * rounding
    assert output_error("awq") <= rounding
    assert output_error("hqq") < 1.2 * rounding


@pytest.mark.parametrize("algorithm", ["rtn", "gptq", "awq", "hqq"])
def test_weights_that_methods_find_are_saved(algorithm, tmp_path):
    model, data, adaptor = mlp(), correlated(), KerasAdaptor()
    quantized = adaptor.quantize({"op": weight_only(algorithm)}, model, [data])
    adaptor.save(quantized, tmp_path)
    loaded = KerasAdaptor().load(tmp_path, model)
    np.testing.assert_array_equal(loaded.predict(data, verbose=0), quantized.predict(data, verbose=0))
    assert adaptor.model_size(quantized) < adaptor.model_size(model)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (layers.Conv2D(5, 3, strides=2, padding="same", use_bias=False), (9, 9, 3)),
        (layers.Conv2D(5, (2, 3), dilation_rate=2, use_bias=False), (9, 9, 3)),
        (layers.Conv1D(5, 3, padding="causal", use_bias=False), (9, 3)),
        (layers.EinsumDense("abc,cde->abde", (None, 2, 4)), (7, 6)),
        (layers.EinsumDense("abcd,cde->abe", (None, 5)), (7, 2, 3)),
    ],
)
def test_inputs_are_the_vectors_that_the_matrix_is_multiplied_with(layer, shape):
    x = np.random.default_rng(0).normal(size=(2, *shape)).astype("float32")
    expected = keras.ops.convert_to_numpy(layer(x))
    vectors = layer_vectors(layer)(x)
    (view,) = weights_of(layer).values()
    np.testing.assert_allclose((vectors @ view.matrix().T).reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["Conv2D", "Conv2DTranspose", "DepthwiseConv2D", "Dense"])
def test_a_weight_goes_to_a_matrix_and_back(kind):
    arguments = {"Dense": (5,), "DepthwiseConv2D": (3,)}.get(kind, (5, 3))
    layer = getattr(layers, kind)(*arguments)
    layer.build((None, 8, 8, 4))
    view = weights_of(layer)["kernel"]
    np.testing.assert_array_equal(view.restored(view.matrix()), layer.kernel.numpy())
    assert view.shape[0] == (4 if kind == "DepthwiseConv2D" else 5)


def run(model, passes, data, plan=None):
    return Executor(model).run(Plan(plan or {}, passes=passes), lambda m: m.predict(data, verbose=0), data)


@pytest.mark.parametrize(
    "step", [Pass("equalize"), Pass("smooth"), Pass("smooth", {"folding": False, "alpha": "auto"})]
)
def test_passes_over_the_float_graph_change_no_result(step):
    model, data = mlp(), correlated()
    data[:, 3] *= 50
    changed = run(model, [step], data)
    assert any(
        not np.array_equal(changed.get_layer(name).kernel.numpy(), model.get_layer(name).kernel.numpy())
        for name in ("first", "second")
    )
    np.testing.assert_allclose(changed.predict(data, verbose=0), model.predict(data, verbose=0), rtol=1e-3, atol=1e-3)


def test_smoothing_helps_where_inputs_have_outliers(tmp_path):
    model, data = mlp(), correlated()
    data[:, 3] *= 100
    expected = model.predict(data, verbose=0)
    plain = quantize_model(model, StaticQuantConfig(), [data], quiet=True)
    smooth = quantize_model(model, [SmoothQuantConfig(alpha=0.5), StaticQuantConfig()], [data], quiet=True)
    errors = [np.linalg.norm(m.predict(data, verbose=0) - expected) for m in (plain, smooth)]
    assert errors[1] < 0.5 * errors[0]
    smooth.save(tmp_path / "saved")
    loaded = quantization.load(tmp_path / "saved", model)
    np.testing.assert_array_equal(loaded.predict(data, verbose=0), smooth.predict(data, verbose=0))


def test_bias_correction_takes_the_mean_error_out():
    model, data = mlp(), np.abs(correlated()) + 1
    adaptor = KerasAdaptor()
    config = weight_only("rtn", "int2")
    expected = model.layers[0](data).numpy().mean(0)

    def mean_error(passes):
        quantized = adaptor.quantize({"op": config, "passes": passes}, model, [data])
        first = keras.Model(quantized.inputs, quantized.get_layer("first.relu").output)
        return np.abs(first.predict(data, verbose=0).mean(0) - expected).mean()

    assert mean_error([{"name": "correct_biases"}]) < 0.5 * mean_error([])


def test_fit_applies_recipes_and_methods(tmp_path):
    model, data = mlp(), correlated()
    data[:, 3] *= 100
    conf = PostTrainingQuantConfig(recipes={"smooth_quant": True, "smooth_quant_args": {"alpha": 0.6}})
    found = quantization.fit(model, conf, calib_dataloader=[data], workspace=tmp_path, quiet=True)
    assert [step.name for step in found.model.quantization.plan.passes] == ["smooth", "correct_biases"]
    conf = PostTrainingQuantConfig(
        approach="weight_only", op_type_dict={".*": {"weight": {"bits": 4, "group_size": 16, "algorithm": "GPTQ"}}}
    )
    found = quantization.fit(model, conf, calib_dataloader=[data], workspace=tmp_path, quiet=True)
    assert {scheme.method.name for scheme in found.model.quantization.plan.values()} == {"gptq"}


def test_what_is_not_carried_out_is_refused():
    model = mlp()
    adaptor = KerasAdaptor()
    with pytest.raises(ConfigError, match="autoround"):
        adaptor.quantize({"op": weight_only("autoround")}, model, [correlated()])
    with pytest.raises(CalibrationError, match="data"):
        adaptor.quantize({"op": weight_only("gptq")}, model)
    with pytest.raises(ConfigError, match="no pass"):
        adaptor.quantize({"op": weight_only("rtn"), "passes": [{"name": "rotate"}]}, model, [correlated()])
    with pytest.raises(ConfigError, match="goes first"):
        quantize_model(model, [StaticQuantConfig(), SmoothQuantConfig()], [correlated()])
    with pytest.raises(ConfigError, match="weight_dtype would have no effect"):
        quantize_model(model, [SmoothQuantConfig(weight_dtype="int8"), StaticQuantConfig()], [correlated()])


def test_what_was_seen_is_known_by_data_that_is_still_there():
    """Another loader could have the identity of one that is gone, and would not be read."""

    class Loader(list):
        pass

    data = np.ones((2, 32), "float32")
    loader = Loader([data])
    there, executor = weakref.ref(loader), Executor(mlp())
    static = {"weight": {"dtype": "int8"}, "activation": {"dtype": "int8", "quant_mode": "static"}}
    plan = Plan({key: OpScheme.from_dict(static) for key in executor.graph.ops() if key[1] == "Dense"})
    executor.run(plan, lambda model: model.predict(data, verbose=0), loader)
    del loader
    gc.collect()
    assert there() is not None


def test_methods_see_inputs_behind_the_weights_quantized_before():
    model, data, adaptor = mlp(), correlated(), KerasAdaptor()
    (config,) = weight_only("gptq").values()
    keys = [(name, "Dense") for name in ("first", "second")]
    quantized = adaptor.quantize({"op": dict.fromkeys(keys, config), "calib_sampling_size": 512}, model, [data])
    first = quantized.get_layer("first")
    inputs = InputStatistics()
    inputs.update(np.maximum(data @ first.kernel.numpy() + first.bias.numpy(), 0))
    weight = OpScheme.from_dict(config).weight
    expected = ALGORITHMS["gptq"](model.get_layer("second").kernel.numpy().T, weight, inputs)
    np.testing.assert_allclose(quantized.get_layer("second").kernel.numpy().T, expected.dequantize(), atol=1e-5)


def test_layers_that_read_one_tensor_are_looked_at_in_one_run():
    given = keras.Input((32,))
    heads = [layers.Dense(8, name=name)(given) for name in ("query", "key", "value")]
    model = keras.Model(given, layers.Dense(4, name="out")(layers.Add()(heads)))
    (config,) = weight_only("gptq").values()
    keys = [(name, "Dense") for name in ("query", "key", "value", "out")]
    plan, calls = Plan({key: OpScheme.from_dict({**config}) for key in keys}), []
    plan = plan.with_ops({("out", "Dense"): OpScheme.from_dict(weight_only("gptq", group_size=8)["first", "Dense"])})

    def calibrate(watched):
        calls.append(watched)
        watched.predict(correlated(), verbose=0)

    Executor(model).run(plan, calibrate)
    assert len(calls) == 2
