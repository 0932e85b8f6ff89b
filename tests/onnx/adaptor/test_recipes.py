"""Recipes of a plan as settings."""

import pytest

from neural_compressor.config.recipes import RECIPES
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.adaptor.recipes import APPLIED, Recipes


def test_every_recipe_applied_is_one_that_users_may_ask_for():
    assert set(APPLIED) <= set(RECIPES)


def test_nothing_asked_for_changes_nothing():
    assert Recipes.of({}, {}) == Recipes.of(RECIPES, {})
    assert Recipes.of({}, {}).smoothing is None


def test_what_a_provider_needs_is_done_in_any_case():
    found = Recipes.of({"add_qdq_pair_to_weight": False}, {"add_qdq_pair_to_weight": True, "quantize_bias": False})
    assert found.add_qdq_pair_to_weight
    assert not found.quantize_bias
    assert not found.dedicated_qdq_pair


def test_op_types_come_as_one_name_or_several():
    for asked in ("Conv", ["Conv"]):
        found = Recipes.of({"optypes_to_exclude_output_quant": asked}, {})
        assert found.optypes_to_exclude_output_quant == ("Conv",)


def test_smoothing_needs_to_be_asked_for():
    args = {"alpha": [0.5, 0.6], "folding": False}
    assert Recipes.of({"smooth_quant_args": args}, {}).smoothing is None
    one, other = (Recipes.of({"smooth_quant": True, "smooth_quant_args": a}, {}) for a in (args, {"alpha": 0.5}))
    assert one.smoothing == args
    assert len({one.smoothing_key, other.smoothing_key, Recipes().smoothing_key}) == 3


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({"rtn_args": {"mse": True}}, {"rtn": {"search": "mse"}}),
        ({"gptq_args": {"percdamp": 0.1, "actorder": True}}, {"gptq": {"percdamp": 0.1, "act_order": True}}),
        ({"gptq_args": {"act_order": True, "mse": False}}, {"gptq": {"act_order": True, "search": None}}),
        ({"gptq_args": {"correct_upstream": False}}, {"gptq": {"upstream": False}}),
        ({"awq_args": {"enable_mse_search": False}}, {"awq": {"auto_clip": False}}),
    ],
)
def test_arguments_of_weight_only_algorithms(asked, options):
    found = Recipes.of(asked, {}).algorithms
    assert {name: given for name, given in found.items() if given} == options


def test_an_argument_that_is_unknown_is_an_error():
    with pytest.raises(ConfigError, match=r"rtn_args has no 'percdamp'.*full_range.*mse, nsamples"):
        Recipes.of({"rtn_args": {"percdamp": 1}}, {})
    with pytest.raises(ConfigError, match=r"gptq_args: .*percdamp: got 7"):
        Recipes.of({"gptq_args": {"percdamp": 7}}, {})
