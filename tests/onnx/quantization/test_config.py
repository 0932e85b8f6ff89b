"""Configurations for ONNX models: names, defaults, spaces, files."""

import copy

import onnxruntime.quantization as ort_quantization
import pytest

from neural_compressor.config.composition import Composition
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.executor import Smooth
from neural_compressor.onnx.quantization import config as configs
from neural_compressor.onnx.quantization.config import (
    AWQConfig,
    DynamicQuantConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
)
from neural_compressor.onnx.quantization.quant_types import CalibrationMethod, QuantFormat, QuantType
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, Method, PerGroup

ALL = [StaticQuantConfig, DynamicQuantConfig, SmoothQuantConfig, RTNConfig, GPTQConfig, AWQConfig, HQQConfig]


class Reader(CalibrationDataReader):
    def get_next(self):
        return None

    def __deepcopy__(self, memo):
        raise AssertionError("data must not be copied")


def test_documented_parameters_and_defaults():
    static = StaticQuantConfig()
    assert (static.calibrate_method, static.quant_format) == (CalibrationMethod.MinMax, QuantFormat.QOperator)
    assert (static.activation_type, static.weight_type) == (QuantType.QUInt8, QuantType.QInt8)
    assert (static.per_channel, static.reduce_range, static.quant_last_matmul) == (False, False, True)
    assert (static.calibration_sampling_size, static.execution_provider) == (100, None)
    smooth = SmoothQuantConfig()
    assert (smooth.alpha, smooth.folding, smooth.calib_iter, smooth.scales_per_op) == (0.5, True, 100, True)
    for kind in (RTNConfig, GPTQConfig, AWQConfig):
        one = kind()
        assert (one.weight_dtype, one.weight_bits, one.weight_group_size, one.weight_sym) == ("int", 4, 32, True)
        assert (one.act_dtype, one.accuracy_level, one.layer_wise_quant) == ("fp32", 0, False)
    gptq = GPTQConfig()
    assert (gptq.percdamp, gptq.block_size, gptq.actorder, gptq.mse, gptq.perchannel) == (0.01, 128, False, True, True)
    assert (AWQConfig().enable_auto_scale, AWQConfig().enable_mse_search) == (True, True)


def test_the_reader_is_the_first_parameter_of_static():
    reader = Reader()
    assert StaticQuantConfig(reader).calibration_data_reader is reader
    assert SmoothQuantConfig(0.7, calibration_data_reader=reader).reader is reader


def test_copies_and_spaces_share_the_reader_and_files_leave_it_out(tmp_path):
    reader = Reader()
    config = StaticQuantConfig(reader, per_channel=[False, True])
    assert copy.deepcopy(config).reader is reader
    assert [single.reader is reader for single in config.expand()] == [True, True]
    outer = RTNConfig().set_local("conv", StaticQuantConfig(reader))
    assert (outer + DynamicQuantConfig()).parts[0].local[0].config.reader is reader
    config.per_channel = True
    assert config.reader is reader
    config.to_json_file(tmp_path / "static.json")
    assert StaticQuantConfig.from_json_file(tmp_path / "static.json").reader is None


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_dicts_read_back_the_same(kind):
    config = kind(nodes_to_exclude=["a", "b"]).set_local("c", RTNConfig(weight_bits=8))
    assert Composition.from_dict(config.to_dict()).identity == config.identity


def test_names_of_the_runtime_are_taken():
    config = StaticQuantConfig(
        calibrate_method=ort_quantization.CalibrationMethod.Entropy,
        quant_format=ort_quantization.QuantFormat.QDQ,
        activation_type=ort_quantization.QuantType.QUInt16,
        weight_type="QInt4",
    )
    scheme = config.op_scheme()
    assert (scheme.activation.dtype, scheme.activation.algorithm) == (dtype("uint16"), "kl")
    assert (scheme.weight.dtype, config.quant_format) == (dtype("int4"), QuantFormat.QDQ)


def test_schemes_follow_the_settings():
    config = StaticQuantConfig(per_channel=True, reduce_range=True, extra_options={"ActivationSymmetric": True})
    scheme = config.op_scheme()
    assert (scheme.mode, scheme.weight.granularity, scheme.weight.reduce_range) == ("static", PER_CHANNEL, True)
    assert scheme.weight.symmetric
    assert scheme.activation.symmetric
    assert config.op_scheme(has_weight=False).weight is None
    unsigned = DynamicQuantConfig(weight_type="uint8").op_scheme()
    assert (unsigned.mode, unsigned.weight.symmetric, unsigned.weight.granularity) == ("dynamic", False, PER_TENSOR)
    symmetric = DynamicQuantConfig(weight_type="uint8", extra_options={"WeightSymmetric": True}).op_scheme()
    assert symmetric.weight.symmetric


def test_weight_schemes():
    assert GPTQConfig(weight_group_size=-1).weight_scheme().granularity == PER_CHANNEL
    scheme = RTNConfig(weight_dtype="int8", weight_sym=False).weight_scheme()
    assert (scheme.dtype, scheme.symmetric, scheme.granularity) == (dtype("int8"), False, PerGroup(32))
    assert not HQQConfig().weight_scheme().symmetric
    assert not GPTQConfig(weight_dtype="fp32").quantizes


def test_data_is_needed_by_those_that_look_at_activations():
    needing = [kind for kind in ALL if kind().needs_calibration]
    assert needing == [StaticQuantConfig, SmoothQuantConfig, GPTQConfig, AWQConfig]
    assert not GPTQConfig(weight_dtype="fp32").needs_calibration


def test_lists_span_a_space():
    config = GPTQConfig(weight_bits=[4, 8], weight_sym=[True, False])
    assert [(one.weight_bits, one.weight_sym) for one in config.expand()] == [
        (4, True),
        (4, False),
        (8, True),
        (8, False),
    ]
    with pytest.raises(ConfigError, match="spans a space"):
        config.weight_scheme()


def test_a_list_of_alphas_is_a_space_for_tuning_and_a_choice_otherwise():
    config = SmoothQuantConfig(alpha=[0.3, 0.5, "auto"])
    assert [one.alpha for one in config.expand()] == [0.3, 0.5, "auto"]
    assert config.smoothing.options["alpha"] == [0.3, 0.5, "auto"]
    with pytest.raises(ConfigError, match="per_channel"):
        SmoothQuantConfig(alpha=[0.3, 0.5], per_channel=[True, False]).op_scheme()


def test_smoothing_through_the_extra_options():
    assert StaticQuantConfig().smoothing is None
    given = {"SmoothQuant": True, "SmoothQuantAlpha": [0.2, 0.8], "SmoothQuantFolding": False}
    smoothing = StaticQuantConfig(extra_options=given).smoothing.options
    assert [smoothing[name] for name in ("alpha", "folding", "calib_iter")] == [[0.2, 0.8], False, 100]
    between = {"alpha_min": 0.3, "alpha_max": 0.5, "alpha_step": 0.1, "attn_method": "min"}
    given = {"SmoothQuant": True, "SmoothQuantAlpha": "auto", "AutoAlphaArgs": between}
    smoothing = StaticQuantConfig(extra_options=given).smoothing.options
    assert Smooth(**smoothing).arguments()["alpha"] == (0.3, 0.4, 0.5)
    with pytest.raises(ConfigError, match="SmoothQuantAlpha='auto'"):
        _ = StaticQuantConfig(extra_options={**given, "SmoothQuantAlpha": 0.5}).smoothing


def test_what_smoothing_chooses_from():
    config = SmoothQuantConfig(alpha=[0.2, "auto"], auto_alpha_args={"alpha_min": 0.5, "alpha_max": 0.6})
    numbers = [Smooth(**one.smoothing.options).arguments()["alpha"] for one in config.expand()]
    assert numbers == [(0.2,), (0.5, 0.6)]
    assert SmoothQuantConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SmoothQuantConfig(auto_alpha_args={"alpha_min": 0.5}), "alpha='auto' chooses from"),
        (lambda: SmoothQuantConfig(extra_options={"SmoothQuantAlpha": 0.9}), "no option 'SmoothQuantAlpha'"),
        (lambda: SmoothQuantConfig(extra_options={"AutoAlphaArgs": {}}), "no option 'AutoAlphaArgs'"),
        (lambda: RTNConfig(weight_bits=9), "1 to 8 bits"),
        (
            lambda: StaticQuantConfig(extra_options={"AutoAlphaArgs": {"alpha_mim": 0}}),
            "no part 'alpha_mim'.*alpha_min",
        ),
        (
            lambda: StaticQuantConfig(extra_options={"AutoAlphaArgs": {"alpha_min": 0.8, "alpha_max": 0.2}}),
            "least first",
        ),
        (lambda: RTNConfig(weight_dtype="bf16"), "weight_dtype: got 'bf16', expected a data type of 1 to 8 bits"),
        (lambda: RTNConfig(weight_dtype="int16"), "1 to 8 bits"),
        (lambda: RTNConfig(weight_dtype="nf4", weight_sym=False), "weight_sym=True"),
        (lambda: GPTQConfig(weight_dtype="mxfp4", weight_group_size=64), "weight_group_size=32"),
        (lambda: HQQConfig(weight_dtype="nf4"), "expected an integer type: HQQ fits zero points"),
        (lambda: RTNConfig(weight_dtype="banana"), "weight_dtype: got 'banana'"),
        (lambda: RTNConfig(weight_dtype="int8", weight_bits=4), "weight_bits=8"),
        (lambda: RTNConfig(act_dtype="int8"), "StaticQuantConfig"),
        (lambda: RTNConfig(accuracy_level=5), "accuracy_level"),
        (lambda: RTNConfig(ratios={"w": 0}), "ratios"),
        (lambda: RTNConfig(ratios={"w": 0.9}, mse=True), "leave one out"),
        (lambda: RTNConfig(providers=["CPU"]), "CPUExecutionProvider"),
        (lambda: GPTQConfig(perchannel=False), "perchannel"),
        (lambda: HQQConfig(weight_sym=True), "zero points"),
        (lambda: StaticQuantConfig([1, 2]), "CalibrationDataReader"),
        (lambda: StaticQuantConfig(weight_tpye="QInt8"), "weight_type"),
        (lambda: StaticQuantConfig(extra_options={"ActivationSymetric": True}), "ActivationSymmetric"),
        (lambda: StaticQuantConfig(extra_options={"ActivationSymmetric": 1}), "option ActivationSymmetric"),
        (lambda: StaticQuantConfig(extra_options=["ActivationSymmetric"]), "expected a dict"),
        (lambda: DynamicQuantConfig(extra_options={"DedicatedQDQPair": True}), "DedicatedQDQPair"),
        (lambda: StaticQuantConfig(execution_provider="GPUExecutionProvider"), "CUDAExecutionProvider"),
        (lambda: StaticQuantConfig(nodes_to_exclude=[3]), "name"),
        (lambda: SmoothQuantConfig(alpha=1.5), "alpha"),
        (lambda: SmoothQuantConfig(op_types=["Relu"]), "op_types"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_default_sets():
    defaults = [getattr(configs, name) for name in configs.__all__ if name.startswith("get_default_")]
    assert sorted(type(make()).__name__ for make in defaults) == sorted(kind.__name__ for kind in ALL)
    for make in (configs.get_woq_tuning_config, configs.get_integer_tuning_config):
        tried = configs.TuningConfig(config_set=make()).candidates()
        assert len({one.identity for one in tried}) == len(tried) > 3


def test_the_integer_set_has_every_way_to_choose_ranges_and_bias_correction_before_what_computes_in_float():
    tried = configs.get_integer_tuning_config()
    static = [config for config in tried if type(config) is configs.StaticQuantConfig]
    assert {config.calibrate_method for config in static} == set(CalibrationMethod)
    assert all(config.per_channel and config.option("BiasCorrection") is not False for config in static)
    assert tried[: len(static)] == static
    assert type(tried[-1]) is configs.DynamicQuantConfig


@pytest.mark.parametrize(
    ("config", "method"),
    [
        (RTNConfig(), Method("rtn")),
        (RTNConfig(mse=True, layer_wise_quant=True), Method("rtn", {"search": "mse", "layer_wise": True})),
        (GPTQConfig(), Method("gptq")),
        (GPTQConfig(mse=False, actorder=True), Method("gptq", {"search": None, "act_order": True})),
        (GPTQConfig(percdamp=0.1, correct_upstream=False), Method("gptq", {"percdamp": 0.1, "upstream": False})),
        (
            AWQConfig(enable_auto_scale=False, enable_mse_search=False),
            Method("awq", {"auto_scale": False, "auto_clip": False}),
        ),
        (HQQConfig(), Method("hqq")),
        (HQQConfig(integer_zero=False), Method("hqq", {"integer_zero": False})),
    ],
    ids=str,
)
def test_fields_are_options_of_the_method(config, method):
    assert config.method() == method
    assert config.needs_calibration == (method.name in ("gptq", "awq"))
