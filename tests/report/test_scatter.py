import re

from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.report.plots import Axis, Mark, scatter

numbers = st.floats(-1e9, 1e9, allow_subnormal=False).map(lambda x: round(x, 6))


@given(st.lists(numbers, min_size=1, max_size=20), st.booleans())
def test_every_value_lies_on_the_axis_and_ticks_are_even(values, from_zero):
    axis = Axis.around(values, from_zero)
    assert all(0 <= axis.share(value) <= 1 for value in values)
    assert 2 <= len(axis.ticks) <= 12
    assert axis.ticks[0] <= min(values)
    assert axis.ticks[-1] >= max(values)
    steps = [b - a for a, b in zip(axis.ticks, axis.ticks[1:], strict=False)]
    assert max(steps) - min(steps) <= 1e-6 * max(steps)


def test_points_stand_where_their_values_are():
    points = [Mark(0, 0.0, "miss", "a"), Mark(100, 1.0, "pass", "b"), Mark(50, 0.5, "pass", "c")]
    svg = scatter(points, title="t", x_label="x", y_label="y", x_text=str)
    at = {tip: (float(x), float(y)) for x, y, tip in re.findall(r'cx="(.*?)" cy="(.*?)" r="5"><title>(.)<', svg)}
    assert at["a"][0] < at["c"][0] < at["b"][0]
    assert at["a"][1] > at["c"][1] > at["b"][1]  # y grows downward on a screen
    assert abs(at["a"][0] + at["b"][0] - 2 * at["c"][0]) < 0.3
    assert abs(at["a"][1] + at["b"][1] - 2 * at["c"][1]) < 0.3


def test_what_is_not_finite_is_left_out_and_texts_are_escaped():
    points = [Mark(1, float("nan"), "miss", "x"), Mark(1, 2, "pass", "<b>"), Mark(2, 3, "pass", "&")]
    svg = scatter(points, title="<t>", x_label="<x>", y_label="<y>", x_text=lambda v: f"<{v}>")
    assert svg.count('class="mark') == 2
    assert not re.findall(r"<(b|t|x|y)>", svg)
    assert "nan" not in svg
