"""MXNet's adaptor passes the contract suite of Open Neural Compressor."""

import numpy as np
from networks import Accuracy, noise, residual, small_cnn
from neural_compressor_mxnet import MXNetAdaptor

from neural_compressor.testing import AdaptorContract


class TestMXNet(AdaptorContract):
    def make_adaptor(self):
        return MXNetAdaptor()

    def make_model(self):
        return small_cnn()

    def make_dataloader(self):
        return noise()

    def make_metric(self):
        return Accuracy()


class FirstOutput(Accuracy):
    def update(self, predictions, labels):
        super().update(predictions[0], labels)


class TestBranches(TestMXNet):
    """The same with a sum, a concatenation, a layer that runs twice and two outputs."""

    def make_model(self):
        return residual()

    def make_metric(self):
        return FirstOutput()

    def to_numpy(self, predictions):
        return np.concatenate(predictions, axis=-1)
