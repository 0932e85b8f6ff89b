"""``quantize_model``, ``autotune`` and ``quantization.fit`` on Keras models."""

import keras
import numpy as np
import pytest

from neural_compressor import quantization
from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.tensorflow import (
    DynamicQuantConfig,
    Model,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    quantize_model,
)
from neural_compressor.tensorflow.litert.runner import Runner

layers = keras.layers


@pytest.fixture(scope="module")
def digits():
    """A small CNN on scikit-learn's digits, trained for a few seconds, and the images it was not trained on."""
    from sklearn.datasets import load_digits

    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8, 1) / 16).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", use_bias=False, name="conv1"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2"),
            layers.MaxPooling2D(name="pool"),
            layers.Flatten(),
            layers.Dense(10, name="head"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.fit(images[:1200], labels[:1200], epochs=4, batch_size=32, verbose=0)
    data = [(images[i : i + 32], labels[i : i + 32]) for i in range(0, 320, 32)]
    return model, data, (images[1200:], labels[1200:])


def accuracy(model, images, labels):
    return float((model.predict(images, verbose=0).argmax(-1) == labels).mean())


def test_quantize_model_gives_a_keras_model_with_quantizers_in_place(digits):
    model, data, test = digits
    quantized = quantize_model(model, StaticQuantConfig(), data, calib_iteration=5, quiet=True)
    kinds = [type(layer).__name__ for layer in quantized.model.layers]
    assert kinds.count("QuantizeDequantize") >= 3
    assert "BatchNormalization" not in kinds
    assert abs(accuracy(quantized, *test) - accuracy(model, *test)) < 0.02
    weight = quantized.model.get_layer("head").kernel.numpy()
    assert all(len(np.unique(weight[:, column])) <= 255 for column in range(10))


def test_set_local_keeps_an_op_in_float(digits):
    model, data, _ = digits
    config = StaticQuantConfig().set_local("head", StaticQuantConfig(weight_dtype="fp32", act_dtype="fp32"))
    quantized = quantize_model(model, config, data, quiet=True)
    np.testing.assert_array_equal(
        quantized.model.get_layer("head").kernel.numpy(), model.get_layer("head").kernel.numpy()
    )
    assert "conv1" in quantized.model.quantization.codes
    assert "head" not in quantized.model.quantization.codes


def test_dynamic_needs_no_data_and_static_says_so(digits):
    model, _, test = digits
    quantized = quantize_model(model, DynamicQuantConfig(), quiet=True)
    assert abs(accuracy(quantized, *test) - accuracy(model, *test)) < 0.02
    with pytest.raises(CalibrationError, match="calib_dataloader"):
        quantize_model(model, StaticQuantConfig())


def test_calib_func_is_called_with_the_model(digits):
    model, data, _ = digits
    by_data = quantize_model(model, StaticQuantConfig(), data, quiet=True)
    images = np.concatenate([inputs for inputs, _ in data])
    by_func = quantize_model(model, StaticQuantConfig(), calib_func=lambda m: m.predict(images, verbose=0), quiet=True)
    for name, qparams in by_data.model.quantization.ranges.items():
        np.testing.assert_array_equal(qparams.scale, by_func.model.quantization.ranges[name].scale)


def test_a_saved_keras_file_gives_the_same(digits, tmp_path):
    model, data, test = digits
    quantized = quantize_model(model, StaticQuantConfig(), data, quiet=True)
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected = quantized.predict(test[0], verbose=0)
    np.testing.assert_allclose(loaded.predict(test[0], verbose=0), expected, atol=1e-5)


def test_fit_keeps_the_promise(digits, tmp_path):
    model, data, test = digits
    conf = PostTrainingQuantConfig(
        accuracy_criterion=AccuracyCriterion(tolerable_loss=0.02),
        tuning_criterion=TuningCriterion(objective="modelsize"),
    )
    found = quantization.fit(
        model,
        conf,
        calib_dataloader=data,
        eval_func=lambda m: accuracy(m, *test),
        workspace=tmp_path / "ws",
        quiet=True,
    )
    assert found.result.satisfied
    found.save(tmp_path / "saved")
    loaded = quantization.load(tmp_path / "saved", model)
    np.testing.assert_array_equal(loaded.predict(test[0], verbose=0), found.model.predict(test[0], verbose=0))


def test_autotune_returns_the_best_with_the_evidence(digits, tmp_path):
    model, data, test = digits
    config = TuningConfig(
        [StaticQuantConfig(weight_dtype="int4"), StaticQuantConfig()], tolerable_loss=0.02, workspace=tmp_path
    )
    best = autotune(model, config, accuracy, eval_args=test, calib_dataloader=data, quiet=True)
    assert best.tuning.satisfied
    assert accuracy(best, *test) >= 0.98 * accuracy(model, *test)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quant_config": "int8"}, "str"),
        ({"quant_config": []}, "empty list"),
        ({"calib_iteration": 0}, "calib_iteration"),
        ({"calib_func": 3}, "calib_func"),
        ({"model": 5}, "keras.Model"),
    ],
)
def test_careless_arguments_are_refused(digits, given, message):
    model, data, _ = digits
    loader = None if "calib_func" in given else data
    with pytest.raises(ConfigError, match=message):
        quantize_model(**{"model": model, "quant_config": StaticQuantConfig(), "calib_dataloader": loader, **given})


def test_batches_that_do_not_fit_are_named(digits):
    model, _, _ = digits
    with pytest.raises(CalibrationError, match=r"batch 1.*\(None, 8, 8, 1\)"):
        quantize_model(model, StaticQuantConfig(), [np.ones((2, 8, 8, 1), "f4"), np.ones((2, 9, 8, 1), "f4")])
    with pytest.raises(CalibrationError, match="no sample"):
        quantize_model(model, StaticQuantConfig(), [])


def test_a_wrapped_model_is_one():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    assert Model(model).layers == model.layers


@pytest.fixture(scope="module")
def hard():
    """One feature is a thousand times the others, so that in 8 bits the first layer sees nothing else."""
    keras.utils.set_random_seed(0)
    data = np.random.default_rng(0).normal(size=(512, 16)).astype("float32")
    data[:, 0] *= 1000
    model = keras.Sequential(
        [
            keras.Input((16,), name="features"),
            layers.Dense(32, activation="relu", name="hard"),
            layers.Dense(32, activation="relu", name="easy"),
            layers.Dense(4, name="head"),
        ]
    )
    kernel = model.get_layer("hard").kernel
    kernel.assign(kernel.numpy() * np.float32([1e-6] + [1] * 15)[:, None])
    return model, data, model.predict(data, verbose=0).argmax(-1)


def is_mixed_and_as_good_in_the_file(quantized, content, data, labels):
    modes = {name: scheme.mode for (name, _), scheme in quantized.quantization.plan.items()}
    (out,) = Runner(content)(data).values()
    return modes["hard"] != "static" and "static" in modes.values() and (out.argmax(-1) == labels).mean() >= 0.95


def test_fit_ends_with_a_mixed_plan_as_a_file(hard, tmp_path):
    model, data, labels = hard
    one = {
        "weight": {"granularity": "per_channel"},
        "activation": {"dtype": "int8", "scheme": "asym", "algorithm": "minmax"},
    }
    conf = PostTrainingQuantConfig(
        op_type_dict={"Dense": one},
        quant_level=1,
        accuracy_criterion=AccuracyCriterion(tolerable_loss=0.05),
        tuning_criterion=TuningCriterion(objective="modelsize", max_trials=12),
    )
    batches = [data[start : start + 64] for start in range(0, 512, 64)]
    found = quantization.fit(
        model,
        conf,
        calib_dataloader=batches,
        eval_func=lambda m: accuracy(m, data, labels),
        workspace=tmp_path,
        quiet=True,
    )
    assert found.result.satisfied
    found.save(tmp_path / "saved")
    content = (tmp_path / "saved" / "model.tflite").read_bytes()
    assert is_mixed_and_as_good_in_the_file(found.model, content, data, labels)


def test_autotune_ends_with_a_mixed_plan_as_a_file(hard, tmp_path):
    model, data, labels = hard
    config = TuningConfig([StaticQuantConfig()], tolerable_loss=0.05, workspace=tmp_path / "ws")
    best = autotune(model, config, accuracy, eval_args=(data, labels), calib_dataloader=[data], quiet=True)
    assert best.tuning.satisfied
    best.save(tmp_path / "model.tflite")
    content = (tmp_path / "model.tflite").read_bytes()
    assert is_mixed_and_as_good_in_the_file(best.model, content, data, labels)
