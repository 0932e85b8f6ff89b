"""The Keras adaptor keeps the contract of adaptors."""

import keras
import numpy as np

from neural_compressor.tensorflow.adaptor import KerasAdaptor
from neural_compressor.testing import AdaptorContract


def small_cnn():
    keras.utils.set_random_seed(7)
    layers = keras.layers
    image = keras.Input((12, 12, 3), name="image")
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="stem")(image)
    x = layers.BatchNormalization(name="norm")(x)
    x = layers.ReLU(name="relu")(x)
    y = layers.DepthwiseConv2D(3, padding="same", activation="relu6", name="depthwise")(x)
    y = layers.Conv2D(8, 1, name="pointwise")(y)
    x = layers.Add(name="add")([x, y])
    x = layers.MaxPooling2D(name="pool")(x)
    x = layers.Dropout(0.5, name="dropout")(x)
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    model = keras.Model(image, layers.Dense(5, activation="softmax", name="head")(x), name="small")
    rng = np.random.default_rng(3)
    model.get_layer("norm").set_weights(
        [rng.uniform(0.5, 1.5, 8), rng.normal(size=8), rng.normal(size=8), rng.uniform(0.5, 2, 8)]
    )
    return model


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


class TestKerasAdaptor(AdaptorContract):
    def make_adaptor(self):
        return KerasAdaptor()

    def make_model(self):
        return small_cnn()

    def make_dataloader(self):
        return batches()

    def make_metric(self):
        return Accuracy()
