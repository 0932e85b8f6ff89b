import pytest
from toy_tuning import plan_of

from neural_compressor.errors import EvaluationError, QuantizationError
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.result import Measurement, Trial
from neural_compressor.tuning.verdict import all_failed, verdict

BASELINE = Measurement(0.9, 10.0, 1000)


def trial(loss, passed, measurement=None, number=4, error=""):
    return Trial(number, "s", plan_of("a"), measurement or Measurement(0.5), loss, passed, 1.0, 0.0, error=error)


@pytest.mark.parametrize(
    ("best", "criterion", "sentence"),
    [
        (trial(0.004, True), Criterion(), "promise met: trial 4 loses 0.4% where 1.0% is allowed"),
        (trial(-0.002, True), Criterion(), "promise met: trial 4 gains 0.2% where 1.0% is allowed"),
        (
            trial(6e-7, True),
            Criterion(tolerable_loss=1e-6),
            "promise met: trial 4 loses 0.00006% where 0.0001% is allowed",
        ),
        (trial(0.032, False), Criterion(), "promise not met: best loses 3.2% where 1.0% is allowed (trial 4)"),
        (trial(0.0100004, False), Criterion(), "promise not met: best loses 1.00004% where 1.0% is allowed (trial 4)"),
        (trial(0.01, True), Criterion(), "promise met: trial 4 loses 1.0% where 1.0% is allowed"),
        (
            trial(0.25, False),
            Criterion(relative=False),
            "promise not met: best loses 0.25 where 0.01 is allowed (trial 4)",
        ),
        (
            trial(0.0, True, Measurement(0.9, 20.0, 250)),
            Criterion(),
            "promise met: trial 4 loses 0.0% where 1.0% is allowed; 4.00x smaller, 2.00x slower",
        ),
        (
            trial(0.0, True, Measurement(0.9, 10.2, 250)),
            Criterion(),
            "promise met: trial 4 loses 0.0% where 1.0% is allowed; 4.00x smaller, as fast",
        ),
        (
            trial(0.0100000004, True),
            Criterion(),
            "promise met: trial 4 loses 1.0% where 1.0% is allowed",
        ),
        (
            trial(3e-10, True),
            Criterion(tolerable_loss=0.0),
            "promise met: trial 4 loses 0.0% where 0.0% is allowed",
        ),
        (
            trial(3e-8, False),
            Criterion(tolerable_loss=0.0),
            "promise not met: best loses a trace (3e-08) more than the 0.0% allowed (trial 4)",
        ),
        (
            trial(0.01 + 2e-8, False),
            Criterion(),
            "promise not met: best loses a trace (2e-08) more than the 1.0% allowed (trial 4)",
        ),
        (trial(-3e-8, True), Criterion(), "promise met: trial 4 loses 0.0% where 1.0% is allowed"),
    ],
    ids=[
        "kept",
        "gained",
        "a small promise",
        "missed",
        "just missed",
        "exactly",
        "absolute",
        "gains and costs",
        "as fast",
        "rounding of the limit",
        "rounding of nothing",
        "a trace of nothing",
        "a trace of the limit",
        "a gain nobody sees",
    ],
)
def test_the_sentence(best, criterion, sentence):
    assert verdict(best, BASELINE, criterion) == sentence


def test_failures_are_grouped_by_reason_and_a_long_list_is_cut():
    trials = [trial(1, False, number=n, error=f"ValueError: reason {min(n, 7)}") for n in range(1, 20)]
    error = all_failed(trials)
    assert type(error) is QuantizationError
    lines = str(error).splitlines()
    assert lines[0].startswith("each of the 19 trials failed")
    assert lines[1] == "  trial 1: ValueError: reason 1"
    assert lines[-1] == "  ... and 2 more reasons, kept in the journal"


def test_the_kind_of_error_follows_the_reasons():
    assert type(all_failed([trial(1, False, error="EvaluationError: nan")])) is EvaluationError
    assert str(all_failed([trial(1, False, error="EvaluationError: nan")])).startswith("the only trial failed")
    mixed = [trial(1, False, error="EvaluationError: nan"), trial(1, False, error="ValueError: x")]
    assert type(all_failed(mixed)) is QuantizationError
