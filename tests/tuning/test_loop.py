import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
from toy_tuning import COSTS, Accuracy, Narrowing, Scripted, ToyAdaptor, ToyModel, plan_of, toy_conf, toy_space

from neural_compressor.errors import CalibrationError, ConfigError, EvaluationError, QuantizationError
from neural_compressor.tuning.loop import tune
from neural_compressor.tuning.reporter import Progress, Reporter
from neural_compressor.tuning.run import TuningRun

SPACE = toy_space()


def scripted(*sets):
    return Scripted(SPACE, options={"sets": list(sets)})


@pytest.fixture
def run(tmp_path):
    """``tune`` on the toy with everything filled in; ``run.adaptor`` and ``run.accuracy`` tell what it did."""

    def run(strategy, conf=None, model=None, **kwargs):
        kwargs.setdefault("evaluator", run.accuracy)
        kwargs.setdefault("workspace", tmp_path / "work")
        return tune(run.adaptor, model or ToyModel(COSTS), conf or toy_conf(), strategy, **kwargs)

    run.adaptor, run.accuracy = ToyAdaptor(), Accuracy()
    return run


def test_stops_at_the_first_model_that_keeps_the_promise(run):
    model, result = run(scripted("abcd", "ab", "a"))
    assert model.quantized == {"a", "b"}
    assert result.met
    assert [trial.passed for trial in result.trials] == [False, True]
    assert result.best is result.trials[1]
    assert result.verdict == "promise met: trial 2 loses 0.67% where 1.0% is allowed; 1.60x smaller"
    assert {op.name for op in result.ops if op.precision == "int8"} == {"a", "b"}
    assert run.accuracy.calls == 3


def test_with_a_timeout_it_goes_on_for_the_best_objective(run):
    model, result = run(scripted("a", "ab", "abcd", "b"), toy_conf(timeout=60))
    assert [trial.number for trial in result.trials] == [1, 2, 3, 4]
    assert model.quantized == {"a", "b"}
    assert result.metadata["stopped"] == "the strategy has nothing more to try"


def test_the_timeout_ends_the_search_after_the_trial_that_passes_it(run, monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    _, result = run(scripted("abcd", "bcd", "cd", "d", "a"), toy_conf(timeout=10))
    assert 1 <= len(result.trials) < 5
    assert result.metadata["stopped"] == "timeout=10 s reached"


def test_max_trials_ends_the_search_and_the_best_is_returned_with_the_distance(run):
    model, result = run(scripted("abcd", "bcd", "acd", "a"), toy_conf(max_trials=3))
    assert not result.met
    assert model.quantized == {"a", "c", "d"}
    assert result.verdict == "promise not met: best loses 3.33% where 1.0% is allowed (trial 3)"
    assert result.metadata["stopped"] == "max_trials=3 reached"


def test_lower_is_better_prefers_the_lowest(run):
    run.accuracy = Accuracy(baseline=10.0, sign=+100)
    model, result = run(scripted("d", "a", "abcd"), toy_conf(higher_is_better=False))
    assert model.quantized == {"a"}
    assert not result.met
    assert result.best.loss == pytest.approx(0.02)


def test_a_zero_baseline_is_said_in_the_verdict(run):
    run.accuracy = Accuracy(baseline=0.0, sign=+1)
    _, result = run(scripted("d", "a"), toy_conf(higher_is_better=False))
    assert result.met
    assert result.best.loss == pytest.approx(0.002)
    assert "baseline is 0" in result.verdict
    assert "baseline is 0" in result.criterion


def test_a_plan_proposed_twice_is_evaluated_once(run):
    _, result = run(scripted("abcd", "abcd", "cd", "abcd"), toy_conf(max_trials=3))
    assert len(result.trials) == 2
    assert run.accuracy.calls == 1 + 2


def test_a_strategy_that_only_repeats_itself_is_stopped(run):
    _, result = run(scripted(*["abcd"] * 2000))
    assert len(result.trials) == 1
    assert "repeats" in result.metadata["stopped"]


def test_no_evaluation_quantizes_once_and_promises_nothing(run, tmp_path):
    run.adaptor.example = 1
    model, result = run(scripted("a"), evaluator=None)
    assert model.quantized == set("abcd")
    assert result.verdict.startswith("not checked")
    assert not result.met
    assert math.isnan(result.best.loss)
    assert result.baseline.size_bytes == 1600
    assert result.best.measurement.latency_ms > 0
    assert not (tmp_path / "work").exists()


def test_the_best_model_so_far_is_on_disk_with_its_plan(run, tmp_path):
    _, result = run(scripted("abcd", "bcd", "abd", "ab"))
    folder = tmp_path / "work" / result.metadata["study"]
    assert result.metadata["best_model"] == str(folder / "best_model")
    assert run.adaptor.load(folder / "best_model", ToyModel(COSTS)).quantized == {"a", "b"}
    plan = json.loads((folder / "best_plan.json").read_text())
    assert plan["digest"] == plan_of("ab").digest
    assert plan["number"] == 4
    assert run.adaptor.saved == [set("abcd"), set("bcd"), set("abd"), set("ab")]
    assert sorted(p.name for p in folder.iterdir()) == ["best_model", "best_plan.json"]


def test_a_worse_trial_does_not_replace_the_best_on_disk(run):
    run(scripted("a", "abcd"), toy_conf(timeout=60))
    assert run.adaptor.saved == [{"a"}]


def test_objective_weights_decide_between_passing_models(run):
    wide = toy_conf(
        tolerable_loss=0.5, timeout=60, objective={"objective": ["modelsize", "accuracy"], "weight": [0.01, 1]}
    )
    model, _ = run(scripted("abcd", "a"), wide)
    assert model.quantized == {"a"}
    wide = toy_conf(tolerable_loss=0.5, timeout=60, objective=["modelsize", "accuracy"])
    model, _ = run(scripted("abcd", "a"), wide)
    assert model.quantized == set("abcd")


def test_an_objective_that_cannot_be_measured_is_noted(run):
    _, result = run(scripted("a"), toy_conf(objective="performance"))
    assert result.metadata["notes"] == ["objective 'performance' could not be measured and had no say in the choice"]


def test_a_broken_baseline_evaluation_fails_at_once(run):
    run.accuracy.at[1] = lambda: float("nan")
    with pytest.raises(EvaluationError, match="returned nan"):
        run(scripted("a"))
    assert run.adaptor.quantized == []


def test_a_failing_trial_is_recorded_and_the_run_goes_on(run):
    run.accuracy.at[2] = lambda: "high"
    _, result = run(scripted("ab", "a"))
    assert result.met
    failed = result.trials[0]
    assert failed.error.startswith("EvaluationError: ")
    assert "returned a str" in failed.error
    assert failed.loss == math.inf
    assert failed.score == 0.0
    assert failed.measurement is None


def test_if_every_trial_fails_the_reasons_are_raised_and_the_next_run_starts_afresh(run):
    def fail(model):
        raise RuntimeError("no kernel for int8")

    run.adaptor.fail = fail
    with pytest.raises(
        QuantizationError, match=r"each of the 2 trials failed(.|\n)*trial 1, 2: RuntimeError: no kernel"
    ):
        run(scripted("ab", "a"))
    run.adaptor.fail = lambda model: None
    assert run(scripted("ab", "a"))[1].met


def test_if_every_evaluation_fails_it_is_an_evaluation_error(run):
    for call in (2, 3):
        run.accuracy.at[call] = lambda: float("inf")
    with pytest.raises(EvaluationError, match="each of the 2 trials failed"):
        run(scripted("ab", "a"))


def test_an_evaluation_that_always_raises_ends_the_run(run):
    def fail():
        raise KeyError("labels")

    for call in range(2, 9):
        run.accuracy.at[call] = fail
    with pytest.raises(EvaluationError, match=r"each of the 3 trials failed(.|\n)*trial 1, 2, 3: .*raised KeyError"):
        run(scripted("abcdef", "abcde", "abcd", "abc", "ab", "a"))
    assert run.accuracy.calls == 4  # the float model, and three trials


def test_calibration_that_fails_in_the_first_trial_is_raised_at_once(run):
    def fail(model):
        raise CalibrationError("the dataloader is empty")

    run.adaptor.fail = fail
    with pytest.raises(CalibrationError, match="empty"):
        run(scripted("ab", "a"))
    assert run.accuracy.calls == 1
    run.adaptor.fail = lambda model: None
    _, result = run(scripted("ab", "a"))
    assert [trial.error for trial in result.trials] == [""]
    assert run.accuracy.calls == 3  # the baseline was looked at again
    assert len(result.trials) == 1


def test_calibration_that_fails_later_belongs_to_its_trial(run):
    def fail(model):
        if model.quantized == {"c"}:
            raise CalibrationError("NaN in c")

    run.adaptor.fail = fail
    _, result = run(scripted("abcd", "c", "a"))
    assert result.trials[1].error == "CalibrationError: NaN in c"
    assert result.met


def test_a_strategy_with_nothing_to_say_is_an_error(run):
    with pytest.raises(QuantizationError, match="proposed no plan"):
        run(scripted())


@pytest.mark.parametrize(
    ("fields", "message"), [({"max_trials": 0}, "max_trials must be at least 1"), ({"timeout": -1}, "timeout must be")]
)
def test_a_budget_that_allows_nothing_is_refused(run, fields, message):
    with pytest.raises(ConfigError, match=message):
        run(scripted("a"), toy_conf(**fields))


def test_a_calibration_iterator_that_runs_dry_is_refused(run):
    with pytest.raises(ConfigError, match="calib_dataloader is a generator"):
        run(scripted("a"), calib_dataloader=(x for x in [1]))


def test_at_most_one_quantized_model_is_kept(run):
    import gc
    import weakref

    alive = weakref.WeakSet()
    run.adaptor.fail = alive.add
    seen = []

    class Watch(Accuracy):
        def __call__(self, model):
            gc.collect()
            seen.append(len(alive))
            return super().__call__(model)

    run.accuracy = Watch()
    run(Narrowing(SPACE))
    assert max(seen) == 2  # the best so far and the one being measured


class Recorder(Reporter, Progress):
    """A reporter that keeps what it is told."""

    def __init__(self):
        self.events = []

    def running(self, title, trials):
        return nullcontext(self)

    def baseline_start(self):
        self.events.append("baseline")

    def baseline_done(self, measurement):
        self.events.append(measurement.accuracy)

    def trial_start(self, number, stage):
        self.events.append((number, stage))

    def trial_done(self, trial):
        self.events.append(trial.passed)

    def interrupted(self, message):
        self.events.append(message)


def test_progress_is_told_everything_in_order(run):
    recorder = Recorder()
    run(scripted("abcd", "a"), reporter=recorder)
    assert recorder.events == ["baseline", 0.9, (1, "step 0"), False, (2, "step 1"), True]


def test_an_interrupt_keeps_what_was_done_and_says_how_to_go_on(run, tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    recorder = Recorder()
    run.accuracy.at[3] = interrupt
    with pytest.raises(KeyboardInterrupt, match="Run the same command again"):
        run(scripted("abcd", "bcd", "a"), reporter=recorder)
    assert "interrupted after 1 trials" in recorder.events[-1]
    assert str(tmp_path / "work") in recorder.events[-1]
    _, result = run(scripted("abcd", "bcd", "a"))
    assert [trial.resumed for trial in result.trials] == [True, False, False]


class Racing(ToyAdaptor):
    """Latencies as ``latency(model)`` gives them in each of a model's turns; the wall clock counts."""

    def __init__(self, latency):
        super().__init__(example=1)
        self.latency, self.now, self.turns = latency, 0.0, {}

    def predict(self, model, inputs):
        turn = self.turns[model.quantized] = self.turns.get(model.quantized, 0) + 1
        self.now += self.latency("".join(sorted(model.quantized)), turn)
        return inputs


@pytest.fixture
def race(run, monkeypatch):
    def race(latency, strategy, **conf):
        run.adaptor = Racing(latency)
        monkeypatch.setattr("time.perf_counter", lambda: run.adaptor.now)
        return run(strategy, toy_conf(**{"objective": "performance", "timeout": 1e9, **conf}))

    return race


def test_a_model_slower_than_float_is_returned_and_said_to_be_slower(race):
    model, result = race(lambda name, turn: 0.02 if name else 0.01, scripted("ab", "a"))
    assert model.quantized == {"a", "b"}  # as slow as the other, and smaller
    assert result.met
    assert result.beats_float is False
    assert not result.satisfied
    assert result.verdict.startswith("nothing tried is faster than float here: trial 1 takes 2.00 times as long")
    assert "notes" not in result.metadata or not result.metadata["notes"]


def test_a_faster_model_keeps_the_promise_as_before(race):
    _, result = race(lambda name, turn: 0.005 if name else 0.01, scripted("ab", "a"))
    assert result.beats_float is True
    assert result.satisfied
    assert result.verdict.endswith("; 1.60x smaller, 2.00x faster")


def test_a_lucky_first_measurement_is_corrected_before_the_verdict(race):
    # 'a' looks faster than 'ab' at first; over many rounds it is not
    def latency(name, turn):
        return {"": 0.010, "a": 0.0049 if turn <= 10 else 0.008, "ab": 0.005}[name]

    model, result = race(latency, scripted("a", "ab"))
    assert model.quantized == {"a", "b"}
    assert result.trials[0].measurement.latency_ms == pytest.approx(8.0)
    assert on_disk(result) == ["a", "b"]


def on_disk(result):
    return json.loads((Path(result.metadata["best_model"]) / "model.json").read_text())


def test_where_the_best_proves_slow_the_next_best_is_measured_again_too(race):
    def latency(name, turn):
        return {"": 0.010, "a": 0.004 if turn <= 10 else 0.008, "ab": 0.006 if turn <= 10 else 0.007}[name]

    model, result = race(latency, scripted("a", "ab"))
    assert model.quantized == {"a", "b"}
    assert [trial.measurement.latency_ms for trial in result.trials] == pytest.approx([8.0, 7.0])
    assert result.verdict.endswith("1.43x faster")


def test_the_best_of_all_that_were_measured_again_wins_and_not_the_last(race):
    def latency(name, turn):
        return {"": 0.010, "a": 0.004 if turn <= 10 else 0.006, "ab": 0.005 if turn <= 10 else 0.008}[name]

    model, result = race(latency, scripted("a", "ab"))
    assert [trial.measurement.latency_ms for trial in result.trials] == pytest.approx([6.0, 8.0])
    assert model.quantized == {"a"}
    assert on_disk(result) == ["a"]


def test_what_is_clearly_slower_than_the_best_is_not_measured_again(race):
    _, result = race(lambda name, turn: {"": 0.01, "a": 0.009, "ab": 0.005}[name], scripted("a", "ab"))
    rounds = [trial.measurement.latency_rounds for trial in result.trials]
    assert rounds[0] < rounds[1]


def test_an_earlier_trial_becomes_the_best_where_a_new_one_moves_the_tie(race):
    # 'abc' ties with 'a', and 'a' with 'b', which is too fast for 'abc'
    costs = {"": 0.01, "abc": 0.00520, "a": 0.00500, "b": 0.00480}
    model, result = race(lambda name, turn: costs[name], scripted("abc", "a", "b"), tolerable_loss=0.02)
    assert result.best.number == 2
    assert model.quantized == {"a"}
    assert on_disk(result) == ["a"]


def test_without_speed_as_an_objective_nothing_is_measured_again(race):
    _, result = race(lambda name, turn: 0.02 if name else 0.01, scripted("ab", "a"), objective="modelsize")
    assert result.beats_float is None
    assert result.satisfied
    assert result.verdict.endswith("1.60x smaller, 2.00x slower")
    assert result.metadata["notes"][0].startswith("on this machine the quantized model takes 2.00 times as long")


def test_the_fastest_is_measured_again_however_many_smaller_ones_come_near_it(race):
    # Noisy at first, so that all tie; 'd' is the largest of them.
    costs = {"": 0.010, "abc": 0.0059, "ab": 0.0058, "ac": 0.0057, "d": 0.0050}

    def latency(name, turn):
        return costs[name] * (1 if turn > 10 or not name else (1.15, 0.85)[turn % 2])

    model, result = race(latency, scripted("abc", "ab", "ac", "d"), tolerable_loss=0.5)
    assert model.quantized == {"d"}
    assert result.best.measurement.latency_ms == pytest.approx(5.0, rel=0.02)


def test_what_is_on_disk_during_the_search_is_the_best_that_was_found(race, monkeypatch):
    next_trial = TuningRun._next_trial

    def checked(self, *given):
        trial = next_trial(self, *given)
        assert self.store.holds(self.best)
        return trial

    monkeypatch.setattr(TuningRun, "_next_trial", checked)
    costs = {"": 0.01, "abc": 0.00520, "a": 0.00500, "b": 0.00480}  # each ties with its neighbours alone
    race(lambda name, turn: costs[name], scripted("abc", "a", "b"), tolerable_loss=0.02)


def test_models_that_cannot_be_timed_again_do_not_cost_the_best_one(race, run):
    def latency(name, turn):
        if turn > 12 and name:
            raise MemoryError("no room for another model")
        return 0.005 if name else 0.01

    model, result = race(latency, scripted("ab"))
    assert model.quantized == {"a", "b"}
    assert any("could not be timed again: MemoryError" in note for note in result.metadata["notes"])
