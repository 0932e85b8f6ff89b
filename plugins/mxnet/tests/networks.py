"""Networks and data that the tests share."""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn


class DataLoader:
    """Batches of (inputs, labels) as NumPy arrays."""

    def __init__(self, inputs, labels, batch_size=8):
        self.inputs, self.labels, self.batch_size = inputs, labels, batch_size

    def __iter__(self):
        for start in range(0, len(self.inputs), self.batch_size):
            yield self.inputs[start : start + self.batch_size], self.labels[start : start + self.batch_size]


class Accuracy:
    def __init__(self):
        self.hits, self.total = 0, 0

    def update(self, predictions, labels):
        self.hits += int((predictions.argmax(-1) == labels).sum())
        self.total += len(labels)

    def result(self):
        return self.hits / self.total


def initialized(network, *shape):
    mx.random.seed(7)
    network.initialize(mx.init.Xavier())
    network(mx.nd.zeros(shape))
    rng = np.random.default_rng(0)
    for name, parameter in network.collect_params().items():
        if name.endswith(("bias", "running_mean", "beta")):
            parameter.set_data(mx.nd.array(rng.normal(scale=0.1, size=parameter.shape)))
        if name.endswith(("running_var", "gamma")):
            parameter.set_data(mx.nd.array(rng.uniform(0.5, 1.5, size=parameter.shape)))
    return network


def small_cnn(channels=8):
    network = nn.HybridSequential(prefix="cnn_")
    with network.name_scope():
        network.add(nn.Conv2D(channels, 3, padding=1, in_channels=1))
        network.add(nn.BatchNorm())
        network.add(nn.Activation("relu"))
        network.add(nn.MaxPool2D())
        network.add(nn.Conv2D(2 * channels, 3, padding=1, activation="relu"))
        network.add(nn.Dense(64, activation="relu"))
        network.add(nn.Dense(10))
    return initialized(network, 1, 1, 8, 8)


class Residual(nn.HybridBlock):
    """Two outputs, a sum, a concatenation, a layer that is called twice, and one that is no int8 op."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first = nn.Conv2D(4, 3, padding=1, in_channels=1)
            self.second = nn.Conv2D(4, 3, padding=1)
            self.norm = nn.BatchNorm()
            self.stretch = nn.Conv2DTranspose(4, 1)
            self.head = nn.Dense(10)

    def hybrid_forward(self, F, x):  # noqa: N803 - Gluon passes it under this name
        h = F.relu(self.first(x))
        z = F.relu(self.norm(self.second(h)) + h)
        z = self.stretch(F.concat(z, h, dim=1))
        z = F.Pooling(z, kernel=(2, 2), stride=(2, 2), pool_type="avg")
        return self.head(z), F.softmax(self.head(F.tanh(z)))


def residual():
    return initialized(Residual(prefix="res_"), 1, 1, 8, 8)


def noise(count=40, batch_size=8):
    rng = np.random.default_rng(1)
    return DataLoader(rng.normal(size=(count, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, count), batch_size)
