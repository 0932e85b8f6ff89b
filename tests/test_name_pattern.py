"""Regular expressions for names: what ``re`` says, in bounded time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.config.op_selector import OpSelector
from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.name_pattern import NamePattern, file_pattern

_PARTS = ("a", ".", r"\d", r"\W", "[ab]", "[^a]", "[a-c]", r"\.", "^", "$", r"\b", r"\B", "(?=a)", "(?!b)", "(?<=a)")
_TIMES = ("*", "+", "?", "{2}", "{1,3}", "*?", "{0}", "{2,}")
_ANY = st.sampled_from((*_PARTS, "(?<!b)", "(?i:A)", r"\s", "(?!)", ""))
_EXPRESSIONS = st.recursive(
    _ANY,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(_TIMES)).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@given(_EXPRESSIONS, st.text("ab1. \nA", min_size=1, max_size=6))
def test_matches_what_the_matcher_of_python_matches(expression, name):
    pattern = NamePattern.of(expression)
    assert pattern.matches(name) == (name == expression or re.fullmatch(expression, name) is not None)
    assert pattern.matches_start(name) == (re.match(expression, name) is not None)


@pytest.mark.parametrize("expression", ["(a+)+b", "(a|a)*b", "(a|aa)+b", ".*" * 30 + "x", "(?=(a+)+b)a*", "((a*)*)*b"])
def test_expressions_that_never_end_with_backtracking_do(expression):
    assert not NamePattern.of(expression).matches("a" * 300)


@pytest.mark.parametrize("expression", [r"(a)\1", "(a)?(?(1)b|c)", "x" * 3000])
def test_refuses_what_cannot_be_matched_in_bounded_time(expression):
    with pytest.raises(ConfigError, match=r"bounded time|characters"):
        NamePattern.of(expression)
    with pytest.raises(FormatError, match="there"):
        file_pattern(expression, "there")


@pytest.mark.parametrize("name", ["fc(1", "a[", "*", "a{99999999999999}", "(" * 500, "model/conv+bn", "a\\"])
def test_a_name_matches_itself_whether_or_not_it_is_an_expression(name):
    assert NamePattern.of(name).matches(name)
    assert OpSelector(name).select({name: "Linear", "other": "Linear"}) == [name]


def test_a_file_must_hold_valid_expressions():
    with pytest.raises(FormatError, match=r"dynamic.*malformed"):
        file_pattern("a[", "'dynamic'")


def test_an_invalid_expression_that_names_no_op_says_so():
    assert "unterminated" in OpSelector("fc[").alternatives({"fc": "Linear"})
