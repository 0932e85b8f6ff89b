"""Options of AutoRound are checked when they are made."""

import pytest

from neural_compressor.algorithms import AutoRoundOptions
from neural_compressor.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iters", -1),
        ("iters", 2.5),
        ("batch_size", 0),
        ("batch_size", True),
        ("gradient_accumulate_steps", 0),
        ("seed", -1),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("minmax_lr", -0.1),
        ("dynamic_max_gap", -2),
        ("momentum", 1.0),
        ("momentum", -0.1),
    ],
)
def test_values_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ConfigError, match=rf"AutoRoundOptions\.{name}: got"):
        AutoRoundOptions(**{name: value})


def test_rates_fall_linearly_to_zero():
    options = AutoRoundOptions(iters=4, lr=0.4, minmax_lr=0.2)
    found = [options.rates(i, bits=4) for i in range(5)]
    assert found == [pytest.approx((0.4 * left, 0.2 * left)) for left in (1, 0.75, 0.5, 0.25, 0)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("cosine", [1, 0.75, 0.25]), ("constant", [1, 1, 1]), ((0.5, 2.0, 0.0), [0.5, 2, 0])],
)
def test_rates_follow_the_schedule(schedule, expected):
    options = AutoRoundOptions(iters=3, lr=0.4, minmax_lr=0.2, lr_scheduler=schedule)
    found = [options.rates(i, bits=4) for i in range(3)]
    assert found == [pytest.approx((0.4 * left, 0.2 * left)) for left in expected]


@pytest.mark.parametrize("schedule", ["steep", (1.0,), [-1.0, 1.0, 1.0]])
def test_schedules_that_make_no_sense_are_refused(schedule):
    with pytest.raises(ConfigError, match="lr_scheduler"):
        AutoRoundOptions(iters=3, lr_scheduler=schedule)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_scales_move_as_far_as_the_rounding_at_the_largest_code(bits):
    rate, scale_rate = AutoRoundOptions(iters=10).rates(0, bits)
    assert rate == 0.1
    assert scale_rate * 2 ** (bits - 1) == pytest.approx(rate)


def test_scales_are_held_on_demand():
    assert AutoRoundOptions(iters=10, enable_minmax_tuning=False, minmax_lr=0.5).rates(0, bits=4) == (0.1, 0.0)


def test_a_step_sees_the_samples_of_all_accumulated_batches():
    assert AutoRoundOptions(batch_size=3, gradient_accumulate_steps=4).samples_per_step == 12
