"""Sums of configurations: what they mean, and that nothing of them is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_configs import Alpha, Beta, OtherBeta

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composed import ComposedConfig
from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError

OPS = {"a": "Linear", "b": "Linear", "c": "Conv1d", "d": "Conv2d"}


def choice(config: Composition) -> dict[str, tuple[str, int] | None]:
    return {name: each and (each.name, each.bits) for name, each in config.resolve(OPS).items()}


def test_a_sum_of_one_class_has_the_parameters_of_the_first_and_the_rules_of_both(caplog) -> None:
    left = Alpha(bits=4).set_local("a", Alpha(bits=1)).set_local("b", Alpha(bits=2))
    right = Alpha(bits=8).set_local("b", Alpha(bits=3))
    both = left + right
    assert type(both) is Alpha
    assert choice(both) == {"a": ("alpha", 1), "b": ("alpha", 3), "c": ("alpha", 4), "d": ("alpha", 4)}
    assert (left.bits, len(left.local), len(right.local)) == (4, 2, 1), "the summands stay as they are"
    assert "the parameters of Alpha(bits=8) apply to no op" in caplog.text


def test_a_sum_of_one_class_and_white_list_has_the_parameters_of_the_later() -> None:
    both = Alpha(bits=8, white_list=["a"]) + Alpha(bits=2, white_list=["a"])
    assert type(both) is Alpha
    assert choice(both)["a"] == ("alpha", 2)


def test_different_classes_each_take_what_they_name() -> None:
    both = Alpha(white_list=["Linear"]) + Beta(white_list=["c"])
    assert isinstance(both, ComposedConfig)
    assert choice(both) == {"a": ("alpha", 4), "b": ("alpha", 4), "c": ("beta", 4), "d": None}


def test_two_configurations_for_everything_quantize_everything(caplog) -> None:
    assert set(choice(Alpha() + Beta()).values()) == {("alpha", 4)}
    assert "Beta() applies to no op" in caplog.text
    caplog.clear()
    assert set(choice(Beta() + Alpha()).values()) == {("beta", 4)}
    assert "Alpha() applies to no op" in caplog.text
    caplog.clear()
    choice(Alpha() + Beta(white_list=["a"]))
    assert caplog.text == ""


def test_what_is_named_beats_what_is_for_everything() -> None:
    assert choice(Alpha() + Beta(white_list=["c"]))["c"] == ("beta", 4)
    assert choice(Beta(white_list=["c"]) + Alpha())["c"] == ("beta", 4)
    assert choice(Alpha().set_local("a", Alpha(bits=8)) + Beta(white_list=["Linear"]))["a"] == ("alpha", 8)
    assert choice(Alpha().set_local("a", Alpha(bits=8)) + Beta().set_local("a", Beta(bits=2)))["a"] == ("beta", 2)
    assert choice(Alpha(white_list=["a"]) + Beta(white_list=["Linear"]))["a"] == ("beta", 4)


def test_one_class_with_two_white_lists_keeps_both() -> None:
    both = Alpha(bits=4) + Alpha(bits=8, white_list=["b"])
    assert [bits for _, bits in choice(both).values()] == [4, 8, 4, 4]


def test_the_rule_that_decided_is_known() -> None:
    given = (Alpha(white_list=["c", "a"]).set_local("a", Alpha(bits=8)) + Beta(white_list=["b"])).assign(OPS)
    assert str(given["a"].claim) == "local rule 'a' of Alpha"
    assert str(given["b"].claim) == "white_list entry 'b' of Beta"
    assert (given["d"].config, given["d"].claim, given["d"].explicit) == (None, None, False)
    assert given["a"].explicit
    assert not Alpha().assign(OPS)["a"].explicit


def test_a_sum_takes_local_rules_too() -> None:
    both = (Alpha().set_local("a", Alpha(bits=2)) + Beta()).set_local(["a", "d"], Alpha(bits=8))
    assert choice(both) == {"a": ("alpha", 8), "b": ("alpha", 4), "c": ("alpha", 4), "d": ("alpha", 8)}
    with pytest.raises(ConfigError, match="expected a configuration"):
        both.set_local("a", both)  # type: ignore[arg-type]


def test_a_sum_spans_the_product_of_its_parts() -> None:
    both = Alpha(bits=[4, 8]) + Beta(bits=[1, 2], white_list=["a"])
    assert [tuple(part.bits for part in single.parts) for single in both.expand()] == [(4, 1), (4, 2), (8, 1), (8, 2)]
    single = Alpha() + Beta()
    assert single.expand() == [single]


def test_only_configurations_of_one_framework_add_up() -> None:
    with pytest.raises(ConfigError, match="other, toy"):
        Alpha() + OtherBeta()
    with pytest.raises(TypeError):
        Alpha() + 1  # type: ignore[operator]


selectors = st.sampled_from(["a", "b", "Linear", "Conv.*|[cd]", "[ab]"])
parts = st.builds(
    lambda cls, bits, white_list, local: _with_rules(cls(bits=bits, white_list=white_list), local),
    st.sampled_from([Alpha, Beta]),
    st.integers(1, 8),
    st.none() | st.lists(selectors, max_size=2, unique=True),
    st.lists(st.tuples(selectors, st.sampled_from([Alpha, Beta]), st.integers(1, 8)), max_size=2),
)
sums = st.lists(parts, min_size=1, max_size=4)


def _with_rules(config: ComposableConfig, local: list) -> ComposableConfig:
    for op, cls, bits in local:
        config.set_local(op, cls(bits=bits))
    return config


def _total(configs: list[ComposableConfig]) -> Composition:
    total: Composition = configs[0]
    for config in configs[1:]:
        total = total + config
    return total


@given(parts, parts, parts)
def test_sums_are_associative(first: Composition, second: Composition, third: Composition) -> None:
    assert (first + second) + third == first + (second + third)


@given(sums)
def test_a_sum_survives_a_trip_through_json(configs: list[ComposableConfig]) -> None:
    total = _total(configs)
    again = Composition.from_dict(json.loads(total.to_json_string()))
    assert again == total
    assert again.parts == total.parts
    assert again.resolve(OPS) == total.resolve(OPS)


def test_a_sum_survives_a_trip_through_a_file(tmp_path) -> None:
    total = Alpha(bits=8) + Beta(white_list=["a"]).set_local(dict, Beta(bits=2))
    total.to_json_file(tmp_path / "sum.json")
    again = ComposedConfig.from_json_file(tmp_path / "sum.json")
    assert [type(part) for part in again.parts] == [Alpha, Beta]
    assert again == total
    with pytest.raises(ConfigError, match="Alpha cannot be read from the settings of a ComposedConfig"):
        Alpha.from_json_file(tmp_path / "sum.json")


MEANT = {"a": {"a"}, "b": {"b"}, "Linear": {"a", "b"}, "Conv.*|[cd]": {"c", "d"}, "[ab]": {"a", "b"}}


@given(sums)
def test_who_gets_an_op_is_what_the_rules_say(configs: list[ComposableConfig]) -> None:
    """Local rules, the last first; then white lists, the last first; then configurations for everything, the first."""
    total = _total(configs)
    locals_, white_lists, everything = [], [], []
    for part in total.parts:
        locals_ += [(MEANT[rule.selector.text], (rule.config.name, rule.config.bits)) for rule in part.local]
        own = (part.name, part.bits)
        white_lists += [(MEANT[selector.text], own) for selector in part.white_list or ()]
        everything += [(set(OPS), own)] if part.white_list is None else []
    order = [*reversed(locals_), *reversed(white_lists), *everything]
    expected = {op: next((config for meant, config in order if op in meant), None) for op in OPS}
    assert choice(total) == expected
