import contextlib
import errno
import logging
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import optuna
import pytest
from toy_tuning import COSTS, Accuracy, Narrowing, Scripted, ToyAdaptor, ToyModel, plan_of, toy_conf, toy_space

from neural_compressor.errors import WorkspaceError
from neural_compressor.schemes import Plan
from neural_compressor.tuning.journal import Journal, TrialRecord
from neural_compressor.tuning.journal_file import FileLock
from neural_compressor.tuning.loop import tune
from neural_compressor.tuning.result import Measurement

SPACE = toy_space()
ENTRY = TrialRecord("first", Measurement(0.5, 1.25, 100, None), 0.1 + 0.2, True, 4 / 3, 0.01)
FAILURE = TrialRecord("second", None, None, False, 0.0, 0.01, "RuntimeError: boom")


def run(workspace, accuracy=None, strategy=None, **kwargs):
    strategy = strategy or Narrowing(SPACE)
    evaluator = accuracy or Accuracy()
    return tune(ToyAdaptor(), ToyModel(COSTS), toy_conf(), strategy, evaluator=evaluator, workspace=workspace, **kwargs)


def test_what_is_recorded_is_read_back_exactly(tmp_path):
    with Journal(tmp_path, "toy", {"model": "m"}) as journal:
        assert journal.baseline is None
        journal.record_baseline(Measurement(0.1 + 0.2, 3.3))
        journal.record(journal.begin(plan_of("a")), plan_of("a"), ENTRY)
        journal.record(journal.begin(plan_of("b")), plan_of("b"), FAILURE)
        journal.abandon(journal.begin(plan_of("c")))
    with Journal(tmp_path, "toy", {"model": "m"}) as journal:
        assert journal.baseline == Measurement(0.1 + 0.2, 3.3)
        assert journal.entries == {plan_of("a").digest: ENTRY, plan_of("b").digest: FAILURE}


def test_it_is_a_plain_optuna_study(tmp_path):
    """Anyone can open it: the states, the loss as the value, the configuration as one attribute."""
    _, result = run(tmp_path, strategy=Scripted(SPACE, options={"sets": ["abcd", "a"]}), title="My model")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal.log")))
    (name,) = optuna.get_all_study_names(storage)
    assert name == result.metadata["study"]
    assert name.startswith("My-model-")
    study = optuna.load_study(study_name=name, storage=storage)
    assert [trial.value for trial in study.trials] == [trial.loss for trial in result.trials]
    assert [Plan.from_json(t.user_attrs["plan"]) for t in study.trials] == [plan_of("abcd"), plan_of("a")]
    assert study.user_attrs["finished"] is True
    assert study.user_attrs["baseline"]["accuracy"] == 0.9
    assert study.user_attrs["inputs"]["criterion"].startswith("Criterion(")


def test_a_trial_left_running_is_failed_and_done_again(tmp_path):
    with Journal(tmp_path, "toy", {}) as journal:
        journal.begin(plan_of("a"))
    with Journal(tmp_path, "toy", {}) as journal:
        assert journal.entries == {}
        states = [trial.state.name for trial in journal._study.trials]
    assert states == ["FAIL"]


def test_in_a_shared_storage_only_our_own_trial_is_failed(tmp_path):
    url = f"sqlite:///{tmp_path}/shared.db"
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        with Journal(tmp_path / folder, "toy", {}, url) as journal:
            journal.begin(plan_of("a"))
    with Journal(tmp_path / "here", "toy", {}, url) as journal:
        assert [trial.state.name for trial in journal._study.trials] == ["FAIL", "RUNNING"]


def test_a_second_live_run_of_the_same_job_is_refused(tmp_path):
    with Journal(tmp_path, "toy", {}):
        with pytest.raises(WorkspaceError, match=rf"process {os.getpid()} is running the same tuning job"):
            Journal(tmp_path, "toy", {})
        with Journal(tmp_path, "toy", {"another": "job"}) as other:
            assert other.entries == {}


def test_a_workspace_that_is_no_folder_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").touch()
    accuracy = Accuracy()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nc_workspace")):
        with pytest.raises(WorkspaceError, match=f"cannot write to the workspace {place}"):
            run(place, accuracy)
    assert accuracy.calls == 0


def test_a_full_disk_is_noticed_before_any_work(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    accuracy = Accuracy()
    with pytest.raises(WorkspaceError, match=r"No space left on device.*Free some space"):
        run(tmp_path, accuracy)
    assert accuracy.calls == 0


def test_a_disk_that_fills_up_later_loses_nothing(tmp_path, monkeypatch):
    """The record is cut in the middle, as a full disk does."""
    append = optuna.storages.journal.JournalFileBackend.append_logs
    calls = {"left": 12}

    def filling(self, logs):
        calls["left"] -= 1
        if calls["left"] > 0:
            return append(self, logs)
        with open(self._file_path, "ab") as file:
            file.write(b'{"op_code":8,"user_at')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(optuna.storages.journal.JournalFileBackend, "append_logs", filling)
        with pytest.raises(WorkspaceError, match="No space left"):
            run(tmp_path)
    accuracy = Accuracy()
    _, result = run(tmp_path, accuracy)
    assert [trial.resumed for trial in result.trials[:3]] == [True, True, False]
    assert accuracy.calls == 1 + len(result.trials) - 2  # the baseline is looked at again


def test_a_disk_that_is_really_full(tiny_disk):
    def fill():
        with (tiny_disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * 512):
                pass

    accuracy = Accuracy()
    accuracy.at[4] = fill
    with pytest.raises(WorkspaceError, match="No space left"):
        run(tiny_disk, accuracy)
    (tiny_disk / "ballast").unlink()
    _, result = run(tiny_disk)
    assert result.met
    assert [trial.resumed for trial in result.trials[:2]] == [True, True]


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_full_disk_names_the_journal_and_says_nothing_else(tmp_path, monkeypatch, step):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal(tmp_path, "toy", {}) as journal:
        journal.record_baseline(Measurement(0.5))
        before = (tmp_path / "journal.log").read_bytes()
        with monkeypatch.context() as patch:
            if step == "fsync":
                patch.setattr(os, "fsync", full)
            else:
                patch.setattr(optuna.storages.journal.JournalFileBackend, "append_logs", full)
            with pytest.raises(WorkspaceError, match=rf"No space left on device \({tmp_path}/journal.log\)") as caught:
                journal.begin(plan_of("a"))
        assert caught.value.__suppress_context__
        assert (tmp_path / "journal.log").read_bytes().startswith(before)


def test_an_unreachable_database_is_an_error_without_the_password(tmp_path):
    with pytest.raises(WorkspaceError, match=r"cannot be used") as caught:
        run(tmp_path, storage=f"sqlite:///{tmp_path}/missing/folder/x.db")
    assert "missing/folder" in str(caught.value)
    with pytest.raises(WorkspaceError) as caught:
        run(tmp_path, storage="postgresql+psycopg://me:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(caught.value)
    assert "me:***@" in str(caught.value)


def test_optuna_stays_quiet_and_is_left_as_it_was(tmp_path, capfd):
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.DEBUG)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(tmp_path)
        assert optuna.logging.get_verbosity() == logging.DEBUG
    finally:
        optuna.logging.set_verbosity(before)
    assert capfd.readouterr() == ("", "")


def test_importing_the_room_imports_no_framework():
    code = """
        import sys
        import neural_compressor.tuning.loop
        heavy = {"optuna", "torch", "sqlalchemy", "rich", "tensorflow", "onnx"} & set(sys.modules)
        assert not heavy, heavy
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_a_lock_dies_with_its_process(tmp_path):
    code = f"""
        import os, signal, sys
        from pathlib import Path
        from neural_compressor.tuning.journal_file import FileLock
        lock = FileLock(Path({str(tmp_path / "lock")!r}))
        lock.acquire()
        print("held", flush=True)
        sys.stdin.read()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "held\n"
    lock = FileLock(tmp_path / "lock")
    assert not lock.acquire(wait=False)
    child.kill()
    child.communicate()
    assert lock.acquire(wait=False)
    lock.release()
