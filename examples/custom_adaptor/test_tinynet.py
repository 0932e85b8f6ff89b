"""The adaptor of tinynet passes the contract suite of Open Neural Compressor, and keeps what is its own."""

import numpy as np
import pytest
import tinynet
from tinynet.adaptor import TinyNetAdaptor
from tinynet.folding import fold_scales
from tinynet.quantized import DeQuantize, Quantize

from neural_compressor.testing import AdaptorContract


def small_network():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return tinynet.Network(
        [
            tinynet.Conv1D(name="conv", weight=normal(6, 2, 3), bias=normal(6)),
            tinynet.Scale(name="scale", factor=normal(6), offset=normal(6)),
            tinynet.Relu(name="relu"),
            tinynet.Flatten(name="flatten"),
            tinynet.Dense(name="fc1", weight=normal(16, 60), bias=normal(16)),
            tinynet.Relu(name="relu1"),
            tinynet.Dense(name="fc2", weight=normal(4, 16), bias=normal(4)),
        ]
    )


def small_data():
    rng = np.random.default_rng(1)
    return tinynet.DataLoader(rng.normal(size=(40, 2, 12)).astype(np.float32), rng.integers(0, 4, 40))


class Accuracy:
    def __init__(self):
        self.hits, self.total = 0, 0

    def update(self, predictions, labels):
        self.hits += int((predictions.argmax(-1) == labels).sum())
        self.total += len(labels)

    def result(self):
        return self.hits / self.total


class TestTinyNet(AdaptorContract):
    def make_adaptor(self):
        return TinyNetAdaptor()

    def make_model(self):
        return small_network()

    def make_dataloader(self):
        return small_data()

    def make_metric(self):
        return Accuracy()


def test_folding_keeps_the_outputs():
    network, inputs = small_network(), small_data().inputs
    folded = fold_scales(network)
    assert [layer.op_type for layer in folded] == ["Conv1D", "Relu", "Flatten", "Dense", "Relu", "Dense"]
    np.testing.assert_allclose(folded.predict_on_batch(inputs), network.predict_on_batch(inputs), rtol=1e-4, atol=1e-4)


def test_static_op_is_preceded_by_quantize_and_dequantize_with_the_calibrated_range():
    adaptor, model, data = TinyNetAdaptor(), small_network(), small_data()
    scheme = {
        "weight": {"dtype": "int8", "scheme": "sym", "granularity": "per_channel", "algorithm": "minmax"},
        "activation": {"dtype": "uint8", "scheme": "asym", "granularity": "per_tensor", "algorithm": "minmax"},
    }
    tune_cfg = {"op": {("fc1", "Dense"): scheme}, "calib_sampling_size": 40}
    layers = adaptor.quantize(tune_cfg, model, data).layers
    position = next(i for i, layer in enumerate(layers) if layer.name == "fc1")
    quantize, dequantize = layers[position - 2 : position]
    assert (type(quantize), type(dequantize)) == (Quantize, DeQuantize)
    seen = fold_scales(model)
    seen.layers = seen.layers[:3]
    values = seen.predict_on_batch(data.inputs)
    assert float(quantize.qparams.scale) == pytest.approx((values.max() - min(values.min(), 0)) / 255, rel=1e-5)


def test_four_bit_weights_take_half_of_eight_bit_ones_on_disk():
    adaptor, model = TinyNetAdaptor(), small_network()

    def weight_bytes(bits):
        scheme = {
            "weight": {"dtype": f"int{bits}", "granularity": "per_channel"},
            "activation": {"dtype": "fp32", "quant_mode": "weight_only"},
        }
        layer = adaptor.quantize({"op": {("fc1", "Dense"): scheme}}, model)["fc1"]
        return layer.weight.array.pack().data.nbytes

    assert (weight_bytes(8), weight_bytes(4)) == (16 * 60, 16 * 30)
