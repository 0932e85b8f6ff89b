from functools import reduce
from operator import add
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.errors import ConfigError
from neural_compressor.tuning.criterion import Criterion

values = st.floats(-1e6, 1e6).filter(lambda x: abs(x) > 1e-3)


@pytest.mark.parametrize(
    ("higher", "relative", "baseline", "value", "loss"),
    [
        (True, True, 0.8, 0.6, 0.25),
        (True, False, 0.8, 0.6, 0.2),
        (False, True, 10.0, 12.5, 0.25),
        (False, False, 10.0, 12.5, 2.5),
        (True, True, -4.0, -5.0, 0.25),
        (False, True, -4.0, -5.0, -0.25),
        (True, True, 0.8, 0.9, -0.125),
    ],
)
def test_loss_against_hand_computed_cases(higher, relative, baseline, value, loss):
    assert Criterion(higher, relative).loss(baseline, value) == pytest.approx(loss)


@given(values, values, st.booleans(), st.booleans())
def test_swapping_the_direction_negates_the_loss(baseline, value, higher, relative):
    one, other = Criterion(higher, relative), Criterion(not higher, relative)
    assert one.loss(baseline, value) == -other.loss(baseline, value)


@given(values, st.floats(0, 2), st.booleans(), st.booleans())
def test_limit_is_where_the_promise_stops_holding(baseline, tolerable, higher, relative):
    criterion = Criterion(higher, relative, tolerable)
    limit = criterion.limit(baseline)
    worse = -1 if higher else 1
    step = 1e-4 * abs(baseline)
    assert criterion.holds(baseline, limit - worse * step)
    assert not criterion.holds(baseline, limit + worse * step)


def test_exactly_the_tolerable_loss_holds_in_spite_of_rounding():
    assert 0.9 - 0.9 * 0.01 != 0.891 or (0.9 - 0.891) / 0.9 > 0.01  # what makes the slack necessary
    assert Criterion(tolerable_loss=0.01).holds(0.9, 0.891)


def test_zero_baseline_is_measured_absolutely_and_says_so():
    criterion = Criterion(higher_is_better=False, tolerable_loss=0.05)
    assert criterion.loss(0.0, 0.04) == 0.04
    assert criterion.holds(0.0, 0.04)
    assert not criterion.holds(0.0, 0.06)
    assert "baseline is 0" in criterion.describe(0.0)
    assert "baseline" not in criterion.describe(1.0)


def test_reads_a_config_by_its_fields():
    config = SimpleNamespace(higher_is_better=False, criterion="absolute", tolerable_loss=0.5)
    assert Criterion.from_config(config) == Criterion(False, False, 0.5)


@pytest.mark.parametrize("loss", [float("-inf"), float("nan"), float("inf")])
def test_refuses_a_tolerable_loss_that_means_nothing(loss):
    with pytest.raises(ConfigError, match="tolerable_loss"):
        Criterion(tolerable_loss=loss)


def test_refuses_an_unknown_kind():
    with pytest.raises(ConfigError, match=r"'relativ'.*relative, absolute"):
        Criterion.from_config(SimpleNamespace(higher_is_better=True, criterion="relativ", tolerable_loss=0.01))


@pytest.mark.parametrize("limit", [0.0, 0.01])
def test_a_billionth_above_the_limit_is_rounding_and_more_is_not(limit):
    criterion = Criterion(tolerable_loss=limit)
    assert criterion.allows(limit + 0.9e-9)
    assert not criterion.allows(limit + 1.1e-9)


def test_the_same_hits_summed_up_in_another_order_keep_a_promise_of_no_loss():
    scores = [0.1, 0.2, 0.3, 0.7, 1e-3] * 200
    # Not sum(), which loses nothing from Python 3.12 on.
    there, back = (reduce(add, order) / len(scores) for order in (scores, scores[::-1]))
    assert there != back
    assert all(Criterion(tolerable_loss=0.0).holds(*order) for order in ((there, back), (back, there)))


def test_a_negative_loss_is_a_gain_to_reach():
    twice = Criterion(tolerable_loss=-1)
    assert twice.limit(0.4) == pytest.approx(0.8)
    assert (twice.holds(0.4, 0.8), twice.holds(0.4, 0.79)) == (True, False)
    assert Criterion(higher_is_better=False, tolerable_loss=-0.5).holds(2.0, 1.0)
    assert twice.describe() == "at least 100.0% gained (relative, higher is better)"
