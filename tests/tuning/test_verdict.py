import pytest
from toy_tuning import plan_of

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.errors import EvaluationError, QuantizationError
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.result import Measurement, Trial, TuningResult
from neural_compressor.tuning.verdict import all_failed, slower_note, verdict

BASELINE = Measurement(0.9, 10.0, 1000)


def trial(loss, passed, measurement=None, number=4, error=""):
    return Trial(number, "s", plan_of("a"), measurement or Measurement(0.5), loss, passed, 1.0, 0.0, error=error)


@pytest.mark.parametrize(
    ("best", "criterion", "sentence"),
    [
        (trial(0.004, True), Criterion(), "promise met: trial 4 loses 0.4% where 1.0% is allowed"),
        (trial(-0.002, True), Criterion(), "promise met: trial 4 gains 0.2% where 1.0% is allowed"),
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
    ],
    ids=["kept", "gained", "missed", "just missed", "exactly", "absolute", "gains and costs"],
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


def test_a_slower_model_has_a_note_that_says_why():
    ops = [
        OpRecord("a", "Conv2d", "int4", mode="static", simulated=True),
        OpRecord("b", "Conv2d", "int8", mode="static"),
    ]

    def note(milliseconds, ops):
        best = trial(0.0, True, Measurement(0.9, milliseconds, 250))
        return slower_note(TuningResult(BASELINE, [best], best, True, "", "", ops))

    assert note(13.0, ops) == (
        "on this machine the quantized model takes 1.30 times as long as the float one: 1 of its 2 ops are simulated"
    )
    assert note(13.0, ops[1:]).endswith("do not pay at these shapes")
    assert note(10.3, ops) == note(None, ops) == ""
