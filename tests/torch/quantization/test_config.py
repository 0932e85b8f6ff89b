"""The configurations of PyTorch quantization: what their parameters are, admit and mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.config.composition import Composition
from neural_compressor.dtypes import BlockType, CodebookType, FloatType, IntType, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_CHANNEL, Method, PerGroup, TensorScheme
from neural_compressor.torch import quantization
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    AWQConfig,
    ComposedConfig,
    DynamicQuantConfig,
    FP8Config,
    GPTQConfig,
    HQQConfig,
    MixedPrecisionConfig,
    MXQuantConfig,
    RTNConfig,
    StaticQuantConfig,
    TEQConfig,
    TuningConfig,
    get_default_double_quant_config,
    get_woq_tuning_config,
)
from neural_compressor.torch.quantization.config.weight_only import TORCH_OPTIONS

ROUNDING = {
    "dtype": "int",
    "bits": 4,
    "use_sym": True,
    "group_size": 32,
    "group_dim": 1,
    "use_full_range": True,  # documented as False; the whole range is more precise and costs nothing
    "use_mse_search": False,
    "use_layer_wise": True,
    "model_path": "",
    "use_double_quant": False,
    "double_quant_dtype": "int",
    "double_quant_bits": 8,
    "double_quant_use_sym": False,
    "double_quant_group_size": 256,
    "quant_lm_head": False,
}
AWQ_BASE = {**ROUNDING, "use_layer_wise": False, "double_quant_use_sym": True}
INT8 = {
    "w_dtype": "int8",
    "w_sym": True,
    "w_granularity": "per_channel",
    "w_algo": "minmax",
    "act_dtype": "uint8",
    "act_sym": False,
    "act_granularity": "per_tensor",
    "act_algo": "minmax",
}
STATIC = {**INT8, "excluded_precisions": []}
DOCUMENTED: list[tuple[type, str, dict[str, Any]]] = [
    (RTNConfig, "rtn", ROUNDING),
    (
        GPTQConfig,
        "gptq",
        {
            **{name: value for name, value in ROUNDING.items() if name not in ("group_dim", "use_full_range")},
            **{"use_layer_wise": False, "use_block_wise": False, "act_order": False, "hybrid_order": False},
            **{"percdamp": 0.01, "block_size": 2048, "static_groups": False, "true_sequential": False},
        },
    ),
    (
        AWQConfig,
        "awq",
        {**AWQ_BASE, "use_auto_scale": True, "use_auto_clip": True, "folding": False, "absorb_layer_dict": {}},
    ),
    (TEQConfig, "teq", {**AWQ_BASE, "absorb_to_layer": {}, "folding": True}),
    (
        HQQConfig,
        "hqq",
        {
            **{"dtype": "int", "bits": 4, "group_size": 64, "quant_zero": True, "quant_scale": False},
            **{"scale_quant_group_size": 128, "quant_lm_head": False},
        },
    ),
    (
        AutoRoundConfig,
        "autoround",
        {
            **{"bits": 4, "group_size": 128, "use_sym": True, "dtype": "int", "act_bits": 16, "iters": 200},
            **{"nsamples": 128, "seqlen": 2048, "batch_size": 8, "lr": None, "minmax_lr": None, "seed": 42},
            **{"enable_minmax_tuning": True, "enable_quanted_input": True, "scheme": "W4A16", "quant_lm_head": False},
        },
    ),
    (
        MXQuantConfig,
        "mx_quant",
        {
            **{"w_dtype": "int8", "act_dtype": "int8", "out_dtype": "bfloat16", "blocksize": 32},
            **{"round_method": "nearest", "weight_only": False, "w_algo": "minmax"},
        },
    ),
    (DynamicQuantConfig, "dynamic_quant", {**INT8, "w_granularity": "per_tensor", "act_algo": "kl"}),
    (StaticQuantConfig, "static_quant", STATIC),
    (
        FP8Config,
        "fp8_quant",
        {
            **{"fp8_config": "E4M3", "mode": "AUTO", "hp_dtype": "bf16", "observer": "maxabs"},
            **{"scale_method": "maxabs_hw", "measure_exclude": "OUTPUT", "fake_quant": False, "use_qdq": False},
            **{"dynamic_quantization": False},
        },
    ),
    (MixedPrecisionConfig, "mixed_precision", {"dtype": "fp16"}),
]
CLASSES = [entry[0] for entry in DOCUMENTED]
WEIGHT_ONLY = [RTNConfig, GPTQConfig, AWQConfig, TEQConfig, HQQConfig, AutoRoundConfig]


@pytest.mark.parametrize(("cls", "name", "expected"), DOCUMENTED, ids=[entry[1] for entry in DOCUMENTED])
def test_parameters_and_defaults_are_the_documented_ones(cls: type, name: str, expected: dict[str, Any]) -> None:
    config = cls()
    plain = config.to_dict()
    assert cls.name == name
    assert plain["config"] == f"torch.{name}"
    # What is left to the framework is not written, so that it stays so.
    assert {field: plain.get(field, getattr(config, field)) for field in expected} == expected
    assert cls(**expected) == cls()


def test_an_algorithm_that_is_not_named_stays_open() -> None:
    """Through copies, files, sums, rules and lists; one that is named does not, the default too."""
    unset, named = StaticQuantConfig(w_granularity="per_tensor"), StaticQuantConfig(act_algo="minmax")
    for config in (unset, named):
        assert config.act_algo == "minmax"
        again = StaticQuantConfig.from_dict(json.loads(config.to_json_string()))
        copies = [again, config.alone(), *config.expand(), StaticQuantConfig().set_local("fc", config).local[0].config]
        assert {copy.left_open for copy in copies} == {config.left_open}
    assert unset.left_open
    assert not named.left_open
    assert all(each.left_open for each in StaticQuantConfig(w_granularity=["per_tensor", "per_channel"]).expand())
    assert not any(each.left_open for each in StaticQuantConfig(act_algo=["minmax", "kl"]).expand())
    assert len(TuningConfig(config_set=[StaticQuantConfig(), named]).expand()) == 2
    unset.act_algo = "minmax"
    assert not unset.left_open


def test_each_algorithm_has_a_default_configuration() -> None:
    getters = {
        **{"rtn": RTNConfig, "gptq": GPTQConfig, "awq": AWQConfig, "teq": TEQConfig, "hqq": HQQConfig},
        **{"AutoRound": AutoRoundConfig, "autoround": AutoRoundConfig, "mx": MXQuantConfig, "fp8": FP8Config},
        **{"dynamic": DynamicQuantConfig, "static": StaticQuantConfig},
        "mixed_precision": MixedPrecisionConfig,
    }
    for name, cls in getters.items():
        assert getattr(quantization, f"get_default_{name}_config")() == cls()


def test_double_quantization_has_two_known_layouts() -> None:
    nf4, q4_k = get_default_double_quant_config(), get_default_double_quant_config("GGML_TYPE_Q4_K")
    assert nf4.double_quant_scheme() == TensorScheme(IntType(8), False, PerGroup(256))
    assert q4_k.double_quant_scheme() == TensorScheme(IntType(6), True, PerGroup(8))
    assert RTNConfig().double_quant_scheme() is None
    with pytest.raises(ConfigError, match="'BNB_NF4'"):
        get_default_double_quant_config("BNB")


@pytest.mark.parametrize(
    ("fields", "kind", "granularity"),
    [
        ({}, IntType(4), PerGroup(32)),
        ({"bits": 3, "group_size": -1}, IntType(3), PER_CHANNEL),
        ({"dtype": "int8", "group_size": 128}, IntType(8), PerGroup(128)),
        ({"dtype": "int2"}, IntType(2), PerGroup(32)),
        ({"dtype": "nf4"}, dtype("nf4"), PerGroup(32)),
        ({"dtype": "fp4"}, dtype("fp4_e2m1"), PerGroup(32)),
        ({"dtype": "fp4_e2m1_bnb"}, dtype("fp4_e2m1_bnb"), PerGroup(32)),
        ({"dtype": "fp8_e4m3"}, dtype("fp8_e4m3"), PerGroup(32)),
        ({"dtype": "fp8_e5m2", "group_size": -1}, dtype("fp8_e5m2"), PER_CHANNEL),
        ({"dtype": "mxfp4"}, dtype("mxfp4"), PerGroup(32)),
        ({"dtype": "nvfp4"}, dtype("nvfp4"), PerGroup(16)),
    ],
)
@pytest.mark.parametrize("cls", WEIGHT_ONLY)
def test_the_scheme_of_a_weight_is_what_the_parameters_say(
    cls: type, fields: dict, kind: Any, granularity: Any
) -> None:
    if cls is HQQConfig and not isinstance(kind, IntType):
        with pytest.raises(ConfigError, match=r"HQQConfig\.dtype.*integer"):
            cls(**fields)
        return
    default_size = cls().group_size
    if isinstance(granularity, PerGroup) and not isinstance(kind, BlockType) and "group_size" not in fields:
        granularity = PerGroup(default_size)
    config = cls(**fields)
    assert config.weight_scheme() == TensorScheme(kind, cls is not HQQConfig, granularity, cls.name)
    assert config.bits == kind.bits
    assert config.quantizes


@pytest.mark.parametrize("cls", WEIGHT_ONLY)
@pytest.mark.parametrize("name", ["fp32", "float32"])
def test_fp32_leaves_an_op_as_it_is(cls: type, name: str) -> None:
    config = cls(dtype=name)
    assert config.dtype == "fp32"
    assert not config.quantizes
    assert config.weight_scheme().is_float


@pytest.mark.parametrize("cls", WEIGHT_ONLY)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dtype": "banana"}, ["dtype", "unknown data type 'banana'", "nf4"]),
        ({"dtype": "int16"}, ["dtype", "int16", "1 to 8 bits"]),
        ({"dtype": "bf16"}, ["dtype", "bf16", "MixedPrecisionConfig"]),
        ({"dtype": "e8m0"}, ["dtype", "e8m0", "negative"]),
        ({"dtype": 4}, ["dtype", "got 4"]),
        ({"bits": 99}, ["bits", "99", "1 to 8 bits"]),
        ({"bits": 0}, ["bits", "got 0"]),
        ({"bits": True}, ["bits", "True"]),
        ({"bits": "4"}, ["bits", "'4'"]),
        ({"bits": [4, 9]}, ["bits", "9"]),
        ({"group_size": 0}, ["group_size", "got 0", "-1"]),
        ({"group_size": -2}, ["group_size", "-2"]),
        ({"group_size": 32.0}, ["group_size", "32.0"]),
        ({"quant_lm_head": 1}, ["quant_lm_head", "True or False"]),
        ({"groupsize": 32}, ["no field 'groupsize'", "'group_size'"]),
    ],
)
def test_nonsense_is_refused_by_every_weight_only_configuration(cls: type, fields: dict, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**fields)
    for words in (cls.__name__, *said):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("cls", "fields", "said"),
    [
        (RTNConfig, {"dtype": "nf4", "use_sym": False}, ["use_sym", "'nf4'"]),
        (RTNConfig, {"dtype": "mxfp4", "group_size": 128}, ["group_size", "'mxfp4'", "32"]),
        (RTNConfig, {"use_sym": False, "use_full_range": True}, ["use_full_range", "int4 asym"]),
        (RTNConfig, {"dtype": "mxfp4", "use_double_quant": True}, ["use_double_quant", "mxfp4"]),
        (RTNConfig, {"use_double_quant": True, "double_quant_dtype": "fp32"}, ["double_quant_dtype", "fp32"]),
        (RTNConfig, {"use_double_quant": True, "double_quant_dtype": "mxfp8"}, ["double_quant_dtype", "mxfp8"]),
        (RTNConfig, {"group_dim": 0}, ["group_dim", "got 0", "along the inputs"]),
        (RTNConfig, {"scale_search": "mze"}, ["scale_search", "'mse'"]),
        (RTNConfig, {"model_path": 3}, ["model_path", "path"]),
        (GPTQConfig, {"percdamp": -0.1}, ["percdamp", "-0.1"]),
        (GPTQConfig, {"percdamp": float("nan")}, ["percdamp"]),
        (GPTQConfig, {"block_size": 0}, ["block_size", "0"]),
        (GPTQConfig, {"group_dim": 1}, ["no field 'group_dim'"]),
        (GPTQConfig, {"act_order": True, "hybrid_order": True}, ["act_order", "hybrid_order"]),
        (AWQConfig, {"absorb_layer_dict": {"norm": [3]}}, ["absorb_layer_dict", "norm"]),
        (TEQConfig, {"absorb_to_layer": ["norm"]}, ["absorb_to_layer", "norm"]),
        (HQQConfig, {"use_sym": True}, ["no field 'use_sym'"]),
        (AutoRoundConfig, {"scheme": "W4"}, ["scheme", "'W4'", "W4A16"]),
        (AutoRoundConfig, {"scheme": "W2A16", "bits": 4}, ["bits", "'W2A16'", "bits=2"]),
        (AutoRoundConfig, {"act_bits": 12}, ["act_bits", "12"]),
        (AutoRoundConfig, {"lr": 0}, ["lr", "got 0"]),
        (AutoRoundConfig, {"iters": -1}, ["iters", "-1"]),
        (MXQuantConfig, {"w_dtype": "int3"}, ["w_dtype", "int3", "int2"]),
        (MXQuantConfig, {"round_method": "up"}, ["round_method", "nearest"]),
        (MXQuantConfig, {"blocksize": 0}, ["blocksize"]),
        (DynamicQuantConfig, {"act_algo": "klx"}, ["act_algo", "'kl'"]),
        (DynamicQuantConfig, {"w_granularity": "per_row"}, ["w_granularity", "per_row"]),
        (StaticQuantConfig, {"w_dtype": "int9000"}, ["w_dtype", "int9000"]),
        (StaticQuantConfig, {"act_dtype": "fp8_e4m3", "act_sym": False}, ["act_sym", "fp8_e4m3"]),
        (StaticQuantConfig, {"excluded_precisions": ["fp32"]}, ["fp32 cannot be excluded"]),
        (FP8Config, {"fp8_config": "E3M4"}, ["fp8_config", "E3M4", "E4M3"]),
        (FP8Config, {"mode": "NEVER"}, ["mode", "QUANTIZE"]),
        (FP8Config, {"scale_method": "maxabs"}, ["scale_method", "'maxabs_hw'"]),
        (FP8Config, {"blocklist": {"name": ["a"]}}, ["blocklist", "'names'"]),
        (FP8Config, {"fake_quant": True, "use_qdq": True}, ["fake_quant", "use_qdq"]),
        (MixedPrecisionConfig, {"dtype": "fp64"}, ["dtype", "fp64", "fp16"]),
    ],
)
def test_nonsense_is_refused(cls: type, fields: dict, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**fields)
    for words in (cls.__name__, *said):
        assert words in str(caught.value)


def test_a_registered_data_type_works_in_every_configuration() -> None:
    from neural_compressor.dtypes import register_dtype

    ternary = register_dtype(CodebookType("config_ternary", (-1.0, 0.0, 1.0)), replace=True)
    assert RTNConfig(dtype="config_ternary").weight_scheme().dtype is ternary
    assert isinstance(GPTQConfig(dtype="fp8").weight_scheme().dtype, FloatType)


def test_scales_are_searched_by_either_name() -> None:
    assert RTNConfig().range_search is None
    assert RTNConfig(use_mse_search=True).range_search == "mse"
    assert GPTQConfig(scale_search="importance").range_search == "importance"
    assert AWQConfig(use_mse_search=True).range_search == "mse"
    assert len(TuningConfig([RTNConfig(use_mse_search=True), RTNConfig(scale_search="mse")]).expand()) == 1


def test_who_needs_data_says_so() -> None:
    with_data = {cls.name for cls in CLASSES if cls().needs_calibration}
    assert with_data == {"gptq", "awq", "teq", "autoround", "static_quant", "fp8_quant"}
    assert RTNConfig(scale_search="importance").needs_calibration
    assert not FP8Config(dynamic_quantization=True).needs_calibration


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ("W4A16", {"bits": 4, "act_bits": 16, "group_size": 128, "dtype": "int"}),
        ("w2a16g64", {"bits": 2, "act_bits": 16, "group_size": 64, "dtype": "int"}),
        ("W8A8", {"bits": 8, "act_bits": 8, "group_size": 128, "dtype": "int"}),
        ("MXFP4", {"bits": 4, "act_bits": 4, "group_size": 32, "dtype": "mxfp4", "act_dtype": "mxfp4"}),
        ("MXFP8", {"bits": 8, "act_bits": 8, "group_size": 32, "dtype": "mxfp8_e4m3"}),
        ("NVFP4", {"bits": 4, "act_bits": 4, "group_size": 16, "dtype": "nvfp4"}),
    ],
)
def test_a_scheme_stands_for_parameters(scheme: str, expected: dict[str, Any]) -> None:
    config = AutoRoundConfig(scheme=scheme)
    assert {name: getattr(config, name) for name in expected} == expected
    assert (config.activation_scheme() is None) == (config.act_bits == 16)
    assert AutoRoundConfig.from_dict(config.to_dict()) == config


def test_a_scheme_follows_the_parameters() -> None:
    assert AutoRoundConfig(bits=3).scheme == "W3A16"
    assert [c.scheme for c in AutoRoundConfig(bits=[2, 4]).expand()] == ["W2A16", "W4A16"]
    assert [c.bits for c in AutoRoundConfig(scheme=["W2A16", "W4A16"]).expand()] == [2, 4]
    again = AutoRoundConfig.from_dict(AutoRoundConfig(bits=[2, 4]).to_dict())
    assert [c.scheme for c in again.expand()] == ["W2A16", "W4A16"]
    assert AutoRoundConfig(act_dtype="fp8_e4m3").act_bits == 8


def test_int8_configurations_say_how_an_op_computes() -> None:
    assert DynamicQuantConfig().op_scheme().to_dict() == {
        "weight": {"dtype": "int8", "scheme": "sym", "granularity": "per_tensor", "algorithm": "minmax"},
        "activation": {
            **{"dtype": "uint8", "scheme": "asym", "granularity": "per_tensor", "algorithm": "kl"},
            "quant_mode": "dynamic",
        },
    }
    static = StaticQuantConfig().op_scheme()
    assert (static.mode, static.weight.granularity) == ("static", PER_CHANNEL)
    assert StaticQuantConfig(act_dtype="fp8_e4m3").act_sym, "only integers have a zero point"
    assert not StaticQuantConfig(w_dtype="fp32", act_dtype="fp32").quantizes


def test_fp8_lists_take_classes_by_their_names() -> None:
    config = FP8Config(blocklist={"types": [nn.Linear], "names": "head"}, fp8_config="e5m2")
    assert config.blocklist == {"names": ["head"], "types": ["Linear"]}
    assert config.dtype == dtype("fp8_e5m2")


# rules on modules


def ops_of(model: nn.Module) -> dict[str, type]:
    return {name: type(module) for name, module in model.named_modules() if not list(module.children())}


def test_rules_reach_the_modules_they_name_and_no_other() -> None:
    model = nn.ModuleDict({f"fc{i}": nn.Linear(4, 4) for i in (1, 2, 10)} | {"conv": nn.Conv1d(4, 4, 1)})
    config = RTNConfig(bits=8).set_local("fc1", RTNConfig(dtype="fp32")).set_local("Conv1d", RTNConfig(bits=2))
    resolved = config.resolve(ops_of(model))
    assert {name: each.dtype for name, each in resolved.items()} == {
        **{"fc1": "fp32", "fc2": "int", "fc10": "int", "conv": "int"}
    }
    assert [resolved[name].bits for name in ("fc2", "fc10", "conv")] == [8, 8, 2]
    by_class = RTNConfig().set_local(nn.Conv1d, RTNConfig(bits=2)).resolve(ops_of(model))
    assert [each.bits for each in by_class.values()] == [4, 4, 4, 2]


def test_rtn_and_hqq_add_up_to_something() -> None:
    ops = {"a": nn.Linear, "b": nn.Linear}
    assert [type(each) for each in (RTNConfig() + HQQConfig()).resolve(ops).values()] == [RTNConfig, RTNConfig]
    both = RTNConfig(white_list=["a"]) + HQQConfig(white_list=["b"])
    assert [type(each) for each in both.resolve(ops).values()] == [RTNConfig, HQQConfig]


def test_a_sum_read_back_has_all_its_parts(tmp_path) -> None:
    both = RTNConfig(bits=8, white_list=[nn.Linear]) + HQQConfig(white_list=["head"]) + GPTQConfig(white_list=[])
    both.to_json_file(tmp_path / "qconfig.json")
    again = ComposedConfig.from_json_file(tmp_path / "qconfig.json")
    assert [type(part) for part in again.parts] == [RTNConfig, HQQConfig, GPTQConfig]
    assert again == both


# search spaces


def test_the_documented_space_is_tried_in_order() -> None:
    tune_config = TuningConfig(
        config_set=RTNConfig(use_sym=[False, True], group_size=[32, 128]),
        tolerable_loss=0.2,
        max_trials=10,
    )
    tried = [(c.use_sym, c.group_size) for c in tune_config.candidates()]
    assert tried == [(False, 32), (False, 128), (True, 32), (True, 128)]
    assert (tune_config.tolerable_loss, tune_config.max_trials) == (0.2, 10)


def test_a_space_of_data_types_holds_what_makes_sense_once() -> None:
    space = RTNConfig(dtype=["int", "int8", "nf4"], bits=[4, 8], use_sym=[False, True]).expand()
    found = [(c.weight_scheme().dtype.name, c.use_sym) for c in space]
    expected = [("int4", False), ("int4", True), ("int8", False), ("int8", True), ("nf4", True)]
    assert sorted(found) == sorted(expected)


def test_the_weight_only_set_goes_from_cheap_to_dear() -> None:
    configs = get_woq_tuning_config()
    data = [config.needs_calibration for config in configs]
    assert data == sorted(data)
    assert configs[-1].name == "autoround"
    assert TuningConfig(config_set=configs).expand() == configs


# round trips of all parameters of all classes

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "dtype": st.sampled_from(["int", "int3", "int8"]),
    "bits": st.integers(1, 8),
    "use_sym": st.booleans(),
    "group_size": st.sampled_from([-1, 16, 32, 100]),
    "double_quant_bits": st.integers(1, 8),
    "use_double_quant": st.booleans(),
    "scale_search": st.sampled_from(["none", "mse", "importance"]),
    "percdamp": st.floats(0, 1),
    "act_order": st.booleans(),
    "act_bits": st.sampled_from([8, 16, 32]),
    "lr": st.none() | st.floats(1e-6, 1),
    "alpha": st.just("auto") | st.floats(0, 1),
    "w_dtype": st.sampled_from(["int8", "int4", "int2"]),
    "act_algo": st.sampled_from(["minmax", "kl", "percentile"]),
    "fp8_config": st.sampled_from(["E4M3", "E5M2"]),
}


@st.composite
def any_config(draw: st.DrawFn) -> Composition:
    cls = draw(st.sampled_from(CLASSES[:-1]))
    fields = {}
    for name in sorted(VALUES.keys() & cls.model_fields.keys()):
        if draw(st.booleans()):
            fields[name] = draw(VALUES[name] | st.lists(VALUES[name], min_size=1, max_size=2))
    if fields.get("dtype", "int") != "int":
        fields.pop("bits", None)
    config = cls(**fields, white_list=draw(st.sampled_from([None, [], ["fc.*", nn.Linear]])))
    if draw(st.booleans()):
        config.set_local([nn.Conv1d, "head"], draw(st.sampled_from(WEIGHT_ONLY))(dtype="fp32"))
    return config


@settings(max_examples=150)
@given(st.lists(any_config(), min_size=1, max_size=3))
def test_every_configuration_and_every_sum_survives_json(configs: list[Composition]) -> None:
    total = configs[0]
    for config in configs[1:]:
        total = total + config
    again = Composition.from_dict(json.loads(total.to_json_string()))
    assert again == total
    assert [c.identity for c in again.expand()] == [c.identity for c in total.expand()]


@pytest.mark.parametrize("cls", [RTNConfig, GPTQConfig, AWQConfig, TEQConfig, AutoRoundConfig])
def test_the_whole_range_is_used_where_there_is_one(cls: type) -> None:
    assert cls().use_full_range
    assert cls(bits=8).use_full_range
    assert not cls(use_sym=False).use_full_range
    assert not cls(dtype="nf4").use_full_range
    assert not cls.from_dict(cls(use_full_range=False).to_dict()).use_full_range


METHODS: list[tuple[Any, Method]] = [
    (RTNConfig(), Method("rtn")),
    (RTNConfig(use_mse_search=True), Method("rtn", {"search": "mse"})),
    (RTNConfig(scale_search="importance"), Method("rtn", {"search": "mse", "importance": True})),
    (RTNConfig(use_full_range=False), Method("rtn", {"full_range": False})),
    (RTNConfig(dtype="nf4", hadamard=True), Method("rtn", {"hadamard": True})),
    (GPTQConfig(use_sym=False, block_size=64), Method("gptq", {"block_size": 64})),
    (GPTQConfig(scale_search="none", amp=True), Method("gptq", {"search": None, "amp": True})),
    (
        GPTQConfig(act_order=True, percdamp=0.1, correct_upstream=False, true_sequential=True),
        Method("gptq", {"act_order": True, "percdamp": 0.1, "upstream": False, "true_sequential": True}),
    ),
    (AWQConfig(use_auto_scale=False, use_auto_clip=False), Method("awq", {"auto_scale": False, "auto_clip": False})),
    (AWQConfig(use_auto_clip=False, use_mse_search=True), Method("awq")),
    (
        AWQConfig(folding=True, absorb_layer_dict={"norm": "fc"}),
        Method("awq", {"folding": True, "absorb": {"norm": ["fc"]}}),
    ),
    (TEQConfig(use_mse_search=True), Method("teq", {"clip": True, "folding": True})),
    (TEQConfig(folding=False, absorb_to_layer={"norm": ["fc"]}), Method("teq", {"absorb": {"norm": ["fc"]}})),
    (HQQConfig(), Method("hqq")),
    (
        AutoRoundConfig(iters=100, batch_size=2, lr=0.1, enable_quanted_input=False, use_sym=False),
        Method("autoround", {"lr": 0.1, "nsamples": 128, "seqlen": 2048, "quantized_input": False}),
    ),
]


@pytest.mark.parametrize(("config", "method"), METHODS, ids=[str(method) for _, method in METHODS])
def test_fields_are_options_of_the_method(config: Any, method: Method) -> None:
    assert config.method() == method


def test_every_name_of_the_table_is_a_field_that_stands_for_an_option() -> None:
    named = {option for name in ALGORITHMS.names() for option in ALGORITHMS[name].options_model.model_fields}
    classes = (RTNConfig, GPTQConfig, AWQConfig, TEQConfig, HQQConfig, AutoRoundConfig)
    fields = {field for each in classes for field in each.model_fields} | {"range_search"}
    assert set(TORCH_OPTIONS) <= fields
    assert {option for option in TORCH_OPTIONS.values() if isinstance(option, str)} <= named


def test_a_space_has_no_one_method_and_needs_data_where_one_of_it_does() -> None:
    space = RTNConfig(scale_search=["none", "importance"])
    assert space.needs_calibration
    with pytest.raises(ConfigError, match="spans a space"):
        space.method()
