"""From the framework YAML to the configs of an op, and their view by op type."""

import pytest

from neural_compressor.adaptor import Adaptor, QueryBackendCapability, get_optype_wise_ability, op_configs
from neural_compressor.adaptor.capability import float_config, is_float_config
from neural_compressor.adaptor.tensor_options import read_op_config
from neural_compressor.errors import ConfigError

YAML = """
fp32: ['*']
fp16: [Linear]
bf16: [Linear, Add]
int4:
  weight_only: {Linear: {weight: {dtype: int4}}}
  static: {Linear: {weight: {dtype: int4}, activation: {dtype: uint4}}}
int8:
  static:
    Linear: {weight: {dtype: int8}, activation: {dtype: [uint8, int8]}}
    Add: {activation: {dtype: uint8}}
    '*': {weight: {dtype: int8}, activation: {dtype: int16}}
  dynamic:
    Linear: {weight: {dtype: int8}, activation: {dtype: uint8}}
"""


@pytest.fixture
def query(write_yaml):
    return QueryBackendCapability(write_yaml(YAML), "1.0")


def kinds(configs):
    """Weight type, activation type and mode of each config."""
    fields = (("weight", "dtype"), ("activation", "dtype"), ("activation", "quant_mode"))
    values = [[config.get(tensor, {}).get(field) for tensor, field in fields] for config in configs]
    return [tuple(v[0] if isinstance(v, list) else v for v in row) for row in values]


def test_int8_comes_first_then_the_order_of_the_yaml_then_floats(query):
    assert kinds(op_configs(query, "Linear")) == [
        ("int8", "uint8", "static"),
        ("int8", "uint8", "dynamic"),
        ("int4", "fp32", "weight_only"),
        ("int4", "uint4", "static"),
        ("bf16", "bf16", None),
        ("fp16", "fp16", None),
        ("fp32", "fp32", None),
    ]


def test_op_without_weight_has_no_weight_in_any_config(query):
    assert kinds(op_configs(query, "Add")) == [
        (None, "uint8", "static"),
        (None, "bf16", None),
        (None, "fp32", None),
    ]
    assert kinds(op_configs(query, "Linear", has_weight=False)) == [
        (None, "uint8", "static"),
        (None, "uint8", "dynamic"),
        (None, "uint4", "static"),
        (None, "bf16", None),
        (None, "fp16", None),
        (None, "fp32", None),
    ]


def test_wildcard_block_serves_op_types_without_one(query):
    assert kinds(op_configs(query, "Softmax")) == [("int8", "int16", "static"), ("fp32", "fp32", None)]


def test_fp32_stands_beside_every_op_even_if_the_yaml_is_silent(write_yaml):
    query = QueryBackendCapability(write_yaml("bf16: [Linear]"), "1.0")
    assert kinds(op_configs(query, "Other")) == [("fp32", "fp32", None)]


def test_options_of_two_ops_are_not_shared(query):
    op_configs(query, "Linear")[0]["weight"]["dtype"].clear()
    assert op_configs(query, "Linear")[0]["weight"]["dtype"] == ["int8"]


def test_float_and_quantized_configs_are_told_apart(query):
    assert [is_float_config(c) for c in op_configs(query, "Linear")] == [False] * 4 + [True] * 3
    assert is_float_config({"activation": {"dtype": ["fp32", "bf16"]}})
    assert not is_float_config({"weight": {"dtype": "int8"}, "activation": {"dtype": "fp32"}})


def test_op_type_view_takes_the_first_quantized_config_of_the_type():
    int8 = {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "quant_mode": "static"}}
    details = {
        ("head", "Linear"): [float_config("fp32")],
        ("fc", "Linear"): [int8, float_config("bf16"), float_config("fp32")],
        ("norm", "LayerNorm"): [float_config("bf16"), float_config("fp32")],
    }
    expected = {"Linear": int8, "LayerNorm": float_config("bf16")}
    assert get_optype_wise_ability(details) == expected
    assert Adaptor.get_optype_wise_ability(None, details) == Adaptor.get_optye_wise_ability(None, details) == expected


@pytest.mark.parametrize(
    "part",
    [
        {"weight": {"dtype": "int8", "scheme": ["sym", "asym"], "pair_safe": True}},
        {"weight": {"dtype": ["int8", "int4"], "pair_safe": True}},
        {"weight": {"dtype": "int8", "granularity": "per_group", "group_size": 32, "pair_safe": True}},
        {"weight": {"dtype": "int8"}, "activation": {"dtype": "int8", "pair_safe": True}},
    ],
    ids=["asym", "int4", "groups", "activation"],
)
def test_pairs_are_safe_in_plain_int8_weights_alone(part):
    with pytest.raises(ConfigError, match=r"pair_safe is for weights of dtype int8, scheme sym"):
        read_op_config(part, "static", "here")
    assert read_op_config({"weight": {"dtype": "int8", "pair_safe": True}}, "static", "here")["weight"][
        "pair_safe"
    ] == [True]
