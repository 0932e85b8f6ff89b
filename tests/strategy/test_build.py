"""From capability and configuration to the tuning space."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from neural_compressor.config import PostTrainingQuantConfig, QuantizationAwareTrainingConfig
from neural_compressor.errors import CapabilityError, ConfigError
from neural_compressor.strategy import build_space, unapplied_recipes

INT8 = {
    "weight": {"dtype": ["int8"], "granularity": ["per_channel", "per_tensor"]},
    "activation": {"dtype": ["uint8"], "scheme": ["asym"], "algorithm": ["minmax", "kl"], "quant_mode": "static"},
}
ADD = {"activation": INT8["activation"]}
FP32 = {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}


def capability(**extra: Any) -> dict[str, Any]:
    opwise = {
        ("conv1", "Conv2d"): [INT8, FP32],
        ("conv10", "Conv2d"): [INT8, FP32],
        ("add", "Add"): [ADD, {"activation": {"dtype": "fp32"}}],
        ("fc", "Linear"): [INT8, FP32],
    }
    return {"opwise": opwise, "optypewise": {"Conv2d": INT8, "Add": ADD, "Linear": INT8}, **extra}


def build(cap: dict[str, Any] | None = None, **fields: Any) -> Any:
    return build_space(capability() if cap is None else cap, PostTrainingQuantConfig(**fields))


def test_the_space_holds_every_op_in_the_order_of_the_model() -> None:
    space = build(calibration_sampling_size=[10, 100])
    assert list(space.ops) == list(capability()["opwise"])
    assert len(space.ops["conv1", "Conv2d"].quantized) == 4
    assert space.calibration_sizes == (10, 100)
    assert space.default_plan()["add", "Add"].weight is None


def test_ops_that_are_alike_share_their_space_and_a_rule_sets_one_apart() -> None:
    space = build(op_name_dict={"conv1": {"weight": {"dtype": "fp32"}}})
    assert space.ops["conv10", "Conv2d"] is space.ops["fc", "Linear"]
    assert space.ops["conv1", "Conv2d"].reason == "op_name_dict rule 'conv1'"
    assert space.ops["conv10", "Conv2d"].quantized
    assert space.default_plan()["conv1", "Conv2d"].precision == "fp32"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (
            {"op_type_dict": {"Conv3d": {"weight": {"dtype": "int8"}}}},
            ["op_type_dict rule 'Conv3d'", "'Conv2d'", "type"],
        ),
        ({"op_name_dict": {"conv": {"weight": {"dtype": "int8"}}}}, ["op_name_dict rule 'conv'", "'conv1'", "whole"]),
        (
            {"op_name_dict": {"conv[": {"weight": {"dtype": "int8"}}}},
            ["'conv['", "as a regular expression this one is not valid"],
        ),
    ],
)
def test_a_rule_that_matches_nothing_is_an_error_with_close_matches(rules: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build(**rules)
    for words in said:
        assert words in str(error.value)


def test_a_large_model_does_not_flood_the_error() -> None:
    cap = {"opwise": {(f"encoder.layer.{i}.query", "Linear"): [INT8, FP32] for i in range(500)}}
    with pytest.raises(ConfigError) as error:
        build(cap, op_name_dict={"encoder.layer.7.qury": {"weight": {"dtype": "int8"}}})
    assert "encoder.layer.7.query" in str(error.value)
    assert len(str(error.value)) < 400


def test_a_rule_may_name_an_op_that_is_skipped_anyway() -> None:
    cap = capability(skipped={("norm", "LayerNorm"): "no quantized kernel"})
    assert ("norm", "LayerNorm") not in build(cap, op_name_dict={"norm": {"weight": {"dtype": "fp32"}}}).ops


def test_a_weight_rule_for_ops_without_weights_is_an_error() -> None:
    with pytest.raises(CapabilityError, match=r"op_type_dict rule 'Add'.*weight"):
        build(op_type_dict={"Add": {"weight": {"dtype": "int8"}}})


def test_a_value_outside_the_capability_is_an_error() -> None:
    with pytest.raises(CapabilityError, match=r"'Linear'.*'int4'.*'int8'"):
        build(op_type_dict={"Linear": {"weight": {"dtype": "int4"}}})


def test_a_model_with_nothing_to_quantize_says_what_it_has_and_what_could_be() -> None:
    cap = {
        "opwise": {("norm", "LayerNorm"): [FP32]},
        "skipped": {("head", "Linear"): "NaN in weight"},
        "quantizable_types": ["Conv2d", "Linear"],
    }
    with pytest.raises(ConfigError) as error:
        build(cap)
    for words in ("1 LayerNorm", "1 Linear (NaN in weight)", "Conv2d, Linear", "'static'"):
        assert words in str(error.value)
    with pytest.raises(ConfigError, match="no ops"):
        build({"opwise": {}})


def test_an_approach_the_model_has_nothing_for_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no capability for approach 'dynamic'"):
        build(approach="dynamic")


def test_blocks_keep_only_ops_of_the_space() -> None:
    blocks = [[("conv1", "Conv2d"), ("norm", "LayerNorm")], [("norm", "LayerNorm")]]
    assert build(capability(blocks=blocks)).blocks == ((("conv1", "Conv2d"),),)


def test_recipes_are_applied_or_listed_as_not_applied() -> None:
    recipes = {"smooth_quant": True, "fast_bias_correction": [True, False], "weight_correction": False}
    conf = PostTrainingQuantConfig(recipes=recipes)
    assert unapplied_recipes(capability(), conf) == ("smooth_quant", "fast_bias_correction")
    assert unapplied_recipes(capability(), PostTrainingQuantConfig(recipes={"fast_bias_correction": False})) == ()
    knows_one = capability(recipes=["fast_bias_correction"])
    assert unapplied_recipes(knows_one, conf) == ("smooth_quant",)
    space = build_space(knows_one, conf)
    assert space.recipes == {"fast_bias_correction": (True, False)}
    assert [str(step) for step in space.default_plan().passes] == ["correct_biases(required=True)"]
    assert build_space(capability(), conf).recipes == {}


def test_training_takes_static_options() -> None:
    space = build_space(capability(), QuantizationAwareTrainingConfig(reduce_range=True))
    option = space.ops["fc", "Linear"].default
    assert (option.mode, option.weight.reduce_range) == ("static", True)


DYNAMIC = {
    "weight": {"dtype": ["int8"]},
    "activation": {"dtype": ["uint8"], "scheme": ["asym"], "quant_mode": "dynamic"},
}


def test_what_is_slower_quantized_stays_in_float_unless_a_rule_speaks_of_it() -> None:
    cap = capability(in_float_unless_named={"dynamic": {"Conv2d": "too slow"}})
    cap["opwise"] = {key: [INT8, DYNAMIC, FP32] for key in cap["opwise"] if key[1] != "Add"}
    space = build(cap, approach="dynamic")
    assert space.ops["conv1", "Conv2d"].quantized == ()
    assert space.ops["conv1", "Conv2d"].reason.startswith("too slow; a rule")
    assert space.ops["fc", "Linear"].quantized
    assert space.ops["fc", "Linear"].reason == ""
    static = build(cap, approach="auto").ops["conv1", "Conv2d"]
    assert {scheme.mode for scheme in static.quantized} == {"static"}
    assert static.reason == ""
    for rules in (
        {"op_type_dict": {"Conv2d": {"activation": {"scheme": "asym"}}}},
        {"op_name_dict": {"conv1": {"weight": {"dtype": "int8"}}}},
    ):
        named = build(cap, approach="dynamic", **rules).ops["conv1", "Conv2d"]
        assert {scheme.mode for scheme in named.quantized} == {"dynamic"}
    cap["opwise"] = {key: configs for key, configs in cap["opwise"].items() if key[1] == "Conv2d"}
    with pytest.raises(ConfigError, match="too slow; a rule"):
        build(cap, approach="dynamic")


def test_what_is_slower_quantized_may_have_its_weight_so(caplog: pytest.LogCaptureFixture) -> None:
    cap = capability(in_float_unless_named={"dynamic": {"Conv2d": "too slow"}})
    activation = {**DYNAMIC["activation"], "dtype": ["uint8", "fp32"]}
    cap["opwise"] = {key: [{**DYNAMIC, "activation": activation}, FP32] for key in cap["opwise"] if key[1] == "Conv2d"}
    with caplog.at_level(logging.INFO, "neural_compressor"):
        op = build(cap, approach="dynamic").ops["conv1", "Conv2d"]
    assert [(scheme.precision, scheme.activation, scheme.mode) for scheme in op.quantized] == [
        ("int8", None, "dynamic")
    ]
    assert op.reason == ""
    assert "with weights in int8 compute in float 2 Conv2d (too slow)" in caplog.text
    named = build(cap, approach="dynamic", op_type_dict={"Conv2d": {"weight": {"dtype": "int8"}}}).ops[
        "conv1", "Conv2d"
    ]
    assert named.default.activation is not None
    asked = {"Conv2d": {"weight": {"dtype": "int8"}, "activation": {"dtype": "fp32"}}}
    assert build(cap, approach="dynamic", op_type_dict=asked).ops["conv1", "Conv2d"].quantized == op.quantized


def test_ops_outside_of_the_products_stay_in_float_where_a_recipe_says_so() -> None:
    cap = capability()
    cap["opwise"] = {("early", "Add"): cap["opwise"]["add", "Add"], **cap["opwise"]}
    space = build(cap, recipes={"pre_post_process_quantization": False})
    assert {key[0]: op.reason for key, op in space.ops.items() if op.reason} == {
        "early": "recipe pre_post_process_quantization=False"
    }
    with pytest.raises(ConfigError, match="pre_post_process_quantization is True or False"):
        build(recipes={"pre_post_process_quantization": [True, False]})


def test_a_recipe_that_keeps_nothing_in_float_is_refused() -> None:
    cap = capability()
    convolutions = {key: configs for key, configs in cap["opwise"].items() if key[1] == "Conv2d"}
    with pytest.raises(ConfigError, match="pre_post_process_quantization=False has no effect"):
        build({**cap, "opwise": convolutions}, recipes={"pre_post_process_quantization": False})
    others = {key: configs for key, configs in cap["opwise"].items() if key[1] == "Add"}
    with pytest.raises(ConfigError, match="first_conv_or_matmul_quantization=False has no effect"):
        build({**cap, "opwise": others}, recipes={"first_conv_or_matmul_quantization": False})
    assert build({**cap, "opwise": convolutions}, recipes={"pre_post_process_quantization": True}).ops


def test_a_recipe_about_another_approach_is_not_applied() -> None:
    cap = capability(recipes={"smooth_quant": ("static",), "layer_wise_quant": ("weight_only",)})

    def unapplied(approach: str) -> tuple[str, ...]:
        asked = {"smooth_quant": True, "layer_wise_quant": True}
        return unapplied_recipes(cap, PostTrainingQuantConfig(approach=approach, recipes=asked))

    assert unapplied("static") == unapplied("auto") == ("layer_wise_quant",)
    assert unapplied("dynamic") == ("smooth_quant", "layer_wise_quant")
    assert unapplied("weight_only") == ("smooth_quant",)


def test_options_of_a_method_that_finds_no_weight_are_an_error() -> None:
    weight = {"dtype": ["int4"], "granularity": ["per_group"], "group_size": [32], "algorithm": ["rtn", "gptq"]}
    configs = [{"weight": weight, "activation": {"dtype": ["fp32"], "quant_mode": "weight_only"}}]
    capability = {"opwise": {("fc", "Linear"): configs}}
    rule, recipes = {"Linear": {"weight": {"algorithm": "rtn"}}}, {"gptq_args": {"act_order": True}}
    with pytest.raises(ConfigError, match="recipe gptq_args has no effect: weights are found by rtn"):
        build_space(capability, PostTrainingQuantConfig(approach="weight_only", op_type_dict=rule, recipes=recipes))
    space = build_space(capability, PostTrainingQuantConfig(approach="weight_only", recipes=recipes))
    assert space.recipes == {"gptq_args": ({"act_order": True},)}
