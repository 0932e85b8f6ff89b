"""A run that is stopped and started again ends as if it had never been stopped."""

import errno
import functools
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_tuning import COSTS, Accuracy, Narrowing, Scripted, ToyAdaptor, ToyModel, toy_conf, toy_space

from neural_compressor.errors import WorkspaceError
from neural_compressor.report.run_report import RunReport
from neural_compressor.tuning.loop import tune
from neural_compressor.tuning.reporter import Reporter

SPACE = toy_space()
#: Each record is flushed to the disk, which a property test does thousands of times.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class PulledPlugError(BaseException):
    """Ends a run as no handler of errors can stop."""


def attempt(workspace, accuracy, conf=None, strategy=None, example=None, **kwargs):
    strategy = strategy or Narrowing(SPACE)
    return tune(
        ToyAdaptor(example),
        ToyModel(COSTS),
        conf or toy_conf(),
        strategy,
        evaluator=accuracy,
        workspace=workspace,
        **kwargs,
    )


def facts(result):
    """Everything that must not depend on interruptions."""
    rows = [
        (t.number, t.stage, t.plan.digest, t.measurement, t.loss, t.passed, t.score, t.error) for t in result.trials
    ]
    return rows, result.best.number, result.met, result.verdict, result.baseline


@functools.cache
def uninterrupted(timeout=0):
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        accuracy = Accuracy()
        model, result = attempt(folder, accuracy, toy_conf(timeout=timeout))
        return model.quantized, facts(result), accuracy.calls, (Path(folder) / "journal.log").read_bytes()


@given(st.lists(st.integers(2, 10), min_size=1, max_size=4), st.sampled_from([0, 60]))
@settings(max_examples=15)
def test_resume_equals_uninterrupted(kills, timeout):
    conf = toy_conf(timeout=timeout)
    quantized, expected, calls, _ = uninterrupted(timeout)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        useful = 0
        for run, kill in enumerate(kills):
            accuracy = Accuracy()
            useful -= run > 0  # a run that goes on looks at the baseline again

            def pull():
                raise PulledPlugError

            accuracy.at[kill] = pull
            try:
                model, result = attempt(folder, accuracy, conf)
            except PulledPlugError:
                useful += accuracy.calls - 1
            else:
                useful += accuracy.calls
                break
        else:
            accuracy = Accuracy()
            model, result = attempt(folder, accuracy, conf)
            useful += accuracy.calls - 1
    assert model.quantized == quantized
    assert facts(result) == expected
    assert useful == calls


@given(st.floats(0, 1))
@settings(max_examples=40)
def test_any_prefix_of_the_journal_is_gone_on_with(share):
    """kill -9 can stop the writer after any byte."""
    quantized, expected, calls, journal = uninterrupted()
    journal = journal[: journal.rindex(b'"verdict"')]  # a finished study is not gone on with
    cut = round(share * len(journal))
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        (Path(folder) / "journal.log").write_bytes(journal[:cut])
        accuracy = Accuracy()
        model, result = attempt(folder, accuracy)
        torn = list(Path(folder).glob("journal.log.torn-*"))
        kept = (Path(folder) / "journal.log").read_bytes()
    assert model.quantized == quantized
    assert facts(result) == expected
    tail = journal[:cut].rpartition(b"\n")[2]
    done = sum(journal[: cut - len(tail)].count(word) for word in (b'"outcome"', b'"baseline"'))
    again = b'"baseline"' in journal[: cut - len(tail)]
    # one less if the cut took but the end of the line
    assert calls - done - 1 <= accuracy.calls - again <= calls - done
    assert kept.startswith(journal[: cut - len(tail)])
    assert len(torn) <= bool(tail)


def test_a_finished_run_is_not_resumed_but_begun_again(tmp_path):
    first, second = Accuracy(), Accuracy()
    _, before = attempt(tmp_path, first)
    _, after = attempt(tmp_path, second)
    assert first.calls == second.calls
    assert after.metadata["study"] == before.metadata["study"] + "-2"
    assert not any(trial.resumed for trial in after.trials)


def pull_at(call):
    accuracy = Accuracy()

    def pull():
        raise PulledPlugError

    accuracy.at[call] = pull
    return accuracy


def test_resume_false_begins_again(tmp_path):
    with pytest.raises(PulledPlugError):
        attempt(tmp_path, pull_at(4))
    _, result = attempt(tmp_path, Accuracy(), resume=False)
    assert not any(trial.resumed for trial in result.trials)
    assert result.metadata["study"].endswith("-2")


@pytest.mark.parametrize(
    "other",
    [
        {"conf": toy_conf(tolerable_loss=0.011)},
        {"conf": toy_conf(objective="accuracy")},
        {"strategy": Narrowing(SPACE, seed=7)},
        {"title": "another"},
        {"calib_dataloader": [1, 2, 3]},
        {"example": 1},
    ],
    ids=["promise", "objective", "seed", "title", "calibration", "measured"],
)
def test_another_job_does_not_take_over_the_trials(tmp_path, other):
    with pytest.raises(PulledPlugError):
        attempt(tmp_path, pull_at(4))
    _, result = attempt(tmp_path, Accuracy(), **other)
    assert not any(trial.resumed for trial in result.trials)


def test_a_larger_budget_goes_on_with_the_same_job(tmp_path):
    with pytest.raises(PulledPlugError):
        attempt(tmp_path, pull_at(4), toy_conf(max_trials=3))
    _, result = attempt(tmp_path, Accuracy(), toy_conf(max_trials=50))
    assert [trial.resumed for trial in result.trials[:3]] == [True, True, False]


@pytest.mark.parametrize("more", [{"max_trials": 9}, {"max_trials": 2, "timeout": 60}], ids=["max_trials", "timeout"])
def test_a_larger_budget_goes_on_with_a_job_that_ended(tmp_path, more):
    _, before = attempt(tmp_path, Accuracy(), toy_conf(max_trials=2))
    assert before.metadata["stopped"] == "max_trials=2 reached"
    accuracy = Accuracy()
    _, after = attempt(tmp_path, accuracy, toy_conf(**more))
    assert after.metadata["study"] == before.metadata["study"]
    assert [trial.resumed for trial in after.trials[:2]] == [True, True]
    assert accuracy.calls == 1 + len(after.trials) - 2
    _, last = attempt(tmp_path, Accuracy(), toy_conf(**more))
    assert not any(trial.resumed for trial in last.trials)  # it ended with this budget


def test_a_larger_budget_ends_as_if_it_had_been_given_at_once(tmp_path):
    attempt(tmp_path, Accuracy(), toy_conf(max_trials=2))
    attempt(tmp_path, Accuracy(), toy_conf(max_trials=5))
    model, result = attempt(tmp_path, Accuracy())
    quantized, expected, _, _ = uninterrupted()
    assert model.quantized == quantized
    assert facts(result) == expected


@pytest.mark.parametrize("less", [{"max_trials": 1}, {"max_trials": 2}])
def test_a_smaller_budget_begins_again(tmp_path, less):
    attempt(tmp_path, Accuracy(), toy_conf(max_trials=2))
    _, result = attempt(tmp_path, Accuracy(), toy_conf(**less))
    assert not any(trial.resumed for trial in result.trials)


class Hidden:
    """An object in which nobody can see what matters."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def labelled(labels, stop_at=None):
    """An evaluation that counts right answers; the model always says yes."""
    left = Hidden(stop_at or -1)

    def evaluate(model):
        left.value -= 1
        if left.value == 0:
            raise PulledPlugError
        return sum(labels) / len(labels) - sum(model.costs[name] for name in model.quantized)

    return evaluate


def test_labels_that_were_put_right_begin_a_new_study(tmp_path, caplog):
    for folder in ("same", "other"):
        with pytest.raises(PulledPlugError):
            attempt(tmp_path / folder, labelled([1, 0, 0], stop_at=4))
    _, same = attempt(tmp_path / "same", labelled([1, 0, 0]))
    assert same.trials[0].resumed
    _, result = attempt(tmp_path / "other", labelled([1, 1, 1]))
    assert result.baseline.accuracy == 1.0
    assert not any(trial.resumed for trial in result.trials)
    (note,) = result.metadata["notes"]
    assert "was not finished" in note
    assert note.endswith("differs in its evaluation")
    assert note in caplog.text


def test_other_calibration_data_of_the_same_length_begins_a_new_study(tmp_path):
    with pytest.raises(PulledPlugError):
        attempt(tmp_path, pull_at(4), calib_dataloader=[[1.0], [2.0]])
    _, result = attempt(tmp_path, Accuracy(), calib_dataloader=[[1.0], [3.0]])
    assert not any(trial.resumed for trial in result.trials)
    assert result.metadata["notes"][0].endswith("differs in its calibration")


def hidden(make, stop_at=None):
    """An evaluation whose baseline is what ``make`` gives, one after the other."""
    held, left = Hidden(make), Hidden(stop_at or -1)

    def evaluate(model):
        left.value -= 1
        if left.value == 0:
            raise PulledPlugError
        return held.value() - sum(model.costs[name] for name in model.quantized)

    return evaluate


def test_a_baseline_that_has_changed_begins_a_new_study(tmp_path, caplog):
    """Whatever has changed, and however well it hides: the trials were compared with another baseline."""
    with pytest.raises(PulledPlugError):
        attempt(tmp_path, hidden(lambda: 0.297, stop_at=4))
    _, result = attempt(tmp_path, hidden(lambda: 1.0))
    assert result.baseline.accuracy == 1.0
    assert not any(trial.resumed for trial in result.trials)
    assert result.metadata["study"].endswith("-2")
    assert Path(result.metadata["best_model"]).parent.name == result.metadata["study"]
    (note,) = result.metadata["notes"]
    assert note.startswith("the float model reaches 1 now and reached 0.297 in study ")
    assert note in caplog.text


def test_a_baseline_that_never_gives_the_same_twice_is_gone_on_with(tmp_path):
    noise = itertools.cycle([0.9, 0.92, 0.88, 0.91])
    with pytest.raises(PulledPlugError):
        attempt(tmp_path, hidden(lambda: next(noise), stop_at=3))
    _, result = attempt(tmp_path, hidden(lambda: next(noise)))
    assert result.trials[0].resumed
    assert result.baseline.accuracy == 0.9


def test_failed_trials_are_not_tried_again(tmp_path):
    def run(accuracy):
        return attempt(tmp_path, accuracy, strategy=Scripted(SPACE, options={"sets": ["abcd", "bcd", "a"]}))

    accuracy = pull_at(4)
    accuracy.at[2] = lambda: "no number"
    with pytest.raises(PulledPlugError):
        run(accuracy)
    _, result = run(Accuracy())
    assert [(bool(trial.error), trial.resumed) for trial in result.trials] == [
        (True, True),
        (False, True),
        (False, False),
    ]


def test_time_spent_before_counts_against_the_timeout(tmp_path):
    accuracy = pull_at(3)
    accuracy.at[2] = lambda: time.sleep(0.3)
    with pytest.raises(PulledPlugError):
        attempt(tmp_path, accuracy, toy_conf(timeout=60))
    _, result = attempt(tmp_path, Accuracy(), toy_conf(timeout=0.29))
    assert len(result.trials) == 1


def test_a_journaled_best_is_made_again_and_saved_if_it_is_missing(tmp_path):
    accuracy = pull_at(3)
    conf = toy_conf(max_trials=1)
    with pytest.raises(PulledPlugError):
        attempt(tmp_path, accuracy)
    (study,) = (p for p in tmp_path.iterdir() if p.is_dir())
    shutil.rmtree(study / "best_model")
    model, result = attempt(tmp_path, Accuracy(), conf)
    assert result.trials[0].resumed
    assert model.quantized == set(COSTS)
    assert ToyAdaptor().load(study / "best_model", ToyModel(COSTS)).quantized == set(COSTS)


@pytest.mark.parametrize("kind", ["sqlite", "path"])
def test_storage_elsewhere_is_resumed_too(tmp_path, kind):
    storage = f"sqlite:///{tmp_path}/study.db" if kind == "sqlite" else tmp_path / "elsewhere.log"
    with pytest.raises(PulledPlugError):
        attempt(tmp_path / "work", pull_at(4), storage=storage)
    _, result = attempt(tmp_path / "work", Accuracy(), storage=storage)
    assert [trial.resumed for trial in result.trials[:3]] == [True, True, False]
    assert facts(result) == uninterrupted()[1]
    assert not (tmp_path / "work" / "journal.log").exists()


CHILD = """
import sys, time
sys.path.insert(0, {here!r})
from toy_tuning import *
from neural_compressor.tuning.loop import tune

class Endless(Accuracy):
    def __call__(self, model):
        with open("evaluations", "a") as log:
            log.write("".join(sorted(model.quantized)) + "\\n")
        if self.calls + 1 == int(sys.argv[1]):
            time.sleep(3600)
        return super().__call__(model)

space = toy_space()
model, result = tune(ToyAdaptor(), ToyModel(COSTS), toy_conf(), Narrowing(space), evaluator=Endless())
print("".join(sorted(model.quantized)), result.verdict, sum(t.resumed for t in result.trials), sep="|")
"""


def test_kill_9_in_the_middle_of_tuning(tmp_path):
    command = [sys.executable, "-c", CHILD.format(here=str(Path(__file__).parent))]
    log = tmp_path / "evaluations"
    child = subprocess.Popen([*command, "4"], cwd=tmp_path)  # the fourth evaluation does not end
    while child.poll() is None and (not log.exists() or log.read_text().count("\n") < 4):
        time.sleep(0.01)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    again = subprocess.run([*command, "0"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    quantized, expected, calls, _ = uninterrupted()
    names, verdict, resumed = again.stdout.strip().split("|")
    assert set(names) == quantized
    assert verdict == expected[3]
    assert int(resumed) == 2  # of what was begun, the baseline is no trial, and the last was cut off
    assert len(log.read_text().splitlines()) == calls + 2  # the baseline and the last are looked at again


class Keeping(Reporter):
    """A reporter that does something in place of writing a report."""

    def __init__(self, act):
        self.act = act

    def keep(self, *args):
        self.act()


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_report_that_does_not_fit_costs_neither_the_model_nor_an_evaluation(tmp_path, monkeypatch, caplog, step):
    class OnFullDisk(RunReport):
        def keep(self, *args):
            with monkeypatch.context() as patch:
                patch.setattr(os, step, full_disk)
                super().keep(*args)

    model, result = attempt(tmp_path, Accuracy(), reporter=OnFullDisk(quiet=True))
    quantized, expected, _, _ = uninterrupted()
    assert model.quantized == quantized
    assert result.report is None
    (note,) = result.metadata["notes"]
    assert "the report of this run is lost; the model is not lost" in note
    assert re.search(rf"No space left on device \({tmp_path}/reports/[^)]*\.html\)", note)
    assert note in caplog.text
    assert not list((tmp_path / "reports").iterdir())

    accuracy = Accuracy()
    model, again = attempt(tmp_path, accuracy, reporter=RunReport(quiet=True))
    assert accuracy.calls == 1  # the baseline
    assert facts(again) == expected
    assert model.quantized == quantized
    assert again.report.is_file()
    assert again.metadata["study"] == result.metadata["study"]


def test_an_end_that_cannot_be_journaled_costs_nothing(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        _, result = attempt(tmp_path, Accuracy(), reporter=Keeping(lambda: patch.setattr(os, "fsync", full_disk)))
    assert "that this run has ended is not in the journal" in result.metadata["notes"][0]
    accuracy = Accuracy()
    _, again = attempt(tmp_path, accuracy)
    assert accuracy.calls == 1
    assert facts(again) == facts(result)


def test_without_an_evaluation_a_lost_report_costs_nothing_either(tmp_path):
    def full():
        raise WorkspaceError("no space")

    model, result = attempt(tmp_path, None, reporter=Keeping(full))
    assert model.quantized == set(COSTS)
    assert "no space" in result.metadata["notes"][0]
