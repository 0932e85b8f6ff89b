"""quantization.fit finds the adaptor by its entry point and tunes a CNN that was trained on scikit-learn's digits."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from networks import DataLoader, small_cnn
from neural_compressor_mxnet import MXNetAdaptor, QuantizedBlock
from sklearn.datasets import load_digits

from neural_compressor import quantization
from neural_compressor.adaptor import adaptor_for
from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig, TuningCriterion


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images = (images[order].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    return images[:1200], labels[order][:1200], images[1200:], labels[order][1200:]


@pytest.fixture(scope="module")
def network(digits):
    images, labels, *_ = digits
    mx.random.seed(1)
    model = small_cnn()
    trainer = gluon.Trainer(model.collect_params(), "adam", {"learning_rate": 0.003})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(6):
        for x, y in DataLoader(images, labels, 64):
            with autograd.record():
                error = loss(model(mx.nd.array(x)), mx.nd.array(y))
            error.backward()
            trainer.step(len(x))
    return model


@pytest.fixture
def accuracy(digits):
    *_, images, labels = digits

    def measured(model):
        return float((model(mx.nd.array(images)).asnumpy().argmax(-1) == labels).mean())

    return measured


def test_the_adaptor_is_found_by_its_entry_point(network):
    assert adaptor_for(network) is MXNetAdaptor


def test_fit_keeps_the_promise_in_int8(network, digits, accuracy, tmp_path):
    before = accuracy(network)
    assert before > 0.95
    conf = PostTrainingQuantConfig(
        accuracy_criterion=AccuracyCriterion(tolerable_loss=0.01), tuning_criterion=TuningCriterion(max_trials=10)
    )
    calibration = DataLoader(*digits[:2], 50)
    fitted = quantization.fit(network, conf, calib_dataloader=calibration, eval_func=accuracy, workspace=str(tmp_path))
    assert isinstance(fitted.model, QuantizedBlock)
    assert fitted.result.met
    assert accuracy(fitted.model) >= before * 0.99
    records = {record.name: record for record in fitted.result.ops}
    assert {name: r.precision for name, r in records.items() if r.op_type != "Pooling"} == {
        "cnn_conv0_fwd": "int8",
        "cnn_conv1_fwd": "int8",
        "cnn_dense0_fwd": "int8",
        "cnn_dense1_fwd": "int8",
    }
    # Pixels and what follows a relu have no negative values.
    assert {r.activation for r in records.values()} == {"uint8"}
    assert accuracy(network) == before


def test_per_op_fallback_leaves_named_ops_in_float(network, digits, accuracy, tmp_path):
    conf = PostTrainingQuantConfig(
        op_name_dict={"cnn_conv0_fwd": {"weight": {"dtype": ["fp32"]}, "activation": {"dtype": ["fp32"]}}},
        op_type_dict={"Pooling": {"activation": {"dtype": ["fp32"]}}},
    )
    calibration = DataLoader(*digits[:2], 50)
    fitted = quantization.fit(network, conf, calib_dataloader=calibration, eval_func=accuracy, workspace=str(tmp_path))
    precisions = {record.name: record.precision for record in fitted.result.ops}
    assert precisions == {
        "cnn_conv0_fwd": "fp32",
        "cnn_pool0_fwd": "fp32",
        "cnn_conv1_fwd": "int8",
        "cnn_dense0_fwd": "int8",
        "cnn_dense1_fwd": "int8",
    }
    graph = fitted.model.symbol.list_arguments(), fitted.model.symbol.get_internals().list_outputs()
    assert "sg_mkldnn_conv_bn_act_0_output" in graph[1]
    assert "quantized_sg_mkldnn_conv_act_1_output" in graph[1]


def test_tuning_falls_back_to_float_op_by_op_when_int8_does_not_do(network, digits, tmp_path):
    """An evaluation that only accepts the last layer in float: tuning gets there."""

    def only_float_head(model):
        names = model.symbol.get_internals().list_outputs() if isinstance(model, QuantizedBlock) else []
        return 0.5 if any(name.startswith("quantized_sg_mkldnn_fully_connected_1") for name in names) else 1.0

    conf = PostTrainingQuantConfig(tuning_criterion=TuningCriterion(max_trials=60))
    calibration = DataLoader(*digits[:2], 50)
    fitted = quantization.fit(
        network, conf, calib_dataloader=calibration, eval_func=only_float_head, workspace=str(tmp_path)
    )
    assert fitted.result.met
    precisions = {record.name: record.precision for record in fitted.result.ops}
    assert precisions["cnn_dense1_fwd"] == "fp32"
    assert precisions["cnn_conv1_fwd"] == "int8"


def test_a_data_loader_of_gluon_calibrates(network, digits, accuracy, tmp_path):
    images, labels, *_ = digits
    loader = gluon.data.DataLoader(gluon.data.ArrayDataset(images[:200], labels[:200]), batch_size=20)
    fitted = quantization.fit(
        network, PostTrainingQuantConfig(), calib_dataloader=loader, eval_func=accuracy, workspace=str(tmp_path)
    )
    assert fitted.result.met


def test_what_fit_saved_is_loaded_again(network, digits, accuracy, tmp_path):
    calibration = DataLoader(*digits[:2], 50)
    fitted = quantization.fit(
        network, PostTrainingQuantConfig(), calib_dataloader=calibration, eval_func=accuracy, workspace=str(tmp_path)
    )
    fitted.save(str(tmp_path / "saved"))
    loaded = quantization.load(tmp_path / "saved", network)
    inputs = mx.nd.array(digits[2])
    np.testing.assert_array_equal(loaded(inputs).asnumpy(), fitted.model(inputs).asnumpy())
    size = sum(p.data().size * 4 for p in network.collect_params().values())
    assert sum(f.stat().st_size for f in (tmp_path / "saved").glob("*.npz")) < size / 2
