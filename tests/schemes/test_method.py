"""Methods and passes are plain data: they compare, hash, print and travel through JSON."""

import json

import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import Method, OpScheme, Pass, PerGroup, Plan, TensorScheme

INT4 = TensorScheme(dtype("int4"), granularity=PerGroup(32))


def test_equal_however_it_is_written():
    one, other = Method("gptq", {"a": (1, 2), "b": None}), Method("gptq", {"b": None, "a": [1, 2]})
    assert one == other
    assert hash(one) == hash(other)
    assert one != Method("gptq", {"a": [1, 3], "b": None})
    assert Pass("smooth") != Method("smooth")


@pytest.mark.parametrize("options", [{"a": object()}, {"a": {1, 2}}, {"f": print}], ids=["object", "set", "function"])
def test_options_are_plain_data(options):
    with pytest.raises(ConfigError, match="plain data"):
        Method("gptq", options)


@pytest.mark.parametrize("data", [3, {"options": {}}, {"name": "gptq", "option": {}}, {"name": ""}, {"name": 5}])
def test_a_malformed_one_is_refused(data):
    with pytest.raises(ConfigError):
        Method.from_dict(data)


def test_a_weight_only_scheme_always_has_a_method():
    assert OpScheme(weight=INT4, mode="weight_only").method == Method("rtn")
    named = OpScheme.from_dict({"weight": {"dtype": "int4", "algorithm": "GPTQ"}})
    assert (named.mode, named.method, named.weight.algorithm) == ("weight_only", Method("gptq"), "minmax")


def test_a_range_is_no_method():
    scheme = OpScheme.from_dict({"weight": {"dtype": "int4", "algorithm": "mse"}})
    assert (scheme.method, scheme.weight.algorithm) == (Method("rtn"), "mse")


def test_a_method_is_for_a_quantized_weight():
    for weight, mode in ((INT4, "float"), (None, "static")):
        with pytest.raises(ConfigError, match="finds a quantized weight"):
            OpScheme(weight=weight, activation=INT4, mode=mode, method=Method("gptq"))
    trained = OpScheme(weight=INT4, activation=INT4, mode="static", method=Method("qat"))
    assert OpScheme.from_dict(trained.to_dict()) == trained


def test_a_plan_with_methods_and_passes_comes_back_from_json():
    scheme = OpScheme(weight=INT4, mode="weight_only", method=Method("gptq", {"act_order": True}))
    plan = Plan({("fc", "Linear"): scheme}, passes=[Pass("smooth", {"alpha": 0.5}), Pass("correct_biases")])
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again["fc", "Linear"].method.options == {"act_order": True}
    assert [each.name for each in again.passes] == ["smooth", "correct_biases"]
    assert json.loads(plan.to_json())["passes"][0] == {"name": "smooth", "options": {"alpha": 0.5}}


def test_methods_options_and_order_of_passes_are_part_of_the_digest():
    ops = {("fc", "Linear"): OpScheme(weight=INT4, mode="weight_only")}
    passes = Pass("smooth"), Pass("correct_biases")
    other = {("fc", "Linear"): OpScheme(weight=INT4, mode="weight_only", method=Method("rtn", {"search": "mse"}))}
    digests = {
        Plan(ops).digest,
        Plan(other).digest,
        Plan(ops, passes=passes).digest,
        Plan(ops, passes=passes[::-1]).digest,
    }
    assert len(digests) == 4
