"""The ranges that the core's observers find are those in the quantized graph, and no others."""

import json

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn
from networks import initialized, noise, small_cnn
from neural_compressor_mxnet import MXNetAdaptor
from neural_compressor_mxnet.quantized import input_dtypes

from neural_compressor.observers import make_observer
from neural_compressor.schemes import OpScheme, choose_qparams
from neural_compressor.testing.options import default_tune_cfg


def ranges_in(block):
    """(low, high) by the name of the node, read from the graph that runs."""
    rows = json.loads(block.symbol.tojson())["nodes"]
    found = {row["name"]: row["attrs"] for row in rows if "min_calib_range" in row.get("attrs", {})}
    return {name: (float(a["min_calib_range"]), float(a["max_calib_range"])) for name, a in found.items()}


def layer_outputs(network, inputs):
    """What each child of a sequential network gives, by running one after the other."""
    x, found = mx.nd.array(inputs), []
    for layer in network:
        x = layer(x)
        found.append(x.asnumpy())
    return found


def plan_for(model, algorithm, data):
    capability = MXNetAdaptor({"dataloader": data}).query_fw_capability(model)
    tune_cfg = default_tune_cfg(capability)
    for (_, op_type), config in tune_cfg["op"].items():
        if op_type != "Pooling":
            config["activation"]["algorithm"] = algorithm
    return {**tune_cfg, "calib_sampling_size": 40}


@pytest.mark.parametrize("algorithm", ["minmax", "kl", "percentile", "mse"])
def test_ranges_of_the_observers_are_in_the_graph(algorithm):
    model, data = small_cnn(), noise()
    tune_cfg = plan_for(model, algorithm, data)
    found = ranges_in(MXNetAdaptor().quantize(tune_cfg, model, data))

    def expected(batches, dtype):
        scheme = OpScheme.from_dict(
            {"activation": {"dtype": dtype, "scheme": "sym", "algorithm": algorithm}}
        ).activation
        observer = make_observer(scheme)
        for batch in batches:
            observer.update(batch)
        scale = float(choose_qparams(*observer.range(scheme), scheme).scale)
        return (0, 255.5 * scale) if dtype == "uint8" else (-127.5 * scale, 127.5 * scale)

    batches = [inputs for inputs, _ in data]
    outputs = [layer_outputs(model, inputs) for inputs in batches]
    assert set(found) == {
        "data_quantize",
        "quantized_sg_mkldnn_conv_bn_act_0",
        "quantized_sg_mkldnn_conv_act_1",
        "quantized_sg_mkldnn_fully_connected_eltwise_0",
    }
    close = {"rel": 0.02 if algorithm in ("kl", "mse") else 1e-4}  # oneDNN sums in another order, which moves bins
    assert found["data_quantize"] == pytest.approx(expected(batches, "int8"), rel=1e-6)
    second = expected([each[2] for each in outputs], "uint8")
    assert found["quantized_sg_mkldnn_conv_bn_act_0"] == pytest.approx(second, **close)
    third = expected([each[4] for each in outputs], "uint8")
    assert found["quantized_sg_mkldnn_conv_act_1"] == pytest.approx(third, **close)
    fourth = expected([each[5] for each in outputs], "uint8")
    assert found["quantized_sg_mkldnn_fully_connected_eltwise_0"] == pytest.approx(fourth, **close)


def test_algorithms_give_different_ranges():
    model, data = small_cnn(), noise()
    peaks = {
        ranges_in(MXNetAdaptor().quantize(plan_for(model, a, data), model, data))["data_quantize"][1]
        for a in ("minmax", "percentile", "mse")
    }
    assert len(peaks) == 3


def test_tiny_ranges_keep_their_digits():
    network = initialized_dense(3, 4)
    inputs = np.float32([[1e-7, -2.5e-7, 3.3333e-7, 0]])
    tune_cfg = default_tune_cfg(MXNetAdaptor().query_fw_capability(network))
    block = MXNetAdaptor().quantize(tune_cfg, network, [(inputs, None)])
    assert ranges_in(block)["data_quantize"] == pytest.approx(
        (-3.3333e-7 * 127.5 / 127, 3.3333e-7 * 127.5 / 127), rel=1e-6
    )


def test_widest_range_serves_ops_that_share_a_tensor():
    class Twin(nn.HybridBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            with self.name_scope():
                self.one, self.other = nn.Dense(5, in_units=6), nn.Dense(5, in_units=6)

        def hybrid_forward(self, F, x):  # noqa: N803
            return self.one(x) - self.other(x)

    network = initialized(Twin(prefix="twin_"), 1, 6)
    inputs = np.random.default_rng(0).standard_cauchy(size=(64, 6)).astype(np.float32)
    tune_cfg = default_tune_cfg(MXNetAdaptor().query_fw_capability(network))
    first, second = tune_cfg["op"].values()
    first["activation"]["algorithm"], second["activation"]["algorithm"] = "percentile", "minmax"
    block = MXNetAdaptor().quantize(tune_cfg, network, [(inputs, None)])
    assert ranges_in(block)["data_quantize"][1] == pytest.approx(np.abs(inputs).max() * 127.5 / 127, rel=1e-6)


def initialized_dense(units, width):
    network = nn.HybridSequential(prefix="dense_")
    with network.name_scope():
        network.add(nn.Dense(units, in_units=width))
    return initialized(network, 1, width)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_dense_layer_computes_what_integers_say(dtype):
    """By hand: codes of input and weight, their integer product, the two scales, the bias."""
    network, rng = initialized_dense(7, 12), np.random.default_rng(3)
    inputs = rng.normal(size=(5, 12)).astype(np.float32)
    inputs = np.abs(inputs) if dtype == "uint8" else inputs
    tune_cfg = default_tune_cfg(MXNetAdaptor().query_fw_capability(network))
    tune_cfg["op"]["dense_dense0_fwd", "FullyConnected"]["activation"]["dtype"] = dtype
    adaptor = MXNetAdaptor()
    block = adaptor.quantize(tune_cfg, network, [(inputs, None)])
    assert input_dtypes(block) == {"dense_dense0_fwd": dtype}
    parameters = {name.rsplit("_", 1)[-1]: p.data().asnumpy() for name, p in network.collect_params().items()}
    weight_scale = np.abs(parameters["weight"]).max(axis=1) / 127.5
    weight_codes = np.clip(np.rint(parameters["weight"] / weight_scale[:, None] * 1.000001), -128, 127).astype(int)
    input_scale = np.abs(inputs).max() / (255 if dtype == "uint8" else 127)
    input_codes = np.rint(inputs / input_scale).astype(int)
    # The bias is rounded to steps of the two scales.
    steps = input_scale * weight_scale
    expected = (input_codes @ weight_codes.T + np.rint(parameters["bias"] / steps)) * steps
    np.testing.assert_allclose(adaptor.predict(block, inputs), expected, rtol=1e-5, atol=1e-6)


def test_weights_of_a_folded_convolution_are_the_codes_that_are_saved():
    """The kernel scales each channel by batch normalisation before it rounds: the codes stay the same."""
    model, data = small_cnn(), noise()
    adaptor = MXNetAdaptor()
    tune_cfg = default_tune_cfg(adaptor.query_fw_capability(model))
    key = ("cnn_conv0_fwd", "Convolution")
    block = adaptor.quantize({"op": {key: tune_cfg["op"][key]}}, model, data)
    high = ranges_in(block)["data_quantize"][1]
    inputs = next(iter(data))[0]
    rounded = np.clip(np.rint(inputs * 127.5 / high), -128, 127) * (high / 127.5)
    parameters = {name: p.data() for name, p in model.collect_params().items()}
    weight = parameters["cnn_conv0_weight"].asnumpy()
    scale = np.abs(weight).max(axis=(1, 2, 3), keepdims=True) / 127.5
    values = mx.nd.array(np.clip(np.rint(weight / scale), -128, 127) * scale)
    reference = mx.nd.Convolution(
        mx.nd.array(rounded), values, parameters["cnn_conv0_bias"], kernel=(3, 3), pad=(1, 1), num_filter=8
    )
    norm = [parameters[f"cnn_batchnorm0_{part}"] for part in ("gamma", "beta", "running_mean", "running_var")]
    reference = mx.nd.relu(
        mx.nd.BatchNorm(reference, *norm, eps=1e-5, fix_gamma=False, use_global_stats=True)
    ).asnumpy()
    actual = adaptor.inspect_tensor(block, data, [key[0]])["activation"][0][key[0]]["output0"]
    peak = ranges_in(block)["quantized_sg_mkldnn_conv_bn_act_0"][1]
    # The output is rounded to 255 steps; what is in between is cut off at the calibrated range.
    np.testing.assert_allclose(actual, np.minimum(reference, peak), atol=0.51 * peak / 255.5)
