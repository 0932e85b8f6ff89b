"""Recipes of the 2.x API as passes over a model, and as options of the methods of a plan."""

import pytest

from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.config.recipes import RECIPES, with_recipes
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import Method, OpScheme, Pass, Plan, TensorScheme

USUAL = (Pass("optimize"), Pass("correct_biases"))


def passes(**recipes):
    return tuple(with_recipes(Plan(passes=USUAL), recipes).passes)


def test_nothing_asked_for_changes_nothing():
    assert passes() == passes(**RECIPES) == USUAL


def test_what_is_said_of_biases_goes_before_what_is_usual():
    assert passes(fast_bias_correction=True) == (Pass("optimize"), Pass("correct_biases", {"required": True}))
    assert passes(fast_bias_correction=False) == (Pass("optimize"),)
    assert passes(weight_correction=True) == (Pass("optimize"), Pass("correct_weights"), Pass("correct_biases"))


def test_op_types_come_as_one_name_or_several():
    for asked in ("Conv", ["Conv"]):
        assert passes(optypes_to_exclude_output_quant=asked)[-1] == Pass(
            "qdq_layout", {"optypes_to_exclude_output_quant": ["Conv"]}
        )
    assert passes(dedicated_qdq_pair=True, add_qdq_pair_to_weight=False)[-1].options == {"dedicated_qdq_pair": True}


def test_smoothing_needs_to_be_asked_for():
    args = {"alpha": [0.5, 0.6], "folding": False}
    assert passes(smooth_quant_args=args) == USUAL
    assert passes(smooth_quant=True, smooth_quant_args=args) == (Pass("optimize"), Pass("smooth", args), USUAL[1])
    earlier = {"alpha": "auto", "auto_alpha_args": {"alpha_min": 0.3, "enable_blockwise_loss": True}}
    assert passes(smooth_quant=True, smooth_quant_args=earlier)[1].options == {
        "alpha": "auto",
        "alpha_min": 0.3,
        "do_blockwise": True,
    }


def test_passes_come_in_the_order_that_configurations_have_them_in():
    assert [step.name for step in passes(equalization=True)] == ["optimize", "equalize", "correct_biases"]


def test_arguments_of_smoothing_alone_are_refused():
    with pytest.raises(ConfigError, match="smooth_quant_args has no effect without smooth_quant"):
        PostTrainingQuantConfig(recipes={"smooth_quant_args": {"alpha": 0.5}})
    PostTrainingQuantConfig(recipes={"smooth_quant": False, "smooth_quant_args": {"alpha": 0.5}})


@pytest.mark.parametrize(
    "name", ["smooth_quant", "equalization", "fast_bias_correction", "range_search", "weight_correction"]
)
def test_a_switch_is_true_or_false(name):
    PostTrainingQuantConfig(recipes={name: [True, False, None]})
    with pytest.raises(ConfigError, match=f"recipe {name} is True or False, not 'no'"):
        PostTrainingQuantConfig(recipes={name: "no"})
    with pytest.raises(ConfigError, match=f"recipe {name} is True or False, not 2"):
        passes(**{name: 2})


def test_a_level_is_one_of_the_same_pass():
    assert passes(graph_optimization_level="ENABLE_ALL")[0] == Pass("optimize", {"level": "ENABLE_ALL"})


@pytest.mark.parametrize(
    ("asked", "name", "options"),
    [
        ({"rtn_args": {"mse": True}}, "rtn", {"search": "mse"}),
        ({"gptq_args": {"percdamp": 0.1, "actorder": True}}, "gptq", {"percdamp": 0.1, "act_order": True}),
        ({"gptq_args": {"act_order": True, "mse": False}}, "gptq", {"act_order": True, "search": None}),
        ({"gptq_args": {"blocksize": 64, "perchannel": True}}, "gptq", {"block_size": 64}),
        ({"autoround_args": {"n_blocks": 2}}, "autoround", {"nblocks": 2}),
        ({"gptq_args": {"correct_upstream": False}}, "gptq", {"upstream": False}),
        ({"awq_args": {"enable_mse_search": False}}, "awq", {"auto_clip": False}),
        (
            {"rtn_args": {"enable_mse_search": True, "enable_full_range": False}},
            "rtn",
            {"search": "mse", "full_range": False},
        ),
        ({"rtn_args": {"enable_full_range": True}}, "rtn", {}),
        ({"gptq_args": {"use_max_length": False, "pad_max_length": 64}}, "gptq", {"seqlen": 64}),
        ({"rtn_args": {"sym_full_range": True, "mse_range": True}}, "rtn", {"search": "mse"}),
        ({"rtn_args": {"return_int": True, "group_dim": 1}}, "rtn", {}),
        (
            {"autoround_args": {"use_quant_input": False, "scale_dtype": "fp32"}},
            "autoround",
            {"quantized_input": False},
        ),
        ({"gptq_args": {"pad_max_length": 64, "use_max_length": None}}, "gptq", {"seqlen": 64}),
        (
            {"autoround_args": {"n_samples": 4, "seq_len": 8, "not_use_best_mse": True, "enable_quanted_input": False}},
            "autoround",
            {"nsamples": 4, "seqlen": 8, "keep_best": False, "quantized_input": False},
        ),
        ({"layer_wise_quant": True}, "awq", {"layer_wise": True}),
    ],
)
def test_arguments_of_algorithms_are_options_of_their_methods(asked, name, options):
    weight = TensorScheme(dtype("int4"))
    ops = {(each, "MatMul"): OpScheme(weight, mode="weight_only", method=Method(each)) for each in ("rtn", name, "hqq")}
    found = with_recipes(Plan(ops), asked)
    assert not set(found["hqq", "MatMul"].method.options) - {"layer_wise"}
    assert found[name, "MatMul"].method == Method(name, options)


def test_what_a_plan_says_of_a_method_stays():
    weight, key = TensorScheme(dtype("int4")), ("op", "MatMul")
    plan = Plan({key: OpScheme(weight, mode="weight_only", method=Method("gptq", {"percdamp": 0.5, "search": None}))})
    assert with_recipes(plan, {"gptq_args": {"percdamp": 0.1}})[key].method.options == {"percdamp": 0.5, "search": None}


def test_an_argument_that_is_unknown_is_an_error():
    with pytest.raises(
        ConfigError, match=r"rtn_args has no 'percdamp'.*full_range.*mse, mse_range, n_samples, nsamples"
    ):
        with_recipes(Plan(), {"rtn_args": {"percdamp": 1}})
    with pytest.raises(ConfigError, match=r"gptq_args: .*percdamp: got 7"):
        with_recipes(Plan(), {"gptq_args": {"percdamp": 7}})
    with pytest.raises(ConfigError, match=r"gptq_args: use_max_length: got True, expected False"):
        with_recipes(Plan(), {"gptq_args": {"use_max_length": True}})
    with pytest.raises(ConfigError, match=r"rtn_args: group_dim: got 0, expected 1: groups run along the inputs"):
        with_recipes(Plan(), {"rtn_args": {"group_dim": 0}})
    with pytest.raises(ConfigError, match=r"gptq_args: n_samples and nsamples say the same"):
        with_recipes(Plan(), {"gptq_args": {"n_samples": 4, "nsamples": 8}})


def test_products_are_written_with_one_accuracy_level():
    plan = Plan(passes=(Pass("weight_layout", {"quant_format": "QOperator"}),))
    (found,) = with_recipes(plan, {"rtn_args": {"accuracy_level": 1}, "gptq_args": {"accuracy_level": 1}}).passes
    assert found.options == {"quant_format": "QOperator", "accuracy_level": 1}
    with pytest.raises(ConfigError, match="one for all weights of a model, and recipes say rtn_args 1, gptq_args 4"):
        with_recipes(plan, {"rtn_args": {"accuracy_level": 1}, "gptq_args": {"accuracy_level": 4}})


def test_arguments_that_were_not_given_are_none():
    assert PostTrainingQuantConfig().recipes["rtn_args"] == {}
