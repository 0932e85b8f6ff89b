"""The TensorFlow adaptor: SavedModels, which have no Keras layers to look at, through LiteRT's graph."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from neural_compressor import quantization
from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import CalibrationError, ConfigError, FormatError
from neural_compressor.tensorflow.adaptor import TensorFlowAdaptor
from neural_compressor.testing import AdaptorContract


class Net(tf.Module):
    """Written with TensorFlow alone."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(0)
        self.kernel = tf.Variable(rng.normal(scale=0.3, size=(3, 3, 3, 16)).astype("float32"))
        self.depthwise = tf.Variable(rng.normal(scale=0.3, size=(3, 3, 16, 1)).astype("float32"))
        self.matrix = tf.Variable(rng.normal(scale=0.3, size=(16, 5)).astype("float32"))
        self.bias = tf.Variable(rng.normal(size=5).astype("float32"))

    @tf.function(input_signature=[tf.TensorSpec((None, 12, 12, 3), tf.float32, name="image")])
    def serve(self, image):
        x = tf.nn.relu(tf.nn.conv2d(image, self.kernel, 1, "SAME"))
        y = tf.nn.relu(tf.nn.depthwise_conv2d(x, self.depthwise, [1, 1, 1, 1], "SAME"))
        x = tf.nn.max_pool2d(x + y, 2, 2, "VALID")
        x = tf.reduce_mean(x, axis=(1, 2))
        return {"logits": x @ self.matrix + self.bias, "features": x}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "saved"
    net = Net()
    tf.saved_model.save(net, str(place), signatures=net.serve)
    return place


def batches():
    rng = np.random.default_rng(11)
    return [(rng.normal(size=(4, 12, 12, 3)).astype("float32"), rng.integers(0, 5, 4)) for _ in range(5)]


class Accuracy:
    def __init__(self):
        self.hits = self.total = 0

    def update(self, predictions, labels):
        self.hits += int((np.asarray(predictions).argmax(-1) == labels).sum())
        self.total += len(labels)

    def result(self):
        return self.hits / self.total


class TestTensorFlowAdaptor(AdaptorContract):
    @pytest.fixture(autouse=True)
    def _folder(self, folder):
        self.folder = folder

    def make_adaptor(self):
        return TensorFlowAdaptor({"outputs": ["logits"]})

    def make_model(self):
        return str(self.folder)

    def make_dataloader(self):
        return batches()

    def make_metric(self):
        return Accuracy()


def labels_by_float(folder):
    module = tf.saved_model.load(str(folder))
    return [
        (x, module.signatures["serving_default"](image=tf.constant(x))["logits"].numpy().argmax(-1))
        for x, _ in batches()
    ]


def test_fit_gives_an_integer_model_of_a_saved_model(folder, tmp_path):
    data = labels_by_float(folder)

    def accuracy(model):
        return float(np.mean([(model(x).argmax(-1) == y).mean() for x, y in data]))

    conf = PostTrainingQuantConfig(
        inputs=["image"],
        outputs=["logits"],
        accuracy_criterion=AccuracyCriterion(tolerable_loss=0.05),
        tuning_criterion=TuningCriterion(objective="modelsize"),
    )
    found = quantization.fit(
        str(folder), conf, calib_dataloader=data, eval_func=accuracy, workspace=tmp_path / "ws", quiet=True
    )
    assert found.result.satisfied
    found.save(tmp_path / "saved")
    runner = tf.lite.Interpreter(str(tmp_path / "saved" / "model.tflite")).get_signature_runner()
    assert set(runner.get_output_details()) == {"logits", "features"}
    loaded = quantization.load(tmp_path / "saved", str(folder))
    np.testing.assert_array_equal(loaded(data[0][0]), found.model(data[0][0]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inputs": ["imag"]}, "'imag'.*image"),
        ({"outputs": ["probabilities"]}, "no 'probabilities'"),
    ],
)
def test_names_that_the_signature_lacks_are_refused(folder, given, message):
    with pytest.raises(ConfigError, match=message):
        quantization.fit(str(folder), PostTrainingQuantConfig(**given), calib_dataloader=batches())


def test_broken_saved_models_and_batches_are_named(folder, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "saved_model.pb").write_bytes((folder / "saved_model.pb").read_bytes()[:200])
    with pytest.raises(FormatError, match="broken"):
        quantization.fit(str(broken), PostTrainingQuantConfig(), calib_dataloader=batches())
    with pytest.raises(CalibrationError, match=r"image.*\(2, 5, 12, 3\)"):
        quantization.fit(str(folder), PostTrainingQuantConfig(), calib_dataloader=[np.ones((2, 5, 12, 3), "float32")])


def test_a_module_without_a_signature_says_how_to_save_one(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path / "empty"))
    with pytest.raises(FormatError, match="serving_default"):
        quantization.fit(str(tmp_path / "empty"), PostTrainingQuantConfig(), calib_dataloader=batches())


def test_variables_that_are_cut_off_are_named(folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (variables,) = (broken / "variables").glob("*data*")
    variables.write_bytes(variables.read_bytes()[:20])
    with pytest.raises(FormatError, match="broken is no SavedModel that can be read"):
        quantization.fit(str(broken), PostTrainingQuantConfig(), calib_dataloader=batches())


def test_sizes_that_litert_cannot_start_with_are_named_before_any_work(tmp_path):
    model = keras.Sequential(
        [keras.Input((None, None, 3), name="image"), keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D()]
    )
    model.export(tmp_path / "open", verbose=False)
    with pytest.raises(FormatError, match=r"image \(-1, -1, -1, 3\).*fixed sizes"):
        quantization.fit(str(tmp_path / "open"), PostTrainingQuantConfig(), calib_dataloader=batches())


def test_paths_and_conversions_that_are_none_are_named(folder, tmp_path):
    with pytest.raises(ConfigError, match="missing', which is not there"):
        quantization.fit(str(tmp_path / "missing"), PostTrainingQuantConfig(), calib_dataloader=batches())
    with pytest.raises(ConfigError, match=r"'onnx' to 'litert'.*'savedmodel' to 'litert'"):
        TensorFlowAdaptor().convert(str(folder), "onnx", "litert")
