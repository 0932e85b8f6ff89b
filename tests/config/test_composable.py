"""Configurations of one algorithm: rules for ops, search spaces, the way to JSON and back."""

from __future__ import annotations

import copy
import itertools
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_configs import Alpha, Beta, OtherBeta

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError


class Linear:
    """Stands for a class of the framework."""


class Conv1d:
    """Another one."""


OPS = {"fc1": Linear, "fc10": Linear, "body.fc1": Linear, "conv": Conv1d, "body.conv2": "Conv2d"}


def bits_of(config: Composition, ops: dict = OPS) -> dict[str, int | None]:
    return {name: None if each is None else each.bits for name, each in config.resolve(ops).items()}


def matched(op: object, ops: dict = OPS) -> list[str]:
    return [name for name, bits in bits_of(Alpha().set_local(op, Alpha(bits=8)), ops).items() if bits == 8]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("fc1", ["fc1"]),
        ("fc10", ["fc10"]),
        ("fc", None),
        ("fc.*", ["fc1", "fc10"]),
        (r"(.*\.)?fc1", ["fc1", "body.fc1"]),
        ("Conv1d", ["conv"]),
        ("Conv2d", ["body.conv2"]),
        (Conv1d, ["conv"]),
        ("Linear", ["fc1", "fc10", "body.fc1"]),
        (Linear, ["fc1", "fc10", "body.fc1"]),
        (["fc1", Conv1d], ["fc1", "conv"]),
        (("conv", "body.*"), ["body.fc1", "conv", "body.conv2"]),
    ],
)
def test_a_rule_names_ops_by_name_by_expression_and_by_type(op: object, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="matches no op"):
            matched(op)
    else:
        assert sorted(matched(op)) == sorted(expected)


def test_the_dot_of_a_full_name_is_a_dot() -> None:
    assert matched("a.b", {"a.b": "Linear", "a_b": "Linear", "aXb": "Linear"}) == ["a.b"]


def test_an_op_called_like_a_type_is_meant_by_the_string_and_the_type_by_the_class() -> None:
    ops = {"Linear": "Head", "fc": "Linear"}
    assert matched("Linear", ops) == ["Linear"]
    assert matched(Linear, ops) == ["fc"]


def test_later_rules_win() -> None:
    config = Alpha().set_local("fc1", Alpha(bits=2)).set_local("fc.*", Alpha(bits=3))
    assert bits_of(config)["fc1"] == 3
    assert bits_of(config.set_local("fc1", Alpha(bits=5)))["fc1"] == 5
    assert bits_of(config)["fc10"] == 3
    assert len(config.local) == 2, "a rule for the same ops replaces the old one"


def test_what_is_given_may_change_afterwards() -> None:
    mine = Alpha(bits=2)
    config = Alpha().set_local("fc1", mine)
    mine.bits = 7
    assert bits_of(config)["fc1"] == 2


def test_resolved_configurations_carry_no_rules_and_leave_the_original_alone() -> None:
    config = Alpha(white_list=["fc.*"]).set_local("fc1", Alpha(bits=2))
    assert config.resolve(OPS)["fc10"] == Alpha()
    assert config.resolve(OPS)["fc1"] == Alpha(bits=2)
    assert len(config.local) == 1


@pytest.mark.parametrize(
    ("white_list", "expected"),
    [
        (None, list(OPS)),
        ("*", list(OPS)),
        ([Linear], ["fc1", "fc10", "body.fc1"]),
        (["Conv1d", "fc1"], ["conv", "fc1"]),
        ("fc1", ["fc1"]),
        ([], []),
    ],
)
def test_the_white_list_says_where_the_parameters_apply(white_list: object, expected: list[str]) -> None:
    config = Alpha(white_list=white_list)
    assert {name for name, each in config.resolve(OPS).items() if each} == set(expected)
    with_rule = bits_of(Alpha(white_list=white_list).set_local("body.conv2", Alpha(bits=8)))
    assert with_rule["body.conv2"] == 8, "a local rule needs no white list"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Alpha().set_local("fc11", Alpha()), ["local rule 'fc11' of Alpha", "matches no op", "'fc1'"]),
        (Alpha().set_local("Linaer", Alpha()), ["'Linaer'", "'Linear'"]),
        (Alpha().set_local(type("Conv3d", (), {}), Alpha()), ["type 'Conv3d'", "'Conv2d'", "'Conv1d'"]),
        (Alpha(white_list=["covn"]), ["white_list entry 'covn' of Alpha", "'conv'"]),
        (Beta() + Alpha().set_local("fc11", Alpha()), ["'fc11'", "Alpha"]),
        (Alpha(bits=[4, 8]), ["Alpha spans a space (bits=[4, 8])", "autotune"]),
        (Alpha().set_local("fc1", Beta(bits=[4, 8])), ["Beta spans a space"]),
    ],
)
def test_what_cannot_be_resolved_is_an_error(config: Composition, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config.resolve(OPS)
    for words in said:
        assert words in str(caught.value)


def test_a_name_may_be_no_regular_expression() -> None:
    ops = {"a[0].+*?": "Linear", "a0.x": "Linear"}
    found = Alpha(bits=4).set_local("a[0].+*?", Alpha(bits=8)).resolve(ops)
    assert [config.bits for config in found.values()] == [8, 4]
    with pytest.raises(ConfigError, match=r"'a\[' of Alpha matches no op.*as a regular expression it is not valid"):
        Alpha().set_local("a[", Alpha()).resolve(ops)


def test_a_large_model_is_not_listed_whole_in_an_error() -> None:
    ops = {f"layers.{i}.fc": "Linear" for i in range(500)}
    with pytest.raises(ConfigError) as caught:
        Alpha().set_local("head", Alpha()).resolve(ops)
    assert len(str(caught.value)) < 400
    assert "500 in all" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Alpha().set_local("(a)\\1", Alpha()), ["Alpha.set_local", "bounded time"]),
        (lambda: Alpha().set_local([], Alpha()), ["Alpha.set_local", "at least one"]),
        (lambda: Alpha().set_local(3, Alpha()), ["Alpha.set_local", "got 3"]),
        (lambda: Alpha().set_local("", Alpha()), ["got ''"]),
        (lambda: Alpha().set_local("fc1", {"bits": 8}), ["'fc1'", "expected a configuration"]),
        (lambda: Alpha().set_local("fc1", Alpha() + Beta()), ["'fc1'", "expected a configuration of one algorithm"]),
        (lambda: Alpha().set_local("fc1", Alpha(white_list=["a"])), ["'fc1'", "white_list"]),
        (lambda: Alpha().set_local("fc1", Alpha().set_local("a", Alpha())), ["'fc1'", "local rules"]),
        (lambda: Alpha().set_local("fc1", OtherBeta()), ["'fc1'", "for other, not for toy"]),
        (lambda: Alpha(white_list=[3]), ["Alpha.white_list", "got 3"]),
        (lambda: Alpha(bitz=3), ["no field 'bitz'", "did you mean 'bits'"]),
        (lambda: Alpha(bits=99), ["Alpha.bits", "99", "1 to 8"]),
        (lambda: Alpha(bits=[4, 99]), ["Alpha.bits", "99"]),
        (lambda: Alpha(bits=[]), ["Alpha.bits", "empty"]),
        (lambda: Alpha(sym="yes"), ["Alpha.sym", "'yes'"]),
        (lambda: Alpha(kind="byte", bits=4), ["a byte has 8 bits"]),
        (lambda: Alpha("int", 4, True, 32, 1), ["Alpha takes 4 parameters without a name, got 5"]),
        (lambda: Alpha("int", kind="int"), ["kind twice"]),
        (lambda: Alpha(local=[{"op": "fc1"}]), ["Alpha.local", "'config'"]),
        (lambda: Alpha(local="fc1"), ["Alpha.local", "'fc1'"]),
    ],
)
def test_nonsense_is_refused_when_it_is_said(make: object, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()  # type: ignore[operator]
    for words in said:
        assert words in str(caught.value)


def test_parameters_may_go_without_a_name_in_their_order() -> None:
    assert Alpha("int", 8, False) == Alpha(bits=8, sym=False)


def test_an_assignment_that_makes_no_sense_changes_nothing() -> None:
    config = Alpha(bits=4)
    before = copy.deepcopy(config)
    for name, value in (("bits", 99), ("kind", "byte"), ("nothing", 1)):
        with pytest.raises(ConfigError):
            setattr(config, name, value)
        assert config == before
    config.bits = 3
    assert config == Alpha(bits=3)


def test_what_follows_from_a_parameter_follows_its_changes() -> None:
    config = Alpha(kind="byte")
    assert config.bits == 8
    assert Alpha.from_dict(config.to_dict()) == config


# search spaces


def test_a_space_is_the_product_in_the_order_of_the_fields() -> None:
    singles = Alpha(size=[32, 128], sym=[False, True]).expand()
    assert [(s.sym, s.size) for s in singles] == [(False, 32), (False, 128), (True, 32), (True, 128)]


def test_a_single_configuration_is_its_own_space() -> None:
    config = Alpha().set_local("fc1", Alpha(bits=8))
    assert config.expand() == [config]
    assert config.expand()[0] is config
    assert Alpha(bits=[4]) == Alpha(bits=4)


def test_rules_are_kept_in_the_space_and_their_own_lists_belong_to_it() -> None:
    config = Alpha(bits=[4, 8], white_list=["fc.*"]).set_local("fc1", Alpha(bits=2))
    assert [bits_of(single)["fc1"] for single in config.expand()] == [2, 2]
    assert [bits_of(single)["fc10"] for single in config.expand()] == [4, 8]
    config.set_local("fc10", Beta(bits=[1, 3]))
    found = [(bits_of(s)["fc1"], bits_of(s)["fc10"], s.bits) for s in config.expand()]
    assert found == [(2, 1, 4), (2, 3, 4), (2, 1, 8), (2, 3, 8)]


def test_a_space_holds_no_configuration_twice() -> None:
    singles = Alpha(kind=["int", "byte"], bits=[4, 8]).expand()
    assert [(s.kind, s.bits) for s in singles] == [("int", 4), ("int", 8), ("byte", 8)]
    assert len(Alpha(bits=[4, 8, 4]).expand()) == 2


values = {
    "bits": st.integers(1, 8),
    "sym": st.booleans(),
    "size": st.sampled_from([-1, 1, 32, 128]),
}
spaces = st.fixed_dictionaries(
    {}, optional={name: one | st.lists(one, min_size=1, max_size=3) for name, one in values.items()}
)
names = st.sampled_from(["fc1", "fc.*", "Linear", Linear, "conv", Conv1d, ["fc10", "body.*"]])
rules = st.lists(st.tuples(names, spaces), max_size=3)


def build(fields: dict, white_list: object, local: list, cls: type[ComposableConfig] = Alpha) -> ComposableConfig:
    config = cls(**fields, white_list=white_list)
    for op, inner in local:
        config.set_local(op, Alpha(**inner))
    return config


configs = st.builds(
    build, spaces, st.none() | st.lists(names.filter(lambda n: not isinstance(n, list)), max_size=2), rules
)


@given(spaces)
def test_the_space_is_what_a_plain_loop_finds(fields: dict) -> None:
    axes = []
    for name, usual in (("bits", 4), ("sym", True), ("size", 32)):
        listed = fields.get(name, usual)
        axes.append(list(dict.fromkeys(listed)) if isinstance(listed, list) else [listed])
    assert [(s.bits, s.sym, s.size) for s in Alpha(**fields).expand()] == list(itertools.product(*axes))


@given(configs)
def test_every_member_of_a_space_can_be_resolved(config: ComposableConfig) -> None:
    singles = config.expand()
    assert len({single.identity for single in singles}) == len(singles)
    for single in singles:
        assert not single.spans
        assert list(single.resolve(OPS)) == list(OPS)


# to dicts and JSON and back


@given(configs)
def test_a_configuration_survives_a_trip_through_json(config: ComposableConfig) -> None:
    text = config.to_json_string()
    for reader in (Alpha, ComposableConfig, Composition):
        again = reader.from_dict(json.loads(text))
        assert again == config
        assert type(again) is Alpha
        assert again.to_json_string() == text
    for single, other in zip(config.expand(), again.expand(), strict=True):
        assert single == other
        assert single.resolve(OPS) == other.resolve(OPS)


def test_a_class_and_a_name_that_are_written_alike() -> None:
    for first, second in ((Linear, "Linear"), ("Linear", Linear)):
        config = Alpha().set_local(first, Alpha(bits=2)).set_local(second, Beta())
        assert Alpha.from_dict(json.loads(config.to_json_string())) == config


def test_a_configuration_survives_a_trip_through_a_file(tmp_path) -> None:
    config = Alpha(bits=[4, 8], white_list=[Linear, "fc.*"]).set_local(Conv1d, Beta()).set_local("fc1", Alpha(bits=2))
    config.to_json_file(tmp_path / "config.json")
    assert Alpha.from_json_file(tmp_path / "config.json") == config
    assert ComposableConfig.from_json_file(str(tmp_path / "config.json")) == config


def test_a_dict_of_a_few_parameters_is_enough() -> None:
    assert Alpha.from_dict({"bits": 8}) == Alpha(bits=8)
    assert Alpha.from_dict({}) == Alpha()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"config": "toy.beta"}, ["Alpha", "Beta"]),
        ({"config": "toy.gamma"}, ["unknown configuration 'toy.gamma'", "toy.beta"]),
        ({"bitz": 4}, ["'bitz'", "bits"]),
        ([4], ["mapping", "list"]),
        ({"local": [{"op": "fc1", "config": {"config": "toy.alpha", "bits": 99}}]}, ["99"]),
    ],
)
def test_a_wrong_dict_is_an_error(data: object, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Alpha.from_dict(data)  # type: ignore[arg-type]
    for words in said:
        assert words in str(caught.value)


def test_a_broken_file_is_an_error_that_names_it(tmp_path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"bits": ')
    with pytest.raises(ConfigError, match=r"broken\.json"):
        Alpha.from_json_file(path)
    with pytest.raises(ConfigError, match=r"missing\.json"):
        Alpha.from_json_file(tmp_path / "missing.json")


def test_equality_is_of_class_parameters_and_rules() -> None:
    assert Alpha() == Alpha(bits=4)
    assert Alpha() != Beta()
    assert Alpha() != Alpha(white_list=[])
    assert Alpha() != Alpha().set_local("fc1", Alpha())
    assert Alpha().set_local("Linear", Alpha()) != Alpha().set_local(Linear, Alpha())


@given(configs)
def test_copies_and_pickles_are_equal_and_repr_rebuilds(config: ComposableConfig) -> None:
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config
    assert eval(repr(config), {"Alpha": Alpha, "Beta": Beta}) == config
