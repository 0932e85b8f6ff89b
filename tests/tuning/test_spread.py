"""Intervals of accuracies and of losses, against formulas from the book and against resampling."""

import math

import numpy as np
import pytest

from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.evaluator import Evaluator
from neural_compressor.tuning.metrics import Metric, resolve_metric
from neural_compressor.tuning.result import Measurement, Trial
from neural_compressor.tuning.spread import loss_spread
from neural_compressor.tuning.verdict import undecided, verdict

RNG = np.random.default_rng(0)
COUNT = 400
LABELS = RNG.integers(0, 3, COUNT)
HARD = RNG.random(COUNT) < 0.3
FLOAT = np.where(HARD, RNG.integers(0, 3, COUNT), LABELS)
QUANTIZED = np.where(RNG.random(COUNT) < 0.08, RNG.integers(0, 3, COUNT), FLOAT)
TARGETS = RNG.standard_normal((COUNT, 4))
NEAR = TARGETS + RNG.standard_normal((COUNT, 4)) * RNG.random((COUNT, 1))


def measured(metric, preds, labels, batch=37):
    metric = resolve_metric(metric)
    metric.reset()
    for start in range(0, len(labels), batch):
        metric.update(preds[start : start + batch], labels[start : start + batch])
    return Measurement(None).with_evaluation(metric.result(), metric.evidence())


def resampled(compute, rounds=600):
    """Half the width of the 95% interval, by the bootstrap."""
    rng = np.random.default_rng(1)
    return 1.96 * np.std([compute(rng.integers(0, COUNT, COUNT)) for _ in range(rounds)])


def test_an_accuracy_has_the_spread_of_a_binomial():
    share = (FLOAT == LABELS).mean()
    found = measured("accuracy", FLOAT, LABELS)
    assert found.accuracy_samples == COUNT
    expected = 1.96 * math.sqrt(share * (1 - share) / (COUNT - 1) + 1 / COUNT**2)
    assert found.accuracy_spread == pytest.approx(expected)


def test_a_difference_of_accuracies_has_the_spread_of_matched_pairs():
    """McNemar: of those that only one of two models gets right, b and c."""
    b = ((FLOAT == LABELS) & (QUANTIZED != LABELS)).sum()
    c = ((FLOAT != LABELS) & (QUANTIZED == LABELS)).sum()
    assert b > c >= 0
    before, after = (measured("accuracy", preds, LABELS) for preds in (FLOAT, QUANTIZED))
    found = loss_spread(Criterion(relative=False), before, after)
    variance = (b + c - (b - c) ** 2 / COUNT) / COUNT**2 * COUNT / (COUNT - 1)
    assert found == pytest.approx(1.96 * math.sqrt(variance + 1 / COUNT**2))
    assert found < 0.6 * after.accuracy_spread, "what is hard for both cancels out"


def test_no_difference_among_few_samples_is_not_certainty():
    before = measured("accuracy", FLOAT[:50], LABELS[:50])
    assert loss_spread(Criterion(relative=False), before, before) == pytest.approx(1.96 / 50)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "mse", "rmse", "mae"])
def test_spreads_are_those_of_resampled_data(metric):
    preds, labels = (NEAR, TARGETS) if metric.endswith("e") and metric != "accuracy" else (QUANTIZED, LABELS)

    def compute(rows):
        return measured(metric, preds[rows], labels[rows], batch=COUNT).accuracy

    assert measured(metric, preds, labels).accuracy_spread == pytest.approx(resampled(compute), rel=0.1)


def test_a_relative_loss_has_the_spread_of_resampled_data():
    criterion = Criterion()

    def loss(rows):
        before, after = (measured("accuracy", preds[rows], LABELS[rows], COUNT) for preds in (FLOAT, QUANTIZED))
        return criterion.loss(before.accuracy, after.accuracy)

    before, after = (measured("accuracy", preds, LABELS) for preds in (FLOAT, QUANTIZED))
    # The sample more on which they differ makes it a little wider.
    assert loss_spread(criterion, before, after) == pytest.approx(resampled(loss), rel=0.15)


def test_tokens_of_one_sample_are_no_samples_of_their_own():
    tokens = np.repeat((FLOAT == LABELS)[:, None], 8, axis=1).astype(int)
    together = measured("accuracy", tokens, np.ones_like(tokens))
    assert together.accuracy_samples == COUNT
    assert together.accuracy_spread == pytest.approx(measured("accuracy", FLOAT, LABELS).accuracy_spread, rel=0.01)


def test_a_function_of_batches_has_the_spread_of_batches():
    preds = (FLOAT == LABELS).astype(float)
    found = measured(lambda p, y: p.mean(), preds, LABELS, batch=10)
    means = preds.reshape(-1, 10).mean(axis=1)
    assert found.accuracy_samples == COUNT
    assert found.accuracy_spread == pytest.approx(1.96 * means.std(ddof=1) / math.sqrt(len(means)))


class Total:
    def __init__(self):
        self.right = []

    def update(self, preds, labels):
        self.right += (preds == labels).tolist()

    def result(self):
        return float(np.mean(self.right))


@pytest.mark.parametrize("metric", [Total, Total()], ids=["class", "object"])
def test_a_metric_of_the_user_tells_how_many_and_no_more(metric):
    found = measured(metric, FLOAT, LABELS)
    assert (found.accuracy_samples, found.accuracy_spread) == (COUNT, None)


def test_a_function_of_the_model_tells_nothing():
    value, evidence = Evaluator(eval_func=lambda model: 0.5).evaluate("model")
    assert value == 0.5
    assert evidence.samples is None
    assert evidence.half_width() is None


def test_one_sample_has_no_spread():
    assert measured("accuracy", FLOAT[:1], LABELS[:1]).accuracy_spread is None


def test_a_metric_of_ours_by_its_old_name_tells_all():
    from neural_compressor.metric import Metric as Named

    assert isinstance(Named(name="topk", k=1), Metric)
    assert measured(Named(name="accuracy"), FLOAT, LABELS).accuracy_spread is not None


@pytest.mark.parametrize(
    ("loss", "spread", "sentence"),
    [
        (0.004, 0.006, "promise met: trial 1 loses 0.4% ± 0.6% (within the noise) where 1.0% is allowed"),
        (0.004, 0.002, "promise met: trial 1 loses 0.4% ± 0.2% where 1.0% is allowed"),
        (-0.004, 0.006, "promise met: trial 1 gains 0.4% ± 0.6% (within the noise) where 1.0% is allowed"),
        (0.0, 0.001, "promise met: trial 1 loses 0.0% ± 0.1% (within the noise) where 1.0% is allowed"),
    ],
)
def test_the_verdict_says_how_well_a_loss_is_known(loss, spread, sentence):
    from neural_compressor.schemes import Plan

    best = Trial(1, "default", Plan({}), Measurement(0.8), loss, True, 1.0, 1.0, loss_spread=spread)
    assert verdict(best, Measurement(0.8), Criterion()) == sentence


@pytest.mark.parametrize(
    ("loss", "passed", "said"),
    [
        (0.004, True, "500 samples are too few to be sure that the promise is kept: the loss is known to ± 0.7%"),
        (0.012, False, "500 samples are too few to be sure that the promise is not kept: the loss is known to ± 0.7%"),
        (0.002, True, ""),
        (0.02, False, ""),
    ],
)
def test_too_few_samples_for_the_promise_are_said(loss, passed, said):
    from neural_compressor.schemes import Plan

    best = Trial(1, "default", Plan({}), Measurement(0.8), loss, passed, 1.0, 1.0, loss_spread=0.007)
    assert undecided(best, Measurement(0.8, accuracy_samples=500), Criterion()) == said
