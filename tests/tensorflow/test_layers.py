"""Layers of every kind that the capability lists, alone in a small model, and what their file does."""

import keras
import numpy as np
import pytest

from neural_compressor.schemes import Plan, float_op
from neural_compressor.tensorflow import DynamicQuantConfig, quantize_model
from neural_compressor.tensorflow.adaptor import KerasAdaptor
from neural_compressor.tensorflow.executor import Executor
from neural_compressor.testing.options import choices

layers = keras.layers

CASES = {
    "Conv1D": ((16, 4), lambda: layers.Conv1D(6, 3, padding="causal", name="op")),
    "Conv3D": ((6, 6, 6, 2), lambda: layers.Conv3D(4, 3, name="op")),
    "DepthwiseConv1D": ((16, 4), lambda: layers.DepthwiseConv1D(3, depth_multiplier=2, name="op")),
    "DepthwiseConv2D": ((8, 8, 4), lambda: layers.DepthwiseConv2D(3, depth_multiplier=2, name="op")),
    "Conv1DTranspose": ((16, 4), lambda: layers.Conv1DTranspose(6, 3, strides=2, name="op")),
    "Conv2DTranspose": ((8, 8, 4), lambda: layers.Conv2DTranspose(6, 3, strides=2, padding="same", name="op")),
    "EinsumDense": ((5, 8), lambda: layers.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de", name="op")),
    "AveragePooling2D": ((8, 8, 4), lambda: layers.AveragePooling2D(2, name="op")),
    "GlobalMaxPooling2D": ((8, 8, 4), lambda: layers.GlobalMaxPooling2D(name="op")),
    "LSTM": ((7, 5), lambda: layers.LSTM(6, name="op")),
    "GRU": ((7, 5), lambda: layers.GRU(6, name="op")),
}


def single(kind):
    shape, make = CASES[kind]
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(shape), make()])
    return model, np.random.default_rng(0).normal(size=(8, *shape)).astype("float32")


@pytest.mark.parametrize("kind", CASES)
def test_each_layer_is_close_to_float_in_its_first_scheme(kind):
    model, data = single(kind)
    adaptor = KerasAdaptor()
    opwise = adaptor.query_fw_capability(model)["opwise"]
    (key,) = opwise
    assert key == ("op", kind)
    expected = model.predict(data, verbose=0)
    quantized = adaptor.quantize({"op": {key: next(choices(opwise[key][0]))}}, model, [data])
    found = quantized.predict(data, verbose=0)
    assert 0 < np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "nf4", "mxfp4"])
def test_any_registered_type_is_simulated(dtype, tmp_path, caplog):
    model, data = keras.Sequential([keras.Input((32,)), layers.Dense(64, name="op")]), None
    data = np.random.default_rng(0).normal(size=(16, 32)).astype("float32")
    weight = {"dtype": dtype, "granularity": "per_channel", "algorithm": "minmax"}
    op = {("op", "Dense"): {"weight": weight, "activation": {"dtype": "fp32", "quant_mode": "weight_only"}}}
    adaptor = KerasAdaptor()
    quantized = adaptor.quantize({"op": op}, model, [data])
    expected = model.predict(data, verbose=0)
    assert 0 < np.linalg.norm(quantized.predict(data, verbose=0) - expected) < 0.5 * np.linalg.norm(expected)
    (record,) = adaptor.summary(quantized)
    assert record.simulated
    assert "simulated in Keras, float in the LiteRT file: LiteRT has no weights" in record.reason
    adaptor.save(quantized, tmp_path)
    assert f"float in the LiteRT file: op (LiteRT has no weights in {dtype}; use an integer type" in caplog.text
    loaded = adaptor.load(tmp_path, model)
    np.testing.assert_array_equal(loaded.predict(data, verbose=0), quantized.predict(data, verbose=0))


def test_batch_normalisation_is_folded_exactly():
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3))
    x = image
    for number, layer in enumerate((layers.Conv2D(4, 3), layers.DepthwiseConv2D(3), layers.SeparableConv2D(5, 3))):
        x = layers.ReLU()(layers.BatchNormalization(name=f"norm{number}")(layer(x)))
    x = layers.BatchNormalization(name="last")(layers.Dense(6)(layers.Flatten()(x)))
    model = keras.Model(image, x)
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            size = layer.gamma.shape[0]
            layer.set_weights([rng.uniform(0.5, 2, size), *rng.normal(size=(2, size)), rng.uniform(0.5, 2, size)])
    executor = Executor(model)
    assert "BatchNormalization" not in {type(node.operation).__name__ for node in executor.graph.nodes}
    data = rng.normal(size=(4, 8, 8, 3)).astype("float32")
    same = executor.run(Plan({key: float_op() for key in executor.graph.ops()}))
    np.testing.assert_allclose(same.predict(data, verbose=0), model.predict(data, verbose=0), rtol=1e-3, atol=1e-4)


def test_an_embedding_is_quantized_alone():
    tokens = np.random.default_rng(0).integers(0, 50, (4, 6))
    model = keras.Sequential(
        [keras.Input((6,), dtype="int32"), layers.Embedding(50, 8, name="table"), layers.Flatten()]
    )
    weight = {"dtype": "int8", "granularity": "per_channel", "algorithm": "rtn"}
    op = {("table", "Embedding"): {"weight": weight, "activation": {"dtype": "fp32", "quant_mode": "weight_only"}}}
    quantized = KerasAdaptor().quantize({"op": op}, model)
    error = np.abs(quantized.predict(tokens, verbose=0) - model.predict(tokens, verbose=0)).max()
    assert 0 < error <= np.abs(model.get_layer("table").embeddings.numpy()).max() / 127


def test_a_factor_behind_a_layer_is_folded_exactly():
    keras.utils.set_random_seed(0)
    x = keras.Input((5, 8))
    model = keras.Model(x, keras.ops.relu(layers.Dense(6, bias_initializer="normal", name="op")(x) * 3.0))
    graph = Executor(model).graph
    assert [key[1] for key in graph.ops()] == ["Dense"]
    assert "Multiply" not in {type(node.operation).__name__ for node in graph.nodes}
    data = np.random.default_rng(0).normal(size=(4, 5, 8)).astype("float32")
    np.testing.assert_allclose(
        graph.model.predict(data, verbose=0), model.predict(data, verbose=0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask_zero", [False, True])
def test_attention_in_inference_form_computes_the_same(dropout, causal, mask_zero):
    keras.utils.set_random_seed(0)
    tokens = keras.Input((7,), dtype="int32")
    x = layers.Embedding(9, 8, mask_zero=mask_zero, name="table")(tokens)
    for number in range(2):  # the layers inside have the same names
        attention = layers.MultiHeadAttention(2, 4, dropout=dropout, name=f"attention{number}")
        x = layers.Add(name=f"add{number}")([x, attention(x, x, use_causal_mask=causal)])
    model = keras.Model(tokens, layers.LSTM(4, name="lstm")(x))
    graph = Executor(model).graph
    assert ("attention1.query", "EinsumDense") in graph.ops()
    assert sum(kind == "Einsum" for _, kind in graph.ops()) == 4
    data = np.random.default_rng(0).integers(0, 9, (6, 7))
    data[:, 4:] = 0
    expected = model.predict(data, verbose=0)
    np.testing.assert_allclose(graph.model.predict(data, verbose=0), expected, rtol=1e-4, atol=1e-5)
    assert model.layers[-1].name == "lstm"
    assert model.get_layer("attention0").get_config()["dropout"] == dropout


def test_a_layer_called_twice_is_one_op():
    shared = layers.Dense(8, name="shared")
    a = keras.Input((8,), name="a")
    model = keras.Model(a, layers.Add(name="sum")([shared(a), shared(layers.ReLU()(a))]))
    data = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")
    quantized = quantize_model(model, DynamicQuantConfig(), quiet=True)
    assert set(quantized.model.quantization.codes) == {"shared"}
    expected = model.predict(data, verbose=0)
    assert np.linalg.norm(quantized.predict(data, verbose=0) - expected) < 0.05 * np.linalg.norm(expected)
