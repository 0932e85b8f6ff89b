import dataclasses
import os
from contextlib import nullcontext

import numpy as np
import pytest
from toy_tuning import COSTS, Accuracy, ToyAdaptor, ToyModel

from neural_compressor.tuning.bench import Bench
from neural_compressor.tuning.evaluator import Evaluator
from neural_compressor.tuning.result import Measurement

EVALUATOR = Evaluator(eval_func=Accuracy())


class Hungry(ToyAdaptor):
    """Needs 40 MB to predict."""

    def predict(self, model, inputs):
        return np.ones(40 * 2**20, dtype=np.uint8)[:1]


def test_without_an_example_only_accuracy_and_size_are_measured():
    assert Bench(ToyAdaptor(), EVALUATOR).measure(ToyModel(COSTS, "a")) == Measurement(0.898, None, 1300, None)


def test_without_an_evaluator_there_is_no_accuracy():
    measured = Bench(ToyAdaptor(), None, example_batch=1).measure(ToyModel(COSTS))
    assert measured.accuracy is None
    assert measured.latency_ms > 0


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system keeps one peak for all")
def test_the_footprint_is_what_a_prediction_needs():
    measured = Bench(Hungry(), EVALUATOR, example_batch=1, with_footprint=True).measure(ToyModel(COSTS))
    assert 30 * 2**20 < measured.footprint_bytes < 80 * 2**20


def test_what_is_measured_is_part_of_the_identity():
    benches = [Bench(ToyAdaptor(), EVALUATOR, *options) for options in ((), (1,), (1, True))]
    assert len({bench.identity for bench in benches}) == 3


class Timed(ToyAdaptor):
    """Predictions take the CPU time of the number of ops in float; a machine that is busy adds to the wall clock only."""

    def __init__(self, alone=True):
        super().__init__()
        self.alone, self.cpu, self.wall, self.order = alone, 0.0, 0.0, []

    def predict(self, model, inputs):
        seconds = 0.001 * (len(model.costs) - 0.5 * len(model.quantized))
        self.order.append(len(model.quantized))
        self.cpu += seconds
        self.wall += seconds * (1 + len(self.order) % 7)
        return inputs

    def on_one_thread(self, models):
        return nullcontext(self.alone)


@pytest.fixture
def timed(monkeypatch):
    adaptor = Timed()
    monkeypatch.setattr("time.thread_time", lambda: adaptor.cpu)
    monkeypatch.setattr("time.perf_counter", lambda: adaptor.wall)
    return adaptor


def test_latency_is_the_cpu_time_of_the_thread_and_has_a_spread_and_a_count(timed):
    measured = Bench(timed, EVALUATOR, example_batch=1).measure(ToyModel(COSTS))
    assert measured.latency_ms == pytest.approx(4.0)
    assert measured.latency_spread == pytest.approx(0.0)
    assert measured.latency_rounds == len(timed.order) - 2  # after the warm-up


def test_where_work_is_not_kept_to_one_thread_the_wall_clock_counts(timed):
    timed.alone = False
    measured = Bench(timed, EVALUATOR, example_batch=1).measure(ToyModel(COSTS))
    assert measured.latency_ms > 8.0
    assert measured.latency_spread > 0.1


def test_a_latency_is_a_multiple_of_the_reference_measured_in_turns(timed):
    bench = Bench(timed, EVALUATOR, example_batch=1)
    float_model = ToyModel(COSTS)
    known = dataclasses.replace(bench.measure(float_model), latency_ms=100.0)
    assert bench.against(float_model, known).measure(ToyModel(COSTS, "ab")).latency_ms == pytest.approx(75.0)


def test_models_are_measured_again_together_and_keep_the_rest_of_what_was_measured(timed):
    bench = Bench(timed, EVALUATOR, example_batch=1)
    float_model, models = ToyModel(COSTS), [ToyModel(COSTS, "ab"), ToyModel(COSTS, "abcd")]
    bench = bench.against(float_model, bench.measure(float_model))
    before = [bench.measure(model) for model in models]
    timed.order.clear()
    again = bench.measure_again(models, before)
    turns = [sorted(timed.order[i : i + 3]) for i in range(0, len(timed.order), 3)]
    assert all(each == [0, 2, 4] for each in turns)  # all of them in turns
    assert [m.latency_ms for m in again] == pytest.approx([3.0, 2.0])
    assert [m.accuracy for m in again] == [m.accuracy for m in before]
    assert all(m.latency_rounds > b.latency_rounds for m, b in zip(again, before, strict=True))
