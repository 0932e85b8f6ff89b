"""Faster means faster than the float model, beyond the noise."""

import dataclasses
from dataclasses import replace

import pytest
from toy_tuning import plan_of

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.objective import Scoring
from neural_compressor.tuning.result import Measurement, Trial, TuningResult
from neural_compressor.tuning.verdict import beats_float, not_faster, slower_note, verdict

BASELINE = Measurement(0.9, 10.0, 1000, latency_spread=0.01)
SIMULATED = OpRecord("a", "Conv2d", "int4", mode="static", simulated=True)
INTEGER = OpRecord("b", "Conv2d", "int8", mode="static")
FLOAT = OpRecord("c", "Linear", "fp32")


def trial(milliseconds, *, passed=True, spread=0.01, size=250, objective=("performance",), number=4):
    measured = Measurement(0.9, milliseconds, size, latency_spread=spread)
    scoring = Scoring(dict.fromkeys(objective, 1.0))
    score, noise = (f(BASELINE, measured, Criterion()) for f in (scoring.score, scoring.noise))
    return Trial(number, "s", plan_of("a"), measured, 0.004, passed, score, 0.0, noise=noise)


@pytest.mark.parametrize(
    ("milliseconds", "spread", "objective", "beats"),
    [
        (5.0, 0.01, ["performance"], True),
        (13.0, 0.01, ["performance"], False),
        (9.8, 0.01, ["performance"], False),
        (9.0, 0.01, ["performance"], True),
        (9.0, 0.2, ["performance"], False),
        (13.0, 0.01, ["performance", "modelsize"], False),
        (10.2, 0.01, ["performance", "modelsize"], True),
        (13.0, 0.01, ["modelsize"], None),
        (None, None, ["performance"], None),
    ],
    ids=[
        "faster",
        "slower",
        "as fast",
        "a little faster",
        "a little faster within a wide spread",
        "smaller and slower",
        "smaller and as fast",
        "speed is no objective",
        "not measured",
    ],
)
def test_whether_a_model_beats_float(milliseconds, spread, objective, beats):
    best = trial(milliseconds, spread=spread, objective=objective)
    assert beats_float(best, BASELINE, Scoring(dict.fromkeys(objective, 1.0))) is beats


def test_of_a_model_that_misses_the_promise_nothing_is_said():
    assert beats_float(trial(13.0, passed=False), BASELINE, Scoring({"performance": 1.0})) is None


def test_the_verdict_on_a_slower_model_says_so_first_and_why():
    best = trial(13.0)
    slow = not_faster(best, BASELINE, [best], [SIMULATED, INTEGER, FLOAT])
    assert verdict(best, BASELINE, Criterion(), slow) == (
        "nothing tried is faster than float here: trial 4 takes 1.30 times as long (1 of its 3 ops are simulated "
        "(1 Conv2d), 1 of its 3 ops stay in float (1 Linear)); it loses 0.4% where 1.0% is allowed; 4.00x smaller"
    )


def test_ops_in_half_precision_are_not_said_to_stay_in_float():
    best, half = trial(13.0), replace(FLOAT, precision="bf16")
    told = not_faster(best, BASELINE, [best], [half, FLOAT])
    assert "1 of its 2 ops compute in bf16 (1 Linear), 1 of its 2 ops stay in float (1 Linear)" in told


def test_a_tie_is_said_to_be_one():
    best = trial(9.8)
    assert not_faster(best, BASELINE, [best], [INTEGER]) == (
        "nothing tried is faster than float here: trial 4 takes as long, within the noise of the measurement "
        "(integer kernels do not pay at these shapes)"
    )


def test_a_faster_model_that_loses_by_the_other_objectives_is_not_called_slow():
    scoring = Scoring({"performance": 0.1, "modelsize": 0.9})
    measured = Measurement(0.9, 5.0, 3000, latency_spread=0.01)
    best = replace(trial(5.0), measurement=measured, score=scoring.score(BASELINE, measured, Criterion()))
    assert beats_float(best, BASELINE, scoring) is False
    told = not_faster(best, BASELINE, [best], [INTEGER])
    assert told == (
        "by all objectives together nothing tried is better than float: trial 4 is 2.00x faster, 3.00x larger"
    )


@pytest.mark.parametrize("weights", [{"performance": 1.0}, {"performance": 0.9, "modelsize": 0.1}])
def test_a_model_that_is_faster_and_smaller_beats_float_whatever_the_noise_of_its_score(weights):
    scoring = Scoring(weights)
    measured = Measurement(0.9, 10.0 / 1.38, 990, latency_spread=0.3)
    score, noise = (f(BASELINE, measured, Criterion()) for f in (scoring.score, scoring.noise))
    assert score < 1 + noise
    assert beats_float(replace(trial(5.0), measurement=measured, score=score, noise=noise), BASELINE, scoring) is True


def test_nothing_tried_is_not_said_where_something_was_faster():
    best = trial(13.0)
    lossy, other = trial(5.0, passed=False), trial(5.0)
    assert not_faster(best, BASELINE, [best, lossy], []).startswith("nothing tried that keeps the promise is faster")
    assert not_faster(best, BASELINE, [best, other], []).startswith("the best by the objectives is not faster")


def test_a_slower_model_has_a_note_that_says_why_unless_the_verdict_does():
    def result(milliseconds, ops):
        best = trial(milliseconds, objective=["modelsize"])
        return TuningResult(BASELINE, [best], best, True, "", "", ops)

    assert slower_note(result(13.0, [SIMULATED, INTEGER])) == (
        "on this machine the quantized model takes 1.30 times as long as the float one: "
        "1 of its 2 ops are simulated (1 Conv2d)"
    )
    assert slower_note(result(13.0, [INTEGER])).endswith("do not pay at these shapes")
    assert slower_note(result(10.3, [INTEGER])) == slower_note(result(None, [INTEGER])) == ""
    assert slower_note(dataclasses.replace(result(13.0, [SIMULATED]), beats_float=False)) == ""


def test_many_kinds_of_ops_are_counted_and_the_rare_ones_summed_up():
    ops = [OpRecord(str(n), kind, "fp32") for n, kind in enumerate("AAABBCCDE")]
    assert not_faster(trial(13.0), BASELINE, [], ops).endswith(
        "(9 of its 9 ops stay in float (3 A, 2 B, 2 C, 2 others))"
    )
