"""The evaluation loop: what it returns, whom it calls, what it writes."""

import logging
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from neural_compressor.adaptor.evaluation import evaluate_batches
from neural_compressor.errors import EvaluationError, MissingDependencyError


class Doubler:
    """The part of an adaptor that evaluation uses: predicts twice the input."""

    def __init__(self, workspace="."):
        self.info = {"workspace": str(workspace)}
        self.seen = []

    def predict(self, model, inputs):
        self.seen.append(inputs)
        return 2 * inputs

    def inspect_tensor(self, model, dataloader, op_list=(), iteration_list=(1,), inspect_type="activation"):
        assert inspect_type == "all"
        activations = [{"fc": {"output0": 2 * inputs}} for inputs, _ in dataloader]
        return {"weight": {"fc": {"weight": np.arange(6.0).reshape(2, 3)}}, "activation": activations}


class MetricsOnly(Doubler):
    def inspect_tensor(self, *args, **kwargs):
        raise NotImplementedError("MetricsOnly does not offer 'inspect_tensor'")


class Hits:
    def __init__(self):
        self.hits = 0

    def update(self, predictions, labels):
        self.hits += int((predictions == labels).sum())

    def result(self):
        return self.hits


class ResettingHits(Hits):
    def reset(self):
        self.hits = 0


DATA = [(np.array([1.0, 2.0]), np.array([2.0, 0.0])), (np.array([3.0, 4.0]), np.array([6.0, 8.0]))]


def test_one_metric_gives_a_number_several_a_list_none_zero():
    assert evaluate_batches(Doubler(), None, DATA, metrics=[Hits()]) == 3
    assert evaluate_batches(Doubler(), None, DATA, metrics=[Hits(), Hits()]) == [3, 3]
    assert evaluate_batches(Doubler(), None, DATA) == 0
    assert evaluate_batches(Doubler(), None, DATA, metrics=[]) == 0


def test_metric_with_reset_starts_anew():
    metric = ResettingHits()
    assert [evaluate_batches(Doubler(), None, DATA, metrics=[metric]) for _ in range(2)] == [3, 3]


def test_iteration_stops_without_fetching_one_more_batch():
    batches = iter(DATA)
    assert evaluate_batches(Doubler(), None, batches, metrics=[Hits()], iteration=1) == 1
    assert len(list(batches)) == 1


def test_postprocess_gets_and_gives_the_pair():
    def negate(pair):
        predictions, labels = pair
        return -predictions, -labels

    assert evaluate_batches(Doubler(), None, DATA, postprocess=negate, metrics=[Hits()]) == 3


def test_measurer_stands_around_the_prediction_only():
    adaptor, order = Doubler(), []

    class Measurer:
        def start(self):
            order.append(("start", len(adaptor.seen)))

        def end(self):
            order.append(("end", len(adaptor.seen)))

    evaluate_batches(adaptor, None, DATA, measurer=Measurer())
    assert order == [("start", 0), ("end", 1), ("start", 1), ("end", 2)]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no batch"),
        ([np.zeros(3)], r"batch 0 .* ndarray; each batch has to be a pair"),
        ([DATA[0], (1, 2, 3)], r"batch 1 .* tuple of 3 parts"),
    ],
)
def test_bad_batches(batches, message):
    with pytest.raises(EvaluationError, match=message):
        evaluate_batches(Doubler(), None, batches)


def test_event_files_hold_metrics_and_tensors(tmp_path):
    evaluate_batches(Doubler(tmp_path), None, iter(DATA), metrics=[Hits()], tensorboard=True, fp32_baseline=True)
    events = EventAccumulator(str(tmp_path / "runs" / "eval" / "baseline")).Reload()
    assert [e.value for e in events.Scalars("metric/0_Hits")] == [3.0]
    assert set(events.Tags()["histograms"]) == {"weight/fc/weight", "activation/fc/output0"}
    weight = events.Histograms("weight/fc/weight")[0].histogram_value
    assert (weight.min, weight.max, weight.num, weight.sum) == (0, 5, 6, 15)
    # Only the first batch is looked at: [2, 4].
    assert events.Histograms("activation/fc/output0")[0].histogram_value.sum == 6


def test_each_tuning_evaluation_has_its_own_folder(tmp_path):
    for _ in range(2):
        evaluate_batches(Doubler(tmp_path), None, DATA, tensorboard=True)
    assert sorted(path.name for path in (tmp_path / "runs" / "eval").iterdir()) == ["tune_1", "tune_2"]


def test_adaptor_without_inspect_tensor_writes_the_metrics_and_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        evaluate_batches(MetricsOnly(tmp_path), None, DATA, metrics=[Hits()], tensorboard=True)
    events = EventAccumulator(str(tmp_path / "runs" / "eval" / "tune_1")).Reload()
    assert (events.Tags()["scalars"], events.Tags()["histograms"]) == (["metric/0_Hits"], [])
    assert "inspect_tensor" in caplog.text


def test_missing_tensorboard_is_said_before_the_first_prediction(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    adaptor = Doubler()
    with pytest.raises(MissingDependencyError, match=r"open-neural-compressor\[tensorboard\]"):
        evaluate_batches(adaptor, None, DATA, tensorboard=True)
    assert adaptor.seen == []
