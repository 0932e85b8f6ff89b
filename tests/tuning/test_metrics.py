from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from neural_compressor.errors import ConfigError, EvaluationError
from neural_compressor.tuning.metrics import METRICS, resolve_metric


def feed(metric, preds, labels, cuts):
    """Feed in batches cut at the given places."""
    metric.reset()
    edges = [0, *sorted({min(c, len(labels)) for c in cuts} - {0}), len(labels)]
    for start, stop in pairwise(edges):
        if stop > start:
            metric.update(preds[start:stop], labels[start:stop])
    return metric.result()


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 6), st.lists(st.integers(1, 40), max_size=4))
@settings(max_examples=40)
def test_classification_metrics_agree_with_scikit_learn_for_any_batching(seed, samples, classes, cuts):
    rng = np.random.default_rng(seed)
    scores, labels = rng.random((samples, classes)), rng.integers(0, classes, samples)
    predicted = scores.argmax(axis=1)
    for name in ("accuracy", "top1"):
        assert feed(resolve_metric(name), scores, labels, cuts) == pytest.approx((predicted == labels).mean())
    k = min(2, classes - 1)
    every = np.arange(classes)
    if classes > 2:
        expected = reference.top_k_accuracy_score(labels, scores, k=k, labels=every)
        assert feed(resolve_metric({"topk": {"k": k}}), scores, labels, cuts) == pytest.approx(expected)
    seen = set(labels) | set(predicted)
    average = "binary" if seen <= {0, 1} else "macro"
    expected = reference.f1_score(labels, predicted, average=average, zero_division=0)
    assert feed(resolve_metric("f1"), scores, labels, cuts) == pytest.approx(expected)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.lists(st.integers(1, 40), max_size=4), st.booleans())
@settings(max_examples=30)
def test_regression_metrics_agree_with_scikit_learn_on_numpy_and_torch(seed, samples, cuts, on_torch):
    rng = np.random.default_rng(seed)
    preds, labels = rng.normal(size=(samples, 1)), rng.normal(size=samples)
    expected = {
        "mse": reference.mean_squared_error(labels, preds[:, 0]),
        "mae": reference.mean_absolute_error(labels, preds[:, 0]),
        "rmse": reference.root_mean_squared_error(labels, preds[:, 0]),
    }
    if on_torch:
        preds, labels = torch.from_numpy(preds), torch.from_numpy(labels)
    for name, value in expected.items():
        metric = resolve_metric(name)
        assert feed(metric, preds, labels, cuts) == pytest.approx(value)
        assert metric.higher_is_better is False


def test_bfloat16_scores_with_a_gradient():
    metric = resolve_metric("accuracy")
    metric.update(torch.tensor([[0.1, 0.9]], dtype=torch.bfloat16, requires_grad=True), torch.tensor([1]))
    assert metric.result() == 1.0


def test_probabilities_class_numbers_and_one_hot_labels():
    for preds, labels in (
        ([0.2, 0.7], [0, 1]),
        ([[0.2], [0.7]], [0, 1]),
        ([0.0, 1.0], [0, 1]),
        ([3, 1], [3, 1]),
        ([[0.1, 0.9], [0.9, 0.1]], [[0, 1], [1, 0]]),
    ):
        metric = resolve_metric("accuracy")
        metric.update(np.array(preds), np.array(labels))
        assert metric.result() == 1.0


def test_single_logits_are_refused_rather_than_guessed():
    with pytest.raises(EvaluationError, match="not all between 0 and 1"):
        resolve_metric("accuracy").update(np.array([-1.5, 2.5]), np.array([0, 1]))


@pytest.mark.parametrize(("name", "shape"), [("accuracy", (3, 2)), ("mse", (3, 2)), ("topk", (3,))])
def test_shapes_that_do_not_fit_are_an_error(name, shape):
    with pytest.raises(EvaluationError, match=f"metric {name}"):
        resolve_metric(name).update(np.random.default_rng(0).random(shape), np.zeros(5))


def test_a_function_is_averaged_by_batch_size():
    metric = resolve_metric(lambda preds, labels: sum(p == q for p, q in zip(preds, labels, strict=True)) / len(labels))
    metric.update([1, 1, 1], [1, 1, 1])
    metric.update([1], [0])
    assert metric.result() == pytest.approx(0.75)
    assert metric.higher_is_better is None


class Counting:
    """A user's metric without a reset."""

    def __init__(self):
        self.batches = 0

    def update(self, preds, labels):
        self.batches += 1

    def result(self):
        return self.batches


def test_an_object_without_reset_starts_anew_all_the_same():
    metric = resolve_metric(Counting())
    for _ in range(2):
        metric.reset()
        metric.update([1], [1])
    assert metric.result() == 1


def test_a_class_is_instantiated_and_compute_is_understood():
    class Computing:
        def update(self, preds, labels):
            self.last = preds[-1]

        def compute(self):
            return self.last

    metric = resolve_metric(Computing)
    metric.update([1.0, 7.0], [0.0, 0.0])
    assert metric.result() == 7.0


def test_labels_of_losses_may_be_of_any_shape():
    metric = resolve_metric("loss")
    metric.update(torch.tensor(0.5), [torch.zeros(3), torch.zeros(2)])
    metric.update(np.array([2.0]), np.zeros(()))
    assert metric.result() == pytest.approx((0.5 * 2 + 2.0) / 3)


@pytest.mark.parametrize("name", METRICS.names())
def test_no_data_is_an_error(name):
    if name == "bleu":
        pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
    with pytest.raises(EvaluationError, match="saw no data"):
        resolve_metric(name).result()


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("acuracy", "unknown metric 'acuracy'; did you mean 'accuracy'"),
        ({"topk": {"k": 0}}, "positive integer"),
        ({"topk": 0}, "positive integer"),
        ({"topk": {"j": 1}}, "does not take the options"),
        ({"mse": {}, "mae": {}}, "names one metric"),
        (3, "not understood"),
    ],
)
def test_bad_metrics_are_refused(metric, message):
    with pytest.raises(ConfigError, match=message):
        resolve_metric(metric)
