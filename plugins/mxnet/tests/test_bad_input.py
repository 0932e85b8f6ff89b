"""Bad input gets an error that says what is wrong, where, and what would be right."""

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn
from networks import initialized, noise, residual, small_cnn
from neural_compressor_mxnet import MXNetAdaptor
from neural_compressor_mxnet.storage import FILE

from neural_compressor.errors import CalibrationError, ConfigError, FormatError, NeuralCompressorError
from neural_compressor.testing.options import default_tune_cfg


def tune_cfg_of(model):
    return default_tune_cfg(MXNetAdaptor().query_fw_capability(model))


def quantized():
    model = small_cnn()
    return MXNetAdaptor().quantize(tune_cfg_of(model), model, noise())


def test_a_network_without_values_is_refused():
    network = nn.HybridSequential()
    network.add(nn.Dense(3))
    with pytest.raises(ConfigError, match=r"no values yet.*run one batch"):
        MXNetAdaptor().query_fw_capability(network)
    network.initialize()
    with pytest.raises(ConfigError, match=r"no values yet.*run one batch"):
        MXNetAdaptor().query_fw_capability(network)


def test_a_half_precision_network_is_refused():
    network = small_cnn()
    network.cast("float16")
    with pytest.raises(ConfigError, match=r"float16.*float32"):
        MXNetAdaptor().query_fw_capability(network)


def test_a_network_that_cannot_be_traced_is_refused():
    class Looks(nn.HybridBlock):
        def hybrid_forward(self, F, x):  # noqa: N803
            return x * x.shape[0]

    with pytest.raises(ConfigError, match="Looks cannot be traced"):
        MXNetAdaptor().query_fw_capability(Looks())


def test_blocks_that_are_not_hybrid_belong_to_nobody():
    assert not MXNetAdaptor.handles(nn.Sequential())


def test_a_quantized_network_is_not_quantized_again():
    with pytest.raises(ConfigError, match="quantized already"):
        MXNetAdaptor().query_fw_capability(quantized())


@pytest.mark.parametrize(
    ("tensor", "field", "value"),
    [
        ("activation", "dtype", "uint8"),
        ("weight", "granularity", "per_tensor"),
        ("weight", "dtype", "int4"),
        ("activation", "scheme", "asym"),
    ],
)
def test_what_the_kernels_do_not_run_is_refused(tensor, field, value):
    model = residual()  # its pooling, and so its head, may read negative values
    tune_cfg = tune_cfg_of(model)
    tune_cfg["op"]["res_dense0_fwd", "FullyConnected"][tensor][field] = value
    with pytest.raises(ConfigError, match=r"res_dense0_fwd.*cannot run with"):
        MXNetAdaptor().quantize(tune_cfg, model, noise())


def test_an_op_without_an_int8_kernel_is_listed_and_refused():
    model = residual()
    capability = MXNetAdaptor().query_fw_capability(model)
    assert capability["skipped"] == {("res_conv2_fwd", "Deconvolution"): "MXNet's int8 pass leaves it in float"}
    scheme = default_tune_cfg(capability)["op"]["res_conv0_fwd", "Convolution"]
    with pytest.raises(ConfigError, match=r"res_conv2_fwd.*leaves it in float"):
        MXNetAdaptor().quantize({"op": {("res_conv2_fwd", "Deconvolution"): scheme}}, model, noise())


def test_a_pass_over_the_model_is_refused():
    model = small_cnn()
    with pytest.raises(ConfigError, match="no passes over the model; leave out smooth"):
        MXNetAdaptor().quantize({**tune_cfg_of(model), "passes": [{"name": "smooth"}]}, model, noise())


def test_negative_inputs_do_not_fit_unsigned_codes():
    model = small_cnn()
    tune_cfg = tune_cfg_of(model)
    tune_cfg["op"]["cnn_conv0_fwd", "Convolution"]["activation"]["dtype"] = "uint8"
    with pytest.raises(CalibrationError, match=r"cnn_conv0_fwd goes down to -.*int8 would be right"):
        MXNetAdaptor().quantize(tune_cfg, model, noise())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((np.zeros((2, 3, 8, 8), "f4"), None), "batch 1 of the calibration data does not fit"),
        ((np.full((2, 1, 8, 8), np.nan, "f4"), None), "NaN or Inf"),
        (([np.zeros((2, 1, 8, 8), "f4")] * 2, None), "batch 1 of the calibration data does not fit"),
    ],
)
def test_calibration_data_that_does_not_fit(batch, message):
    model = small_cnn()
    with pytest.raises(CalibrationError, match=message):
        MXNetAdaptor().quantize(tune_cfg_of(model), model, [batch])


def test_inputs_by_name_are_refused():
    with pytest.raises(ConfigError, match="not a mapping"):
        MXNetAdaptor().predict(small_cnn(), {"data": np.zeros((1, 1, 8, 8), "f4")})


def test_weights_that_are_not_finite_are_refused():
    model = small_cnn()
    tune_cfg = tune_cfg_of(model)
    weight = model.collect_params()["cnn_conv1_weight"]
    weight.set_data(weight.data() * np.nan)
    with pytest.raises(NeuralCompressorError, match=r"NaN|finite"):
        MXNetAdaptor().quantize(tune_cfg, model, noise())


def test_a_channel_of_zeros_stays_zero():
    network = nn.HybridSequential(prefix="zeros_")
    with network.name_scope():
        network.add(nn.Conv2D(4, 3, in_channels=1, use_bias=False), nn.Dense(3, use_bias=False))
    network = initialized(network, 1, 1, 8, 8)
    for parameter in network.collect_params().values():
        values = parameter.data().asnumpy()
        values[1] = 0
        parameter.set_data(mx.nd.array(values))
    adaptor = MXNetAdaptor()
    block = adaptor.quantize(tune_cfg_of(network), network, noise())
    outputs = adaptor.predict(block, noise().inputs)
    assert np.isfinite(outputs).all()
    assert not outputs[:, 1].any()
    reference = adaptor.predict(network, noise().inputs)
    assert np.linalg.norm(outputs - reference) < 0.05 * np.linalg.norm(reference)


def test_a_truncated_file_is_refused(tmp_path):
    adaptor, model = MXNetAdaptor(), small_cnn()
    adaptor.save(quantized(), tmp_path)
    file = tmp_path / FILE
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    for size in (0, 10, file.stat().st_size // 2):
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(FormatError, match="is not a network saved"):
            adaptor.load(tmp_path, model)


@pytest.mark.parametrize("name", ["about", "symbol", "codes/cnn_conv0_weight/data", "float/cnn_conv0_bias"])
def test_a_file_that_lacks_an_array_or_has_another_is_refused(tmp_path, name):
    adaptor, model = MXNetAdaptor(), small_cnn()
    adaptor.save(quantized(), tmp_path)
    with np.load(tmp_path / FILE) as stored:
        arrays = dict(stored)
    for changed in ({**arrays, name: arrays[name][:-1]}, {k: v for k, v in arrays.items() if k != name}):
        np.savez(tmp_path / FILE, **changed)
        with pytest.raises(FormatError, match="is not a network saved"):
            adaptor.load(tmp_path, model)


def test_objects_in_a_file_are_never_unpickled(tmp_path):
    np.savez(tmp_path / FILE, about=np.array([object()]))
    with pytest.raises(FormatError, match="is not a network saved"):
        MXNetAdaptor().load(tmp_path, small_cnn())


def test_a_file_of_another_network_is_refused(tmp_path):
    adaptor = MXNetAdaptor()
    adaptor.save(quantized(), tmp_path)
    with pytest.raises(FormatError, match="of another network"):
        adaptor.load(tmp_path, residual())
    with pytest.raises(FormatError, match="is not a network saved"):
        adaptor.load(tmp_path, small_cnn(channels=4))


def test_unknown_ops_and_kinds_to_inspect_are_named():
    adaptor, model = MXNetAdaptor(), small_cnn()
    with pytest.raises(ConfigError, match=r"no op 'cnn_conv9'.*cnn_conv0_fwd"):
        adaptor.inspect_tensor(model, noise(), ["cnn_conv9"])
    with pytest.raises(ConfigError, match="inspect_type 'weigth'"):
        adaptor.inspect_tensor(model, noise(), inspect_type="weigth")


def test_a_float_network_is_not_saved_as_a_quantized_one(tmp_path):
    with pytest.raises(ConfigError, match="export"):
        MXNetAdaptor().save(small_cnn(), tmp_path)
