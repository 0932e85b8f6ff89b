"""Calls of the 3.x API for TensorFlow as its documentation spells them."""

import copy
import pickle

import keras
import numpy as np
import pytest

from neural_compressor import quantization
from neural_compressor.common.base_tuning import TuningConfig
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.errors import ConfigError, NothingToQuantizeError
from neural_compressor.tensorflow import (
    Model,
    SmoothQuantConfig,
    StaticQuantConfig,
    autotune,
    get_all_config_set,
    get_default_sq_config,
    get_default_static_quant_config,
    quantize_model,
)
from neural_compressor.tensorflow.litert.model import LiteModel
from neural_compressor.tensorflow.quantization.autotune import autotune as autotune_of_module
from neural_compressor.tensorflow.utils import BaseDataLoader, DummyDataset

FLOAT = {"weight_dtype": "fp32", "act_dtype": "fp32"}
DATA = BaseDataLoader(DummyDataset(shape=(16, 8, 8, 3), low=-1.0, high=1.0, label=True), batch_size=4)
IMAGES = np.concatenate([images for images, _ in DATA])


def net():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, activation="relu", name="conv"),
            keras.layers.Flatten(),
            keras.layers.Dense(5, name="head"),
        ]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "saved"
    net().export(place, verbose=False)
    return str(place)


def said(quantized):
    return {str(key[0]): scheme.precision for key, scheme in quantized.quantization.plan.items()}


@pytest.mark.parametrize(
    "given",
    [
        {"static_quant": {"global": {"weight_dtype": "int8"}, "local": {"head": FLOAT}}},
        {"static_quant": {"weight_dtype": "int8", "local": {"head": FLOAT}}},
        StaticQuantConfig().set_local("head", StaticQuantConfig(**FLOAT)).to_dict(),
    ],
)
def test_settings_as_a_dict(given):
    found = quantize_model(net(), given, DATA, quiet=True)
    assert said(found) == {"conv": "int8", "head": "fp32"}


def test_a_sum_smooths_as_a_list_does():
    both = [SmoothQuantConfig(alpha=0.3), StaticQuantConfig()]
    as_list, as_sum, as_dict = (
        quantize_model(net(), config, DATA, quiet=True)
        for config in (both, both[0] + both[1], {"smooth_quant": {"alpha": 0.3}, "static_quant": {}})
    )
    assert as_list.quantization.plan == as_sum.quantization.plan == as_dict.quantization.plan
    assert np.array_equal(as_list(IMAGES), as_sum(IMAGES))


def test_a_saved_model_has_the_bytes_of_fit(folder, tmp_path):
    found = quantize_model(folder, StaticQuantConfig(), DATA, calib_iteration=4, quiet=True)
    conf = PostTrainingQuantConfig(calibration_sampling_size=16)
    fitted = quantization.fit(folder, conf, calib_dataloader=DATA, workspace=tmp_path / "ws", quiet=True)
    assert found.model.plan == fitted.model.plan
    assert found.model.content == fitted.model.content
    found.save(tmp_path / "out")
    assert (tmp_path / "out" / "model.tflite").read_bytes() == found.model.content
    found.save(tmp_path / "out.tflite")
    assert np.array_equal(Model(tmp_path / "out.tflite")(IMAGES), found(IMAGES))
    with pytest.raises(ConfigError, match="has no Keras layers"):
        found.save(tmp_path / "out.keras")


def test_ops_of_a_saved_model(folder):
    (name,) = [name for name, kind in StaticQuantConfig.get_model_info(folder) if kind == "MatMul"]
    config = StaticQuantConfig().set_local(name, StaticQuantConfig(**FLOAT))
    found = quantize_model(folder, [SmoothQuantConfig(op_types=["MatMul", "Conv2D"]), config], DATA, quiet=True)
    assert sorted(said(found).values()) == ["fp32", "int8"]
    with pytest.raises(ConfigError, match=r"op_types has 'Dense'.*MatMul"):
        quantize_model(folder, SmoothQuantConfig(op_types=["Dense"]), DATA, quiet=True)


def test_a_saved_model_is_tuned(folder, tmp_path):
    usual = Model(folder)(IMAGES).argmax(-1)
    tune = TuningConfig(config_set=[StaticQuantConfig(), SmoothQuantConfig()], tolerable_loss=0.5, workspace=tmp_path)
    best = autotune(
        model=folder,
        tune_config=tune,
        eval_fn=lambda model: float((model(IMAGES).argmax(-1) == usual).mean()),
        calib_dataloader=DATA,
        quiet=True,
    )
    assert best.tuning.satisfied
    assert set(said(best).values()) == {"int8"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frozen.pb", r"frozen\.pb is none that can be read.*write it as a SavedModel"),
        ("quantized", r"quantization\.load\(folder, float_model\) reads, or save it as \.keras"),
        ("nothing", "nothing is none that can be read"),
    ],
)
def test_what_is_no_float_model_is_refused(tmp_path, name, message):
    if name == "quantized":
        quantize_model(net(), StaticQuantConfig(), DATA, quiet=True).save(tmp_path / name)
    with pytest.raises(ConfigError, match=message):
        Model(tmp_path / name)


def test_configurations_to_start_from():
    assert get_default_static_quant_config() == StaticQuantConfig()
    assert get_default_sq_config() == SmoothQuantConfig()
    assert StaticQuantConfig.get_config_set_for_tuning()[0] == StaticQuantConfig()
    assert {type(config) for config in get_all_config_set()} >= {StaticQuantConfig, SmoothQuantConfig}
    assert autotune_of_module is autotune


def test_a_quantized_model_given_again(folder, tmp_path):
    once = quantize_model(net(), StaticQuantConfig(), DATA, quiet=True)
    once.save(tmp_path / "once.keras")
    for given in (once, str(tmp_path / "once.keras")):
        with pytest.raises(ConfigError, match="the model is quantized already"):
            quantize_model(given, StaticQuantConfig(), DATA, quiet=True)
    lite = quantize_model(folder, StaticQuantConfig(), DATA, quiet=True)
    with pytest.raises(NothingToQuantizeError, match="it does not compute in float32"):
        quantize_model(lite, StaticQuantConfig(), DATA, quiet=True)


def test_copies_of_a_saved_model(folder):
    found = quantize_model(folder, StaticQuantConfig(), DATA, quiet=True).model
    expected = found(IMAGES)
    for copied in (copy.deepcopy(found), pickle.loads(pickle.dumps(LiteModel(found.content)))):
        assert np.array_equal(copied(IMAGES), expected)
