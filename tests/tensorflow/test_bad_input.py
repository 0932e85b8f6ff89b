"""Files, models and data that are not as they should be get an error that says so."""

import json
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import CalibrationError, ConfigError, FormatError, QuantizationError, WorkspaceError
from neural_compressor.tensorflow import StaticQuantConfig, quantize_model
from neural_compressor.tensorflow.adaptor import KerasAdaptor

layers = keras.layers
CONF = PostTrainingQuantConfig()


def dense_model(*more):
    return keras.Sequential([keras.Input((4,)), *more, layers.Dense(3, name="head")])


DATA = [np.random.default_rng(0).normal(size=(8, 4)).astype("float32")]


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_file_is_as_good_as_the_model(tmp_path, suffix):
    model = dense_model()
    path = tmp_path / f"model{suffix}"
    model.save(path)
    found = quantization.fit(str(path), CONF, calib_dataloader=DATA, workspace=tmp_path / "ws", quiet=True)
    dataset = tf.data.Dataset.from_tensor_slices((DATA[0], np.zeros(8))).batch(4)
    expected = quantize_model(str(path), StaticQuantConfig(), dataset, quiet=True)
    np.testing.assert_allclose(found.model.predict(DATA[0], verbose=0), expected.predict(DATA[0], verbose=0), atol=1e-6)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_truncated_files_are_refused(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    dense_model().save(path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(FormatError, match="model"):
        quantization.fit(str(path), CONF, calib_dataloader=DATA)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_code_in_a_file_is_not_run(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    dense_model(layers.Lambda(lambda x: x * 2, name="twice")).save(path)
    with pytest.raises(FormatError, match=r"Lambda.*twice.*not run"):
        quantization.fit(str(path), CONF, calib_dataloader=DATA)


@pytest.mark.parametrize("name", ["layers.Lambda", "keras>Lambda", "Custom>TFSMLayer"])
def test_code_in_a_file_is_known_by_the_last_part_of_its_name(tmp_path, name):
    path = tmp_path / "model.keras"
    settings = {"config": {"layers": [{"class_name": name, "config": {"name": "twice"}}]}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(settings))
    with pytest.raises(FormatError, match=r"twice.*not run"):
        quantization.fit(str(path), CONF, calib_dataloader=DATA)


def test_a_pickle_beside_the_model_is_refused(tmp_path):
    path = tmp_path / "model.keras"
    dense_model().save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("payload.pkl", b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(FormatError, match=r"payload\.pkl"):
        quantization.fit(str(path), CONF, calib_dataloader=DATA)


def test_weights_without_a_model_say_what_to_do(tmp_path):
    path = tmp_path / "weights.h5"
    import h5py

    with h5py.File(path, "w") as file:
        file["kernel"] = np.zeros(3)
    with pytest.raises(FormatError, match="load_weights"):
        quantization.fit(str(path), CONF, calib_dataloader=DATA)
    with pytest.raises(FormatError, match="no file"):
        quantization.fit(str(tmp_path / "nothing.keras"), CONF, calib_dataloader=DATA)


class Odd(layers.Layer):
    def call(self, inputs):
        return inputs * keras.ops.sigmoid(inputs)


def test_custom_and_unsupported_layers_are_listed_with_the_reason():
    model = dense_model(Odd(name="odd"), layers.LayerNormalization(name="norm"))
    skipped = KerasAdaptor().query_fw_capability(model)["skipped"]
    assert "Odd" in skipped["odd", "Odd"]
    assert "LayerNormalization" in skipped["norm", "LayerNormalization"]
    quantized = quantize_model(model, StaticQuantConfig(), DATA, quiet=True)
    np.testing.assert_allclose(quantized.predict(DATA[0], verbose=0), model.predict(DATA[0], verbose=0), atol=0.1)


class Traceable(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization()
        self.conv = layers.Conv2D(4, 3, name="conv")
        self.head = layers.Dense(3, name="head")

    def call(self, inputs, training=None):
        x = keras.ops.relu(self.norm(self.conv(inputs), training=training))
        return self.head(keras.ops.mean(x, axis=(1, 2)))


class Eager(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = layers.Dense(3)

    def call(self, inputs):
        import tensorflow as tf

        return tf.nn.relu(self.head(inputs))


def test_subclassed_models_are_traced_or_refused_saying_how():
    images = np.random.default_rng(1).normal(size=(4, 8, 8, 3)).astype("float32")
    model = Traceable()
    with pytest.raises(ConfigError, match="call it once"):
        quantize_model(model, StaticQuantConfig(), [images])
    expected = model(images).numpy()
    quantized = quantize_model(model, StaticQuantConfig(), [images], quiet=True)
    assert set(quantized.model.quantization.codes) == {"conv", "head"}
    assert "batch_normalization" not in [layer.name for layer in quantized.model.layers]
    assert np.abs(quantized.predict(images, verbose=0) - expected).max() < 0.1 * np.abs(expected).max()
    eager = Eager()
    eager(DATA[0])
    with pytest.raises(ConfigError, match=r"keras\.ops.*SavedModel"):
        quantize_model(eager, StaticQuantConfig(), DATA)


def endless():
    while True:
        yield DATA[0]


def test_an_endless_loader_is_read_as_far_as_asked():
    class Endless:
        def __iter__(self):
            return endless()

    quantize_model(dense_model(), StaticQuantConfig(), Endless(), calib_iteration=3, quiet=True)


def test_loaders_that_raise_or_give_nan_are_named():
    def broken():
        yield DATA[0]
        raise KeyError("image 7")

    class Broken:
        def __iter__(self):
            return broken()

    with pytest.raises(CalibrationError, match=r"KeyError at batch 1.*image 7"):
        quantize_model(dense_model(), StaticQuantConfig(), Broken(), calib_iteration=5)
    with pytest.raises(CalibrationError, match="NaN"):
        quantize_model(dense_model(), StaticQuantConfig(), [np.full((2, 4), np.nan, "float32")])


def test_weights_that_are_no_numbers_are_refused():
    model = dense_model()
    model.get_layer("head").kernel.assign(np.full((4, 3), np.nan, "float32"))
    with pytest.raises(QuantizationError, match="head"):
        quantize_model(model, StaticQuantConfig(), DATA)


def test_dicts_and_several_inputs():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    x = layers.Concatenate(name="join")([layers.Dense(3, name="left")(a), b])
    model = keras.Model({"a": a, "b": b}, {"sum": layers.Dense(2, name="head")(x)})
    rng = np.random.default_rng(0)
    batch = {"a": rng.normal(size=(8, 4)).astype("f4"), "b": rng.normal(size=(8, 3)).astype("f4")}
    quantized = quantize_model(model, StaticQuantConfig(), [(batch, np.zeros(8))], quiet=True)
    np.testing.assert_allclose(
        quantized.predict(batch, verbose=0)["sum"], model.predict(batch, verbose=0)["sum"], atol=0.1
    )
    with pytest.raises(CalibrationError, match="b is missing"):
        quantize_model(model, StaticQuantConfig(), [{"a": batch["a"]}])


def test_a_full_disk_says_so(tiny_disk):
    model = keras.Sequential([keras.Input((400,)), layers.Dense(400, name="wide")])
    data = [np.random.default_rng(0).normal(size=(4, 400)).astype("float32")]
    quantized = quantize_model(model, StaticQuantConfig(), data, quiet=True)
    for name in ("model.tflite", "folder"):
        with pytest.raises(WorkspaceError, match="No space left"):
            quantized.save(tiny_disk / name)


def test_a_disk_that_is_full_while_converting_says_so(tiny_disk, tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((400,)), layers.Dense(400, name="wide")])
    data = [np.random.default_rng(0).normal(size=(4, 400)).astype("float32")]
    quantized = quantize_model(model, StaticQuantConfig(), data, quiet=True)
    adaptor = KerasAdaptor()
    monkeypatch.setattr("tempfile.tempdir", str(tiny_disk))
    with pytest.raises(WorkspaceError, match=r"temporary folder.*full.*TMPDIR"):
        adaptor.convert(quantized.model, "keras", "litert")
    assert not list(tiny_disk.iterdir())


def test_a_saved_folder_of_another_model_is_refused(tmp_path):
    quantize_model(dense_model(), StaticQuantConfig(), DATA, quiet=True).save(tmp_path)
    other = keras.Sequential([keras.Input((7,)), layers.Dense(3, name="head")])
    with pytest.raises((FormatError, ConfigError)):
        quantization.load(tmp_path, other)
    about = json.loads((tmp_path / "quantization.json").read_text())
    del about["ranges"]
    (tmp_path / "quantization.json").write_text(json.dumps(about))
    with pytest.raises(FormatError, match="ranges"):
        quantization.load(tmp_path, dense_model())


class TwoArguments(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = layers.Dense(3)

    def call(self, one, other):
        return self.head(one) + self.head(other)


class Branching(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = layers.Dense(3)

    def call(self, inputs):
        return self.head(inputs) if keras.ops.sum(inputs) > 0 else -self.head(inputs)


def test_models_without_one_graph_say_what_to_write():
    model = TwoArguments()
    model(DATA[0], DATA[0])
    with pytest.raises(ConfigError, match=r"several arguments \(one, other\).*a dict of tensors"):
        quantize_model(model, StaticQuantConfig(), [(DATA[0], DATA[0])])
    model = Branching()
    model(DATA[0])
    with pytest.raises(ConfigError, match=r"no graph.*symbolic.*SavedModel"):
        quantize_model(model, StaticQuantConfig(), DATA)


class TwoOfAName(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [layers.Dense(4, name="part") for _ in range(2)]

    def call(self, inputs):
        for part in self.parts:
            inputs = part(inputs)
        return inputs


def test_layers_of_one_name_are_told_apart(tmp_path):
    given = keras.Input((4,))
    inner = [keras.Sequential([keras.Input((4,)), layers.Dense(4, name="d")], name=name) for name in "ab"]
    model = keras.Model(given, inner[1](inner[0](given)))
    quantized = quantize_model(model, StaticQuantConfig(), DATA, quiet=True)
    assert set(quantized.model.quantization.codes) == {"a.d", "b.d"}
    assert [part.layers[0].name for part in inner] == ["d", "d"]
    quantized.save(tmp_path / "saved")
    loaded = quantization.load(tmp_path / "saved", model)
    np.testing.assert_array_equal(loaded.predict(DATA[0], verbose=0), quantized.predict(DATA[0], verbose=0))
    model = TwoOfAName()
    model(DATA[0])
    quantized = quantize_model(model, StaticQuantConfig(), DATA, quiet=True)
    assert set(quantized.model.quantization.codes) == {"part", "part_1"}
