from functools import partial

import numpy as np
import pytest
import torch

from neural_compressor.adaptor.evaluation import evaluate_batches
from neural_compressor.errors import ConfigError, EvaluationError
from neural_compressor.tuning.criterion import Criterion
from neural_compressor.tuning.evaluator import Evaluator


def returning(value):
    def eval_func(model):
        return value

    return Evaluator(eval_func=eval_func)


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        np.float32(0.5),
        np.array(0.5),
        np.array([[0.5]]),
        torch.tensor(0.5),
        torch.tensor([0.5], requires_grad=True),
    ],
    ids=["float", "numpy scalar", "0-d array", "one-element array", "0-d tensor", "one-element tensor"],
)
def test_one_number_in_any_dress_is_taken(value):
    result = returning(value)("model")
    assert result == 0.5
    assert type(result) is float


def test_an_int_is_a_number():
    assert returning(3)("model") == 3.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned None.*return statement missing"),
        (float("nan"), "returned nan"),
        (float("-inf"), "returned -inf"),
        (torch.tensor(float("nan")), "returned nan"),
        ("0.9", "returned a str"),
        (True, "returned a bool"),
        (np.bool_(True), "returned a bool"),
        ((0.9, 0.8), "returned a tuple"),
        ({"acc": 0.9}, "returned a dict"),
        (np.zeros(3), r"returned a ndarray of shape \(3,\)"),
        (torch.zeros(2, 2), r"returned a Tensor of shape \(2, 2\)"),
        (1j, "returned a complex"),
    ],
)
def test_anything_else_is_an_error_that_says_what_to_return(value, message):
    with pytest.raises(EvaluationError, match=message) as caught:
        returning(value)("model")
    assert "eval_func" in str(caught.value)
    assert "return one finite number" in str(caught.value)


def test_an_error_inside_is_named_and_chained():
    def broken(model):
        raise KeyError("labels")

    with pytest.raises(EvaluationError, match=r"broken raised KeyError: 'labels'") as caught:
        Evaluator(eval_func=broken)("model")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_value_that_is_not_callable_is_refused():
    with pytest.raises(ConfigError, match="eval_func must be a function"):
        Evaluator(eval_func=0.9)


def test_half_an_evaluation_is_refused():
    for half in ({}, {"eval_dataloader": [1]}, {"eval_metric": "mse"}):
        with pytest.raises(ConfigError, match="eval_dataloader together with an eval_metric"):
            Evaluator(Doubling(), **half)


def test_identity_follows_the_code_and_not_the_object():
    def make(threshold):
        def evaluate(model):
            return 1.0 if model > threshold else 0.0

        return evaluate

    def changed(model):
        return 2.0

    same = [Evaluator(eval_func=make(1)).identity, Evaluator(eval_func=make(1)).identity]
    assert same[0] == same[1]
    changed.__qualname__ = make(1).__qualname__
    assert Evaluator(eval_func=changed).identity != same[0]
    assert Evaluator(eval_func=make(2)).identity != same[0]
    assert Evaluator(eval_func=partial(make(1))).identity


class Doubling:
    """The part of an adaptor that evaluation needs."""

    def predict(self, model, inputs):
        return model * np.asarray(inputs)

    def evaluate(self, model, dataloader, metrics):
        return evaluate_batches(self, model, dataloader, metrics=metrics)


def test_metric_over_a_dataloader_starts_anew_for_each_model():
    loader = [([1.0, 2.0], [2.0, 4.0]), ([3.0], [6.0])]
    evaluator = Evaluator(Doubling(), eval_dataloader=loader, eval_metric="mae")
    assert evaluator(2.0) == 0.0
    assert evaluator(3.0) == pytest.approx((1 + 2 + 3) / 3)
    assert evaluator(2.0) == 0.0


def test_a_lower_is_better_metric_under_a_higher_is_better_promise_is_refused():
    evaluator = Evaluator(Doubling(), eval_dataloader=[([1.0], [2.0])], eval_metric="mse")
    with pytest.raises(ConfigError, match=r"better when lower.*AccuracyCriterion\(higher_is_better=False\)"):
        evaluator.check(Criterion(higher_is_better=True))
    evaluator.check(Criterion(higher_is_better=False))


def test_a_dataloader_that_runs_dry_is_refused_up_front():
    with pytest.raises(ConfigError, match=r"eval_dataloader is a generator.*only once"):
        Evaluator(Doubling(), eval_dataloader=(batch for batch in []), eval_metric="mse")


class Margin:
    def __init__(self, width):
        self.width = width
        self.reset()

    def reset(self):
        self.total = 0.0

    def update(self, preds, labels):
        self.total += abs(preds - labels) < self.width

    def result(self):
        return self.total


@pytest.mark.parametrize("other", [{"eval_metric": {"topk": {"k": 2}}}, {"eval_dataloader": [([1.0], [3])]}])
def test_identity_follows_the_metric_and_the_data(other):
    def known(**changed):
        usual = {"eval_dataloader": [([1.0], [2])], "eval_metric": {"topk": {"k": 1}}}
        return Evaluator(Doubling(), **usual | changed).identity

    assert known() == known() != known(**other)


def test_a_metric_is_known_by_its_settings_and_not_by_what_it_has_counted():
    def known(metric):
        return Evaluator(Doubling(), eval_dataloader=[([1.0], [2.0])], eval_metric=metric).identity

    used = Margin(1.0)
    used.total = 7.0
    assert known(Margin(1.0)) == known(used) != known(Margin(2.0))
