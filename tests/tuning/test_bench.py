import numpy as np
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


def test_the_footprint_is_what_a_prediction_needs():
    measured = Bench(Hungry(), EVALUATOR, example_batch=1, with_footprint=True).measure(ToyModel(COSTS))
    assert 30 * 2**20 < measured.footprint_bytes < 80 * 2**20


def test_what_is_measured_is_part_of_the_identity():
    benches = [Bench(ToyAdaptor(), EVALUATOR, *options) for options in ((), (1,), (1, True))]
    assert len({bench.identity for bench in benches}) == 3
