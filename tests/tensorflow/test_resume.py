"""A run of tuning that was killed goes on with the same arguments, and repeats no trial."""

import keras
import numpy as np
import pytest

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.tensorflow import DynamicQuantConfig, StaticQuantConfig, TuningConfig, autotune

DATA = [np.random.default_rng(0).normal(size=(16, 12)).astype("float32")]


def network():
    keras.utils.set_random_seed(3)
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((12,), name="x"), layers.Dense(16, activation="relu", name="one"), layers.Dense(4, name="two")]
    )


def evaluation(killed_at):
    """Says that nothing but float will do, and is killed at one call; and the calls that were made."""
    calls = []

    def evaluate(model):
        calls.append(len(calls))
        if len(calls) == killed_at:
            raise KeyboardInterrupt
        out = np.asarray(model.predict(DATA[0], verbose=0))
        return 1.0 if np.abs(out - EXPECTED).max() < 1e-4 else 0.5 + 1e-3 * float(np.abs(out).mean())

    return calls, evaluate


EXPECTED = network().predict(DATA[0], verbose=0)


def by_autotune(folder, evaluate):
    configs = [StaticQuantConfig(), StaticQuantConfig(weight_granularity="per_tensor"), DynamicQuantConfig()]
    tuning = TuningConfig(configs, tolerable_loss=0.01, max_trials=5, workspace=folder / "ws")
    return autotune(network(), tuning, evaluate, calib_dataloader=DATA, quiet=True).tuning


def by_fit(folder, evaluate, model=None):
    conf = PostTrainingQuantConfig(quant_level=1, tuning_criterion=TuningCriterion(max_trials=5, objective="modelsize"))
    model = network() if model is None else model
    return quantization.fit(
        model, conf, calib_dataloader=DATA, eval_func=evaluate, workspace=folder / "ws", quiet=True
    ).result


def by_fit_of_a_saved_model(folder, evaluate):
    saved = folder.parent / "saved"
    if not saved.exists():
        network().export(saved, verbose=False)
    return by_fit(folder, evaluate, str(saved))


@pytest.mark.parametrize("tune", [by_autotune, by_fit, by_fit_of_a_saved_model])
def test_a_killed_run_goes_on(tune, tmp_path):
    whole, never_killed = evaluation(killed_at=0)
    expected = tune(tmp_path / "whole", never_killed)
    assert len(expected.trials) > 3
    calls, evaluate = evaluation(killed_at=4)  # float, two trials, and this
    with pytest.raises(KeyboardInterrupt):
        tune(tmp_path / "killed", evaluate)
    found = tune(tmp_path / "killed", evaluate)
    assert len(calls) - 4 == len(whole) - 2  # float once more, and only what was missing
    assert [trial.plan for trial in found.trials] == [trial.plan for trial in expected.trials]
    assert [trial.measurement.accuracy for trial in found.trials] == [
        trial.measurement.accuracy for trial in expected.trials
    ]
