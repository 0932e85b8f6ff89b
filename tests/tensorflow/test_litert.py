"""The LiteRT file of a plan computes what the Keras model with quantizers computes."""

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from neural_compressor.errors import CalibrationError
from neural_compressor.tensorflow import DynamicQuantConfig, StaticQuantConfig, quantize_model
from neural_compressor.tensorflow.litert.flatbuffer import LiteGraph, op_kinds
from neural_compressor.tensorflow.litert.keras_file import float_litert, to_litert
from neural_compressor.tensorflow.litert.runner import Runner

layers = keras.layers
FLOAT = StaticQuantConfig(weight_dtype="fp32", act_dtype="fp32")


def wide_model():
    """A model with many kinds of layers, each with weights of its own."""
    keras.utils.set_random_seed(1)
    image = keras.Input((12, 12, 3), name="image")
    bias = {"bias_initializer": "random_normal"}
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="stem")(image)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.ReLU(name="relu")(x)
    y = layers.DepthwiseConv2D(3, padding="same", activation="relu6", name="depthwise", **bias)(x)
    x = layers.Add(name="add")([x, layers.Conv2D(8, 1, name="pointwise", **bias)(y)])
    a = layers.MaxPooling2D(name="pool")(layers.Conv2D(8, 3, activation="swish", name="swish", **bias)(x))
    b = layers.AveragePooling2D(2, name="average")(layers.Conv2DTranspose(8, 2, name="transposed", **bias)(x))
    c = layers.SeparableConv2D(8, 3, name="separable", **bias)(x)
    d = layers.Conv1D(8, 3, activation="relu", name="conv1d", **bias)(layers.Reshape((144, 8))(x))
    d = layers.GlobalAveragePooling1D(name="mean_d")(layers.MultiHeadAttention(2, 4, name="attention")(d, d))
    means = [layers.GlobalAveragePooling2D(name=f"mean_{name}")(t) for name, t in zip("abc", [a, b, c], strict=True)]
    z = layers.Concatenate(name="concat")([*means, d])
    return keras.Model(image, layers.Dense(3, name="head", **bias)(z), name="wide")


@pytest.fixture(scope="module")
def wide():
    rng = np.random.default_rng(0)
    return wide_model(), [rng.normal(size=(4, 12, 12, 3)).astype("float32") for _ in range(4)]


def both(quantized, data):
    """What the Keras model and the file give, and the file."""
    file = to_litert(quantized.model)
    images = np.concatenate(data)
    (out,) = Runner(file.content)(images).values()
    return quantized.predict(images, verbose=0), out, file


def test_static_int8_file_agrees_to_a_step_an_op(wide):
    model, data = wide
    quantized = quantize_model(model, StaticQuantConfig(), data, quiet=True)
    keras_out, lite_out, file = both(quantized, data)
    ops = quantized.model.quantization.plan
    assert file.in_float == {}
    assert set(file.ops) == {name for name, _ in ops}
    step = float(quantized.model.quantization.ranges["head.int8.asym.minmax"].scale)
    steps = np.abs(keras_out - lite_out) / step
    assert steps.max() <= len(ops)  # one step an op at most; most outputs are equal
    assert np.median(steps) <= 1.01


def test_the_file_has_our_scales_and_codes(wide):
    model, data = wide
    quantized = quantize_model(model, StaticQuantConfig(act_algorithm="percentile"), data, quiet=True)
    parts = quantized.model.quantization
    file = to_litert(quantized.model)
    interpreter = Interpreter(model_content=file.content, experimental_preserve_all_tensors=True)
    interpreter.allocate_tensors()
    known = {
        tuple(np.ravel(d["quantization_parameters"]["scales"]).tolist()): d for d in interpreter.get_tensor_details()
    }
    for name in ("stem", "depthwise", "pointwise", "head"):
        codes = parts.codes[name]["kernel"].array
        (detail,) = [
            d
            for scales, d in known.items()
            if len(scales) == codes.shape[0]
            and np.allclose(scales, np.ravel(codes.qparams.scale), rtol=1e-6)
            and d["dtype"] == np.int8
        ]
        assert sorted(np.ravel(interpreter.get_tensor(detail["index"])).tolist()) == sorted(
            np.ravel(codes.codes).tolist()
        )
    scales = [scale for key in known for scale in key]
    for name, qparams in parts.ranges.items():
        assert np.isclose(scales, float(qparams.scale), rtol=1e-6).any(), name


def test_ops_kept_in_float_are_float_in_the_file(wide):
    model, data = wide
    config = StaticQuantConfig()
    for name in ("pointwise", "attention.key", "average"):
        config.set_local(name, FLOAT)
    quantized = quantize_model(model, config, data, quiet=True)
    keras_out, lite_out, file = both(quantized, data)
    assert not {"pointwise", "attention.key", "average"} & set(file.ops)
    graph = LiteGraph(file.content)
    inside = next(op for op in graph.ops if op.kind == "CONV_2D" and "pointwise" in graph.names[op.outputs[0]])
    assert graph.is_float(inside.outputs[0])
    step = float(quantized.model.quantization.ranges["head.int8.asym.minmax"].scale)
    assert np.abs(keras_out - lite_out).max() <= len(file.ops) * step


def test_int16_activations_agree_closely(wide):
    model, data = wide
    config = StaticQuantConfig(act_dtype="int16", white_list=["Conv2D", "DepthwiseConv2D", "Dense", "Add"])
    quantized = quantize_model(model, config, data, quiet=True)
    keras_out, lite_out, file = both(quantized, data)
    assert len(file.ops) >= 6
    assert np.abs(keras_out - lite_out).max() < 2e-3 * np.abs(keras_out).max()


def test_dynamic_range_file_has_integer_weights_and_float_activations(wide):
    model, data = wide
    quantized = quantize_model(model, DynamicQuantConfig(), quiet=True)
    keras_out, lite_out, file = both(quantized, data)
    assert "QUANTIZE" not in op_kinds(file.content)
    assert len(file.content) < len(float_litert(model))
    float_out = model.predict(np.concatenate(data), verbose=0)
    # Kernels take ranges of rows where the simulation takes one of the batch: close to each other, as to float.
    assert np.linalg.norm(keras_out - lite_out) < 0.05 * np.linalg.norm(float_out)


def test_a_saved_file_is_one_that_litert_runs(wide, tmp_path):
    model, data = wide
    quantized = quantize_model(model, StaticQuantConfig(), data, quiet=True)
    quantized.save(tmp_path / "model.tflite")
    interpreter = Interpreter(model_path=str(tmp_path / "model.tflite"))
    runner = interpreter.get_signature_runner()
    (out,) = runner(image=data[0][:1]).values()
    assert out.shape == (1, 3)
    assert list(runner.get_input_details()) == ["image"]


def test_samples_are_run_in_whole_batches_or_not_at_all():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    runner, data = Runner(float_litert(model, 4)), np.random.default_rng(0).normal(size=(8, 8)).astype("float32")
    np.testing.assert_allclose(next(iter(runner(data).values())), np.asarray(model(data)), rtol=1e-4, atol=1e-5)
    for count in (2, 6):
        with pytest.raises(CalibrationError, match=f"{count} samples, and the file takes 4"):
            runner(data[:count])


@pytest.mark.parametrize(
    "other", [{"act_algorithm": "percentile"}, {"act_sym": True}, {"act_dtype": "int16"}], ids=["range", "sign", "bits"]
)
@pytest.mark.parametrize("name", ["first", "second"])
def test_a_tensor_that_ops_want_in_different_schemes_is_the_same_in_model_and_file(other, name, caplog):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((16,), name="x")
    x = layers.Dense(32, activation="relu", name="first")(inputs)
    model = keras.Model(inputs, layers.Dense(4, name="third")(layers.Dense(8, name="second")(x)))
    data = [np.random.default_rng(0).normal(size=(64, 16)).astype("float32")]
    data[0][0] *= 30
    config = StaticQuantConfig().set_local(name, StaticQuantConfig(**other))
    quantized = quantize_model(model, config, data, quiet=True)
    keras_out, lite_out, file = both(quantized, data)
    assert file.in_float == {}
    ranges = quantized.model.quantization.ranges
    step = max(float(each.scale) for site, each in ranges.items() if site.startswith("third"))
    assert np.abs(keras_out - lite_out).max() <= 3.01 * step  # one an op
    interpreter = Interpreter(model_content=file.content)
    interpreter.allocate_tensors()
    scales = [d["quantization_parameters"]["scales"] for d in interpreter.get_tensor_details()]
    in_file = [float(each[0]) for each in scales if len(each) == 1]
    assert all(np.isclose(in_file, float(each.scale), rtol=0.01).any() for each in ranges.values())
    if "act_dtype" not in other:
        assert len(ranges) == 4  # one for each tensor
        told = quantized.model.quantization.shared
        assert set(told) == ({"second"} if name == "first" else {"second", "third"})
        assert all(f"op {each!r} has not all of its scheme" in caplog.text for each in told)
