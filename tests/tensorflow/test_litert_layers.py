"""What the file of a layer does for each scheme: integers that agree with the Keras model, or floats with a reason."""

import re

import keras
import numpy as np
import pytest

from neural_compressor.algorithms import LayerResult
from neural_compressor.schemes import OpScheme, Plan, float_op
from neural_compressor.tensorflow import DynamicQuantConfig, StaticQuantConfig, quantize_model
from neural_compressor.tensorflow.executor import Executor
from neural_compressor.tensorflow.litert.keras_file import float_litert, to_litert
from neural_compressor.tensorflow.litert.runner import Runner

layers = keras.layers
LAYERS = {
    "Dense": ((5, 8), lambda: layers.Dense(6, bias_initializer="normal", name="op")),
    "heads": ((5, 8), lambda: layers.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de", name="op")),
    "merged": ((5, 2, 4), lambda: layers.EinsumDense("abcd,cde->abe", (None, 8), name="op")),
    "batched": ((5, 8), lambda: layers.EinsumDense("abc,bcd->abd", (5, 4), name="op")),
    "Conv1D": ((16, 4), lambda: layers.Conv1D(6, 3, padding="causal", name="op")),
    "Conv2D": ((8, 8, 4), lambda: layers.Conv2D(6, 3, groups=2, name="op")),
    "Conv3D": ((6, 6, 6, 2), lambda: layers.Conv3D(4, 3, name="op")),
    "Depthwise": ((8, 8, 4), lambda: layers.DepthwiseConv2D(3, depth_multiplier=2, name="op")),
    "Transposed": ((8, 8, 4), lambda: layers.Conv2DTranspose(6, 3, strides=2, padding="same", name="op")),
    "Transposed3D": ((4, 4, 4, 2), lambda: layers.Conv3DTranspose(3, 3, strides=2, name="op")),
    "LSTM": ((7, 5), lambda: layers.LSTM(6, return_sequences=True, name="op")),
    "GRU": ((7, 5), lambda: layers.GRU(6, name="op")),
    "Embedding": ((6,), lambda: layers.Embedding(50, 8, name="op")),
    "wide": ((6,), lambda: layers.Embedding(50, 9, name="op")),
}


def scheme(weight, mode, bits=8):
    """A scheme in short: ``int4 asym 3`` are weights of four bits with zero points and groups of three."""
    dtype, *rest = weight.split()
    sign, size = [*rest, *("sym", "0")[len(rest) :]]
    how = {"dtype": dtype, "scheme": sign, "granularity": "per_channel"}
    if size == "tensor":
        how["granularity"] = "per_tensor"
    elif size != "0":
        how |= {"granularity": "per_group", "group_size": int(size)}
    activation = {"dtype": "fp32"} if mode == "weight_only" else {"dtype": f"int{bits}", "granularity": "per_tensor"}
    return OpScheme.from_dict(
        {"weight": how, "activation": {**activation, "scheme": "sym" if bits == 16 else "asym", "quant_mode": mode}}
    )


def run(layer, how):
    """The outputs of the float model, of the quantized one and of its file, and the file."""
    shape, make = LAYERS[layer]
    keras.utils.set_random_seed(0)
    ids, rng = layer in ("Embedding", "wide"), np.random.default_rng(0)
    model = keras.Sequential([keras.Input(shape, dtype="int32" if ids else "float32", name="x"), make()])
    data = rng.integers(0, 50, (8, *shape)) if ids else rng.normal(size=(8, *shape)).astype("float32")
    executor = Executor(model)
    (key,) = executor.graph.ops()
    quantized = executor.run(Plan({key: how}), lambda prepared: prepared.predict(data, verbose=0))
    file = to_litert(quantized)
    (found,) = Runner(file.content)(data).values()
    return model.predict(data, verbose=0), quantized.predict(data, verbose=0), found, file


@pytest.mark.parametrize(
    ("layer", "weight", "mode", "kind"),
    [
        ("Dense", "int4 asym 3", "weight_only", "DEQUANTIZE + FULLY_CONNECTED"),
        ("Dense", "uint4 asym 4", "weight_only", "DEQUANTIZE + FULLY_CONNECTED"),
        ("Dense", "int3", "weight_only", "DEQUANTIZE + FULLY_CONNECTED"),
        ("Dense", "int8", "dynamic", "FULLY_CONNECTED"),
        ("Dense", "int4", "dynamic", "FULLY_CONNECTED"),
        ("heads", "int4", "weight_only", "DEQUANTIZE + FULLY_CONNECTED"),
        ("merged", "int8", "dynamic", "FULLY_CONNECTED"),
        ("batched", "int4", "weight_only", "DEQUANTIZE + BATCH_MATMUL"),
        ("batched", "int8 sym tensor", "dynamic", "BATCH_MATMUL"),
        ("Conv1D", "int8", "dynamic", "CONV_2D"),
        ("Conv2D", "int4 sym 4", "weight_only", "DEQUANTIZE + CONV_2D"),
        ("Conv2D", "int4", "dynamic", "CONV_2D"),
        ("Conv3D", "int8", "weight_only", "DEQUANTIZE + CONV_3D"),
        ("Conv3D", "int4 asym 5", "weight_only", "DEQUANTIZE + CONV_3D"),
        ("Depthwise", "int8 sym tensor", "dynamic", "DEPTHWISE_CONV_2D"),
        ("Depthwise", "int4", "weight_only", "DEQUANTIZE + DEPTHWISE_CONV_2D"),
        ("Transposed", "int8", "dynamic", "TRANSPOSE_CONV"),
        ("Transposed3D", "int4", "weight_only", "DEQUANTIZE + CONV_3D_TRANSPOSE"),
        ("LSTM", "int4 asym", "weight_only", "DEQUANTIZE + FULLY_CONNECTED"),
        ("Embedding", "int8", "weight_only", "EMBEDDING_LOOKUP"),
        ("Embedding", "int4", "weight_only", "EMBEDDING_LOOKUP"),
        ("Embedding", "int4 asym", "weight_only", "DEQUANTIZE + GATHER"),
        ("wide", "int4", "weight_only", "DEQUANTIZE + GATHER"),
    ],
)
def test_stored_weights_give_what_the_keras_model_gives(layer, weight, mode, kind):
    expected, keras_out, lite_out, file = run(layer, scheme(weight, mode))
    assert (file.ops, file.in_float) == ({"op": kind}, {})
    size = np.linalg.norm(expected)
    assert 1e-3 * size < np.linalg.norm(keras_out - expected)  # something was rounded
    assert np.linalg.norm(lite_out - keras_out) < 1e-6 * size


@pytest.mark.parametrize("layer", ["LSTM", "GRU"])
def test_recurrent_layers_multiply_integers_in_their_loop(layer):
    expected, keras_out, lite_out, file = run(layer, scheme("int8", "dynamic"))
    assert file.ops == {"op": "FULLY_CONNECTED"}
    # The file rounds the state in each step, too, which the simulation does not.
    assert np.linalg.norm(lite_out - keras_out) < 2e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("layer", ["Dense", "batched", "Conv3D", "LSTM", "Embedding"])
def test_fp16_is_stored_in_two_bytes(layer):
    expected, _, lite_out, file = run(layer, float_op("fp16"))
    assert file.ops["op"].startswith("DEQUANTIZE + ")
    assert 0 < np.linalg.norm(lite_out - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("layer", "weight", "mode", "why"),
    [
        ("Conv3D", "int8", "static", "the quantizer of LiteRT files writes no CONV_3D in integers; weight-only stores"),
        ("Conv3D", "int8", "dynamic", "LiteRT has no CONV_3D that multiplies weights in int8.*take weight-only"),
        ("Depthwise", "int4", "dynamic", "LiteRT has no DEPTHWISE_CONV_2D that multiplies weights in int4.*take int8"),
        ("batched", "int8", "static", "BATCH_MATMUL has one scale for all of its weight; use per_tensor"),
        ("batched", "int8", "dynamic", "BATCH_MATMUL has one scale for all of its weight; use per_tensor"),
        ("Dense", "nf4", "weight_only", "LiteRT has no weights in nf4; use an integer type"),
    ],
)
def test_what_has_no_kernel_is_float_with_a_reason_and_a_remedy(layer, weight, mode, why):
    _, _, _, file = run(layer, scheme(weight, mode))
    assert file.ops == {}
    assert list(file.in_float) == ["op"]
    assert re.match(why, file.in_float["op"])


def transformer(tokens=12, width=16):
    """A small text classifier with the parts that such models have."""
    keras.utils.set_random_seed(0)
    words = keras.Input((tokens,), dtype="int32", name="words")
    x = layers.Embedding(60, width, name="table")(words)
    for block in range(2):
        normed = layers.LayerNormalization(name=f"norm{block}")(x)
        x = x + layers.MultiHeadAttention(2, 8, dropout=0.1, name=f"attention{block}")(normed, normed)
        inner = layers.Dense(32, activation="gelu", name=f"up{block}")(layers.LayerNormalization(name=f"n{block}")(x))
        x = layers.Add(name=f"residual{block}")([x, layers.Dense(width, name=f"down{block}")(inner)])
    x = layers.GlobalAveragePooling1D(name="mean")(x)
    return keras.Model(words, layers.Dense(4, name="head")(x), name="classifier")


@pytest.fixture(scope="module")
def classifier():
    rng = np.random.default_rng(0)
    return transformer(), [rng.integers(1, 60, (8, 12)).astype("int32") for _ in range(4)]


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_a_transformer_is_integers_with_the_products_of_its_attention(classifier, dtype):
    model, data = classifier
    words = np.concatenate(data)
    quantized = quantize_model(model, StaticQuantConfig(act_dtype=dtype), data, quiet=True)
    file = to_litert(quantized.model)
    plan = quantized.model.quantization.plan
    assert file.in_float == {}
    assert list(file.ops.values()).count("BATCH_MATMUL") == 4
    assert {name for (name, kind), s in plan.items() if not s.is_float} == set(file.ops)
    (found,) = Runner(file.content)(words).values()
    (head,) = [q for name, q in quantized.model.quantization.ranges.items() if name.startswith("head.")]
    steps = np.abs(found - quantized.predict(words, verbose=0)) / float(head.scale)
    assert steps.max() <= len(file.ops)
    assert np.median(steps) <= 1.01


def test_a_transformer_with_ranges_at_run_time_agrees_to_rounding(classifier):
    model, data = classifier
    words = np.concatenate(data)
    quantized = quantize_model(model, DynamicQuantConfig(), quiet=True)
    file = to_litert(quantized.model)
    assert len(file.ops) == 13
    (found,) = Runner(file.content)(words).values()
    expected = quantized.predict(words, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("mask_zero", [False, True])
def test_a_sequence_model_is_quantized_end_to_end(tmp_path, mask_zero):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((10,), dtype="int32", name="words"),
            layers.Embedding(200, 32, mask_zero=mask_zero, name="table"),
            layers.LSTM(48, return_sequences=True, name="first"),
            layers.GRU(24, name="second"),
            layers.Dense(3, name="head"),
        ]
    )
    words = np.random.default_rng(0).integers(1, 200, (16, 10)).astype("int32")
    words[:, 7:] = 0
    quantized = quantize_model(model, DynamicQuantConfig(), quiet=True)
    quantized.save(tmp_path / "model.tflite")
    content = (tmp_path / "model.tflite").read_bytes()
    assert to_litert(quantized.model).ops == dict.fromkeys(("first", "second", "head"), "FULLY_CONNECTED")
    weights = (32 + 48) * 192 + (48 + 24) * 72
    assert len(float_litert(model)) - len(content) > 0.9 * 3 * weights  # a byte each in place of four
    (found,) = Runner(content)(words).values()
    expected = model.predict(words, verbose=0)
    assert np.linalg.norm(found - quantized.predict(words, verbose=0)) < 0.01 * np.linalg.norm(expected)
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)


def test_a_table_of_four_bits_is_smaller_by_what_it_saves():
    model = keras.Sequential([keras.Input((6,), dtype="int32"), layers.Embedding(4000, 64, name="op")])
    executor = Executor(model)
    quantized = executor.run(Plan({("op", "Embedding"): scheme("int4", "weight_only")}))
    result = quantized.quantization.codes["op"]["embeddings"]
    assert isinstance(result, LayerResult)
    content = to_litert(quantized).content
    assert result.array.nbytes_packed < len(content) < result.array.nbytes_packed + 4000 * 8 + 4096
