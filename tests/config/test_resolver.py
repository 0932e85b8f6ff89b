"""Which schemes an op may take: capability, then rules by type, then rules by name."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.config.op_options import op_options
from neural_compressor.config.op_request import Request, requested, wanting
from neural_compressor.config.op_rule import OpRule, read_rules
from neural_compressor.config.resolver import OpSpace, op_space, resolve
from neural_compressor.dtypes import dtype
from neural_compressor.errors import CapabilityError
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, Method, OpScheme, PerChannel, PerGroup, TensorScheme

KEY = ("conv", "Conv2d")


def static(weight: dict[str, Any] | None, activation: dict[str, Any], mode: str = "static") -> dict[str, Any]:
    config: dict[str, Any] = {"activation": {**activation, "quant_mode": mode}}
    return config if weight is None else {"weight": weight, **config}


def floats(*names: str, weight: bool = True) -> list[dict[str, Any]]:
    tensors = ("weight", "activation") if weight else ("activation",)
    return [{tensor: {"dtype": name} for tensor in tensors} for name in names]


WEIGHT8 = {"dtype": ["int8"], "scheme": ["sym"], "granularity": ["per_channel", "per_tensor"], "algorithm": ["minmax"]}
INPUT8 = {"dtype": ["uint8", "int8"], "scheme": ["asym", "sym"], "algorithm": ["minmax", "kl"]}
INT8 = static(WEIGHT8, INPUT8)
INT4 = static({"dtype": ["int4"], "granularity": ["per_channel"]}, {"dtype": ["uint4", "uint8"]})
DYNAMIC = static(WEIGHT8, {"dtype": ["uint8"], "scheme": ["asym"]}, "dynamic")
CONFIGS = [INT8, INT4, DYNAMIC, *floats("bf16", "fp32")]


def admit(
    types: dict[str, Any] | None = None,
    names: dict[str, Any] | None = None,
    configs: list[dict[str, Any]] | None = None,
    **request: Any,
) -> OpSpace:
    type_rules, name_rules = read_rules("op_type_dict", types), read_rules("op_name_dict", names)
    rules = [rule for rule in type_rules if rule.matches(KEY[1])] + [
        rule for rule in name_rules if rule.matches(KEY[0])
    ]
    has_weight = any("weight" in config for config in configs or CONFIGS)
    return op_space(
        KEY, configs or CONFIGS, requested(rules, request.pop("approach", "static"), has_weight=has_weight, **request)
    )


def dtypes(admitted: OpSpace) -> set[tuple[str, str]]:
    return {(o.weight.dtype.name, o.activation.dtype.name) for o in admitted.quantized}


def test_without_rules_quantized_means_int8_of_the_approach() -> None:
    found = admit()
    assert dtypes(found) == {("int8", "uint8"), ("int8", "int8")}
    assert {o.mode for o in found.quantized} == {"static"}
    assert [o.precision for o in found.floats] == ["bf16", "fp32"]
    assert found.reason == ""


def test_the_default_comes_first_and_what_is_cheap_to_vary_varies_first() -> None:
    def fields(option: OpScheme) -> tuple[Any, ...]:
        return (
            option.activation.dtype.name,
            option.weight.granularity.name,
            "sym" if option.activation.symmetric else "asym",
            option.activation.algorithm,
        )

    expected = list(product(["uint8", "int8"], ["per_channel", "per_tensor"], ["asym", "sym"], ["minmax", "kl"]))
    assert [fields(option) for option in admit().quantized] == expected


def test_auto_puts_static_before_dynamic() -> None:
    modes = [option.mode for option in admit(approach="auto").quantized]
    assert modes == sorted(modes, reverse=True)
    assert set(modes) == {"static", "dynamic"}


def test_the_rule_of_the_int4_guide_gives_int4_only() -> None:
    found = admit({"Conv2d": {"weight": {"dtype": ["int4"]}, "activation": {"dtype": ["uint4"]}}})
    assert dtypes(found) == {("int4", "uint4")}
    assert [o.precision for o in found.floats] == ["bf16", "fp32"]


def test_a_rule_about_the_weight_leaves_every_activation_that_goes_with_it() -> None:
    assert dtypes(admit({"Conv2d": {"weight": {"dtype": "int4"}}})) == {("int4", "uint4"), ("int4", "uint8")}


def test_a_rule_about_the_activation_does_not_lower_the_weight() -> None:
    assert dtypes(admit({"Conv2d": {"activation": {"dtype": "uint8"}}})) == {("int8", "uint8")}
    assert dtypes(admit({"Conv2d": {"activation": {"dtype": "uint4"}}})) == {("int4", "uint4")}


def test_bits_are_another_way_to_name_the_data_type() -> None:
    assert {w for w, _ in dtypes(admit({"Conv2d": {"weight": {"bits": 4}}}))} == {"int4"}
    assert {w for w, _ in dtypes(admit({"Conv2d": {"weight": {"dtype": "int", "bits": [4]}}}))} == {"int4"}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}, ["fp32"]),
        ({"weight": {"dtype": ["bf16"]}}, ["bf16"]),
        ({"activation": {"dtype": ["float32"]}}, ["fp32"]),
        ({"weight": {"dtype": ["bf16", "fp32"]}}, ["bf16", "fp32"]),
    ],
)
def test_a_rule_that_names_a_float_keeps_the_op_there_and_says_why(rule: Any, expected: list[str]) -> None:
    found = admit(names={"conv": rule})
    assert found.quantized == ()
    assert [o.precision for o in found.floats] == expected
    assert found.reason == "op_name_dict rule 'conv'"


def test_quantized_or_float_as_options() -> None:
    found = admit(names={"conv": {"weight": {"dtype": ["int8", "fp32"]}}})
    assert {w for w, _ in dtypes(found)} == {"int8"}
    assert [o.precision for o in found.floats] == ["fp32"]


def test_a_name_rule_wins_over_a_type_rule_field_by_field() -> None:
    types = {"Conv2d": {"activation": {"algorithm": "kl", "scheme": "sym"}}}
    found = admit(types, {"conv": {"activation": {"algorithm": "minmax"}}})
    assert {(o.activation.algorithm, o.activation.symmetric) for o in found.quantized} == {("minmax", True)}


def test_a_data_type_named_later_starts_the_precision_afresh() -> None:
    int4 = {"Conv2d": {"weight": {"dtype": "int4"}, "activation": {"dtype": "uint4"}}}
    assert dtypes(admit(int4, {"conv": {"weight": {"dtype": "int8"}}})) == {("int8", "uint8"), ("int8", "int8")}
    keep = {"Conv2d": {"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}}
    assert dtypes(admit(keep, {"conv": {"weight": {"dtype": "int4"}}})) == {("int4", "uint4"), ("int4", "uint8")}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"weight": {"dtype": "int3"}}, ["weight dtype 'int3'", "'int8', 'int4', 'bf16', 'fp32'"]),
        ({"weight": {"dtype": ["int8", "int3"]}}, ["'int3'"]),
        ({"weight": {"dtype": "fp16"}}, ["'fp16'", "'bf16'"]),
        ({"activation": {"algorithm": "klx"}}, ["activation algorithm 'klx'", "'minmax', 'kl'"]),
        ({"weight": {"scheme": "asym"}}, ["weight scheme 'asym'", "'sym'"]),
        ({"weight": {"dtype": "int4", "granularity": "per_tensor"}}, ["'per_tensor'", "'per_channel'"]),
        ({"weight": {"group_size": 32}}, ["group_size 32"]),
        ({"activation": {"quant_mode": "dynamic"}}, ["'dynamic'", "'static'"]),
        ({"weight": {"dtype": "int4"}, "activation": {"dtype": "int8"}}, ["combination", "'uint4'"]),
        ({"weight": {"dtype": "fp32"}, "activation": {"dtype": "uint8"}}, ["combination"]),
    ],
    ids=str,
)
def test_what_the_capability_does_not_admit_is_an_error_that_says_what_it_does(rule: Any, said: list[str]) -> None:
    with pytest.raises(CapabilityError) as error:
        admit(names={"conv": rule})
    for words in ["op_name_dict rule 'conv'", "'conv'", "'Conv2d'", *said]:
        assert words in str(error.value)


def test_a_rule_can_pick_the_mode() -> None:
    found = admit(names={"conv": {"activation": {"quant_mode": "dynamic"}}}, approach="auto")
    assert {o.mode for o in found.quantized} == {"dynamic"}


def test_algorithm_names_ignore_case() -> None:
    assert {o.activation.algorithm for o in admit({"Conv2d": {"activation": {"algorithm": "KL"}}}).quantized} == {"kl"}


def test_excluded_precisions_are_gone() -> None:
    assert [o.precision for o in admit(excluded_precisions=("bf16",)).floats] == ["fp32"]
    found = admit(excluded_precisions=("int8",))
    assert found.quantized == ()
    assert "int4" in found.reason
    with pytest.raises(CapabilityError, match="int8"):
        admit({"Conv2d": {"weight": {"dtype": "int8"}}}, excluded_precisions=("int8",))


def test_excluding_int8_reaches_an_op_without_a_weight() -> None:
    found = admit(configs=[static(None, INPUT8), *floats("fp32", weight=False)], excluded_precisions=("int8",))
    assert found.quantized == ()
    assert "excluded_precisions" in found.reason


def test_reduce_range_is_for_8_bit_weights() -> None:
    assert all(o.weight.reduce_range and not o.activation.reduce_range for o in admit(reduce_range=True).quantized)
    four = admit({"Conv2d": {"weight": {"dtype": "int4"}}}, reduce_range=True).quantized
    assert not any(o.weight.reduce_range or o.activation.reduce_range for o in four)


def test_an_op_the_approach_has_nothing_for_says_so() -> None:
    found = admit(configs=[DYNAMIC, *floats("fp32")])
    assert (found.quantized, found.reason) == ((), "no capability for approach 'static', only for 'dynamic'")
    assert admit(configs=floats("fp32")).reason == "no quantized capability"


def test_int8_that_another_approach_has_is_named() -> None:
    eight = {"weight": {"dtype": "int8"}, "activation": {"dtype": "uint8", "quant_mode": "static"}}
    other = {"weight": {"dtype": "int4"}, "activation": {"dtype": "uint8", "quant_mode": "dynamic"}}
    found = op_space(("conv", "Conv2d"), [eight, other, *floats("fp32")], Request(modes=("dynamic",)))
    said = "no int8 capability for approach 'dynamic', only for 'static'; name another data type in a rule to use it: 'int4'"
    assert (found.quantized, found.reason) == ((), said)


def test_fp32_stands_beside_every_op() -> None:
    assert [o.precision for o in admit(configs=[INT8]).floats] == ["fp32"]


def test_an_unsigned_weight_is_used_where_there_is_no_signed_one() -> None:
    table = static({"dtype": ["uint8"], "scheme": ["asym"]}, {"dtype": ["fp32"]})
    option = admit(configs=[table]).quantized[0]
    assert (option.weight.dtype.name, option.activation) == ("uint8", None)


def test_modes_make_no_difference_where_the_input_stays_in_float() -> None:
    weight = {"dtype": ["uint8"], "scheme": ["asym"]}
    both = [static(weight, {"dtype": ["fp32"]}, mode) for mode in ("static", "dynamic")]
    assert [option.mode for option in admit(configs=both, approach="auto").quantized] == ["static"]
    assert [option.mode for option in admit(configs=both, approach="dynamic").quantized] == ["dynamic"]


def test_an_op_without_a_weight() -> None:
    configs = [static(None, INPUT8), *floats("bf16", "fp32", weight=False)]
    assert len(admit({"Conv2d": {"weight": {"dtype": "int4"}}}, configs=configs).quantized) == 8
    kept = admit({"Conv2d": {"weight": {"dtype": "fp32"}}}, configs=configs)
    assert (kept.quantized, [o.precision for o in kept.floats]) == ((), ["fp32"])


WEIGHT_ONLY = [
    {
        "weight": {"dtype": ["int"], "bits": [4, 8], "group_size": [32, -1], "scheme": ["sym", "asym"]},
        "activation": {"dtype": ["fp32"], "quant_mode": "weight_only"},
    },
    {
        "weight": {"dtype": ["nf4"], "granularity": ["per_group"], "group_size": [64]},
        "activation": {"dtype": ["fp32"], "quant_mode": "weight_only"},
    },
    *floats("fp32"),
]


def test_weight_only_starts_from_the_type_listed_first() -> None:
    found = admit(configs=WEIGHT_ONLY, approach="weight_only")
    assert {o.weight.dtype.name for o in found.quantized} == {"int4"}
    assert {o.weight.granularity for o in found.quantized} == {PerGroup(32), PerChannel()}
    assert all(o.activation is None for o in found.quantized)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"bits": 8, "group_size": 32}, {("int8", PerGroup(32))}),
        ({"bits": 8, "group_size": -1}, {("int8", PerChannel())}),
        (
            {"bits": 8, "granularity": "per_group", "group_size": [-1, 32]},
            {("int8", PerGroup(32)), ("int8", PerChannel())},
        ),
        ({"dtype": "nf4"}, {("nf4", PerGroup(64))}),
    ],
)
def test_weight_only_rules(rule: Any, expected: set[Any]) -> None:
    found = admit(
        {".*": {"weight": rule, "activation": {"dtype": "fp32"}}}, configs=WEIGHT_ONLY, approach="weight_only"
    )
    assert {(o.weight.dtype.name, o.weight.granularity) for o in found.quantized} == expected
    assert found.floats


@given(st.text(alphabet="ab.0[", min_size=1, max_size=4), st.text(alphabet="ab.0[", max_size=4))
def test_a_key_matches_the_whole_name_only(name: str, tail: str) -> None:
    rule = read_rules("op_name_dict", {re.escape(name): {"weight": {"dtype": "fp32"}}})[0]
    assert rule.matches(name)
    assert rule.matches(name + tail) == (tail == "")
    assert rule.matches(tail + name) == (tail == "")


def test_keys_are_regular_expressions() -> None:
    rule: OpRule = read_rules("op_name_dict", {r"layer\d\.conv": {"weight": {"dtype": "fp32"}}})[0]
    assert [rule.matches(n) for n in ("layer1.conv", "layer1.conv2", "xlayer1.conv", "layer1xconv")] == [True] + [
        False
    ] * 3


def test_a_key_may_be_a_name_that_is_no_regular_expression() -> None:
    rule: OpRule = read_rules("op_name_dict", {"a[0].+*?": {"weight": {"dtype": "fp32"}}})[0]
    assert [rule.matches(name) for name in ("a[0].+*?", "a0", "a[0]")] == [True, False, False]


VALUES = {
    "scheme": ["sym", "asym"],
    "granularity": ["per_tensor", "per_channel"],
    "algorithm": ["minmax", "kl", "mse"],
}


def subset(values: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(values), min_size=1, unique=True)


def tensors(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"dtype": subset(list(names))}, optional={f: subset(v) for f, v in VALUES.items()})


capabilities = st.lists(
    st.builds(
        static, tensors("int8", "int4"), tensors("uint8", "int8", "uint4"), st.sampled_from(["static", "dynamic"])
    ),
    min_size=1,
    max_size=3,
)
tensor_rules = st.fixed_dictionaries(
    {}, optional={"dtype": subset(["int8", "int4", "fp32"]), **{f: subset(v) for f, v in VALUES.items()}}
)
op_rules = st.fixed_dictionaries(
    {"weight": tensor_rules.filter(bool)}, optional={"activation": tensor_rules.filter(bool)}
)


@given(capabilities)
def test_options_are_the_product_of_the_lists(configs: list[dict[str, Any]]) -> None:
    """Against a plain loop over all fields of both tensors."""
    expected = set()
    for config in configs:
        names = [(tensor, field) for tensor in config for field in config[tensor]]
        lists = [config[t][f] if isinstance(config[t][f], list) else [config[t][f]] for t, f in names]
        for values in product(*lists):
            flat: dict[str, Any] = {"weight": {}, "activation": {}}
            for (tensor, field), value in zip(names, values, strict=True):
                flat[tensor][field] = value
            expected.add(OpScheme.from_dict(flat))
    found = op_options(configs)
    assert set(found) == expected
    assert len(found) == len(expected)


@given(capabilities, st.sampled_from(["static", "dynamic", "auto"]), op_rules, op_rules)
def test_rules_only_take_away_and_their_word_is_kept(
    configs: list[dict[str, Any]], approach: str, by_type: dict[str, Any], by_name: dict[str, Any]
) -> None:
    try:
        found = admit({"Conv2d": by_type}, {"conv": by_name}, configs, approach=approach)
    except CapabilityError:
        return
    capability, kept = op_options(configs), set(found.quantized)
    assert kept <= set(capability)
    assert list(found.quantized) == [
        o for mode in ("static", "dynamic") for o in capability if o.mode == mode and o in kept
    ]
    assert found.floats
    assert bool(found.quantized) != bool(found.reason)
    for option in found.quantized:
        for tensor, fields in by_name.items():
            shown = option.to_dict()[tensor]
            assert all(shown[field] in values for field, values in fields.items())
        for tensor, fields in by_type.items():
            for field in set(fields) - set(by_name.get(tensor, {})) - {"dtype"}:
                assert option.to_dict()[tensor][field] in fields[field]


OPEN = {
    "weight": {
        "dtype": ["int4", "*"],
        "granularity": ["per_group"],
        "group_size": [32, "*"],
        "algorithm": ["rtn", "gptq", "*"],
    },
    "activation": {"dtype": ["fp32"], "quant_mode": "weight_only"},
}


def weight_only(*rules: dict[str, Any], **request: Any) -> OpSpace:
    read = [rule for each in rules for rule in read_rules("op_type_dict", {".*": {"weight": each}})]
    return op_space(("fc", "Linear"), [OPEN], requested(read, "weight_only", **request))


def test_a_rule_names_the_method_of_a_weight() -> None:
    assert [option.method.name for option in weight_only().quantized] == ["rtn", "gptq"]
    assert {option.method.name for option in weight_only({"algorithm": "GPTQ"}).quantized} == {"gptq"}
    assert {option.method.name for option in weight_only({"algorithm": "minmax"}).quantized} == {"rtn"}


def test_what_a_capability_leaves_open_is_what_a_rule_names() -> None:
    found = weight_only({"bits": 3, "dtype": "int", "group_size": 7}).quantized
    assert {(option.precision, option.weight.granularity.size) for option in found} == {("int3", 7)}
    assert {option.precision for option in weight_only().quantized} == {"int4"}


def test_methods_that_need_data_are_out_without_any_unless_asked_for() -> None:
    assert {option.method.name for option in weight_only(has_data=False).quantized} == {"rtn"}
    assert {option.method.name for option in weight_only({"algorithm": "gptq"}, has_data=False).quantized} == {"gptq"}


def wanted(said: dict[tuple[str, str], Any] | None = None, **fields: Any) -> OpSpace:
    weight = {"dtype": "int8", "scheme": "sym", "granularity": "per_tensor", **fields.pop("weight", {})}
    activation = {"dtype": "uint8", "scheme": "asym", "quant_mode": "static", **fields}
    scheme = OpScheme.from_dict({"weight": weight, "activation": activation})
    return op_space(KEY, CONFIGS, wanting(scheme, said or {}, "SomeConfig"))


def test_a_wanted_scheme_is_taken_as_it_is_where_the_framework_has_it() -> None:
    found = wanted(algorithm="kl").default
    assert (found.weight.granularity, found.activation.algorithm) == (PER_TENSOR, "kl")


def test_what_the_user_did_not_say_gives_way() -> None:
    found = wanted(dtype="uint16").default
    assert (found.weight.dtype.name, found.activation.dtype.name) == ("int8", "uint8")


def test_what_the_user_said_and_the_framework_has_not_is_an_error() -> None:
    with pytest.raises(CapabilityError, match=r"SomeConfig asks op 'conv' .* activation dtype 'uint16'"):
        wanted({("activation", "dtype"): "uint16"}, dtype="uint16")


def test_a_scale_a_channel_is_not_given_up_for_a_data_type_nobody_asked_for() -> None:
    found = wanted(weight={"granularity": "per_channel"}, dtype="int4").default
    assert found.weight.granularity == PER_CHANNEL


def test_options_of_a_method_and_nested_schemes_come_from_what_is_wanted() -> None:
    scales = TensorScheme(dtype("uint8"), False)
    weight = TensorScheme(dtype("int4"), granularity=PerGroup(32), scales=scales)
    method = Method("gptq", {"act_order": True})
    scheme = OpScheme(weight, mode="weight_only", method=method)
    found = op_space(("fc", "Linear"), [OPEN], wanting(scheme, {}, "GPTQConfig")).default
    assert found == scheme


def test_ops_that_pay_in_float_are_quantized_where_they_are_named() -> None:
    capability = {"opwise": {KEY: CONFIGS}, "in_float_unless_named": {"static": {"Conv2d": "it is slower"}}}
    assert resolve(capability, {KEY: Request()})[KEY].reason.startswith("it is slower")
    assert resolve(capability, {KEY: Request()}, named={KEY})[KEY].quantized
    assert resolve(capability, {KEY: "the user says so"})[KEY].reason == "the user says so"


def test_a_method_that_moves_zero_points_is_for_asymmetric_weights() -> None:
    config = {**OPEN, "weight": {**OPEN["weight"], "scheme": ["sym", "asym"]}}
    rules = read_rules("op_type_dict", {".*": {"weight": {"algorithm": "HQQ"}}})
    found = op_space(("fc", "Linear"), [config], requested(rules, "weight_only")).quantized
    assert {option.weight.symmetric for option in found} == {False}
