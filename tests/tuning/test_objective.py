import dataclasses
import math

import pytest
from toy_tuning import plan_of

from neural_compressor.config import TuningCriterion
from neural_compressor.errors import ConfigError
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.measure import NOISE
from neural_compressor.tuning.objective import Scoring, best_trial, finalists
from neural_compressor.tuning.result import Measurement, Trial

BASELINE = Measurement(accuracy=0.8, latency_ms=12.0, size_bytes=1000, footprint_bytes=500)
SMALL = Measurement(accuracy=0.6, latency_ms=4.0, size_bytes=250, footprint_bytes=1000)


@pytest.mark.parametrize(
    ("spec", "score"),
    [
        ("performance", 3.0),
        ("modelsize", 4.0),
        ("footprint", 0.5),
        ("accuracy", 0.75),
        (["performance", "modelsize"], 3.5),
        ({"objective": ["performance", "modelsize"], "weight": [0.25, 0.75]}, 3.75),
        ({"objective": ["accuracy", "performance"], "weight": [3, 1], "higher_is_better": [True, False]}, 1.3125),
        ({"objective": "modelsize", "weight": 0.2}, 4.0),
    ],
)
def test_score_against_hand_computed_cases(spec, score):
    assert Scoring.from_config(spec, Criterion()).score(BASELINE, SMALL, Criterion()) == pytest.approx(score)


@pytest.mark.parametrize("spec", ["performance", "accuracy", "modelsize", "footprint", ["accuracy", "footprint"]])
def test_the_baseline_scores_one(spec):
    assert Scoring.from_config(spec, Criterion()).score(BASELINE, BASELINE, Criterion()) == pytest.approx(1.0)


def test_accuracy_follows_the_direction_of_the_criterion():
    scoring = Scoring.from_config("accuracy", Criterion())
    better = Measurement(accuracy=0.4)
    assert scoring.score(BASELINE, better, Criterion(higher_is_better=False)) == pytest.approx(1.5)
    assert scoring.score(BASELINE, better, Criterion(higher_is_better=True)) == pytest.approx(0.5)


def test_what_was_not_measured_counts_as_no_change_and_is_told():
    scoring = Scoring.from_config(["performance", "modelsize"], Criterion())
    untimed = Measurement(0.8, None, 250)
    assert scoring.score(BASELINE, untimed, Criterion()) == pytest.approx((1 + 4) / 2)
    assert scoring.unmeasured(untimed) == ["performance"]


def test_it_reads_what_a_config_holds():
    conf = TuningCriterion(objective={"objective": ["modelsize", "accuracy"], "weight": [3, 1]})
    assert Scoring.from_config(conf.objective, Criterion()).weights == {"modelsize": 3.0, "accuracy": 1.0}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("speed", "unknown objective 'speed'"),
        ([], "no objective"),
        (["accuracy", "accuracy"], "more than once"),
        ({"objective": ["accuracy", "modelsize"], "weight": [1]}, "1 values for 2 objectives"),
        ({"objective": ["performance"], "higher_is_better": [True]}, "higher_is_better to False"),
        (
            {"objective": ["accuracy"], "higher_is_better": [False]},
            "lower is better, and the accuracy criterion the opp",
        ),
    ],
)
def test_bad_objectives_are_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        Scoring.from_config(spec, Criterion())


def trial(number, loss, passed, score, error="", noise=0.0, size=None):
    measured = None if size is None else Measurement(0.8, 1.0, size)
    return Trial(number, "s", plan_of("a"), measured, loss, passed, score, 0.0, error=error, noise=noise)


@pytest.mark.parametrize(
    ("trials", "best"),
    [
        ([trial(1, 0.0, True, 1.0), trial(2, 0.009, True, 2.0), trial(3, 0.5, False, 9.0)], 2),
        ([trial(1, 0.005, True, 2.0), trial(2, 0.004, True, 2.0)], 2),
        ([trial(1, 0.005, True, 2.0), trial(2, 0.005, True, 2.0)], 1),
        ([trial(1, 0.5, False, 9.0), trial(2, 0.3, False, 1.0), trial(3, math.inf, False, 0.0, "boom")], 2),
        ([trial(1, math.inf, False, 0.0, "boom")], None),
        ([trial(1, 0.0, True, 2.0, noise=0.1, size=300), trial(2, 0.005, True, 1.95, noise=0.1, size=250)], 2),
        ([trial(1, 0.005, True, 2.0, noise=0.1, size=250), trial(2, 0.0, True, 1.95, noise=0.1, size=250)], 2),
        ([trial(1, 0.0, True, 2.0, noise=0.1, size=300), trial(2, 0.0, True, 1.8, noise=0.1, size=250)], 1),
        ([trial(1, 0.0, True, 2.0, noise=0.1, size=300), trial(2, 0.0, False, 1.95, noise=0.1, size=250)], 1),
        ([], None),
    ],
    ids=[
        "highest score among passing",
        "tie: lower loss",
        "tie: earlier",
        "none passes: lowest loss",
        "failed",
        "a tie within the noise: smaller",
        "a tie within the noise and in size: lower loss",
        "beyond the noise: higher score",
        "a tie that misses the promise is none",
        "empty",
    ],
)
def test_best_trial(trials, best):
    chosen = best_trial(trials)
    assert (chosen.number if chosen else None) == best


def test_finalists_are_those_within_the_noise_of_the_highest_score():
    trials = [
        trial(1, 0.0, True, 1.95, noise=0.1, size=300),
        trial(2, 0.0, True, 2.0, noise=0.1, size=250),
        trial(3, 0.0, True, 1.5, noise=0.1, size=200),
        trial(4, 0.0, False, 2.0, noise=0.1, size=100),
    ]
    assert [found.number for found in finalists(trials)] == [2, 1]
    further = trial(5, 0.0, True, 1.85, noise=0.1, size=200)
    assert [found.number for found in finalists([*trials, further])] == [2, 1]
    assert [found.number for found in finalists([*trials, further], sum)] == [5, 2, 1]


@pytest.mark.parametrize(
    ("spec", "noise"),
    # three times as fast: a spread of 20% of that, and its share of the score
    [("performance", 0.6), (["performance", "modelsize"], 0.3), ("modelsize", 0.0)],
)
def test_the_noise_of_a_score_is_that_of_its_latency(spec, noise):
    scoring = Scoring.from_config(spec, Criterion())
    measured = dataclasses.replace(SMALL, latency_spread=0.2)
    assert scoring.noise(BASELINE, measured, Criterion()) == pytest.approx(noise)
    assert scoring.noise(BASELINE, Measurement(0.6, None, 250), Criterion()) == 0.0


def test_a_narrow_interval_does_not_make_a_difference_of_a_few_percent_one():
    narrow = dataclasses.replace(SMALL, latency_spread=0.0001)
    assert Scoring({"performance": 1.0}).noise(BASELINE, narrow, Criterion()) == pytest.approx(3.0 * NOISE)
