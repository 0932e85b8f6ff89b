import os
import time

import pytest
from toy_tuning import COSTS, Accuracy, Narrowing, ToyAdaptor, ToyModel, toy_conf, toy_space

from neural_compressor.errors import WorkspaceError
from neural_compressor.tuning.journal_file import repair
from neural_compressor.tuning.loop import tune

RECORDS = b'{"op_code":0,"study_name":"a"}\n{"op_code":2}\n'


def run(workspace):
    space = toy_space()
    return tune(ToyAdaptor(), ToyModel(COSTS), toy_conf(), Narrowing(space), evaluator=Accuracy(), workspace=workspace)


@pytest.mark.parametrize("tail", [b'{"op_co', b"\x00\x00\x00", b"{}", b"[1]\n", b"\xff\xfe\n"])
def test_a_torn_tail_is_moved_aside(tmp_path, tail):
    path = tmp_path / "journal.log"
    path.write_bytes(RECORDS + tail)
    aside = repair(path)
    assert path.read_bytes() == RECORDS
    assert aside.read_bytes() == tail
    path.write_bytes(RECORDS + tail)
    assert repair(path) != aside  # what was moved aside before is not overwritten
    assert repair(path) is None


def test_a_record_that_lacks_only_its_line_end_is_kept(tmp_path):
    path = tmp_path / "journal.log"
    path.write_bytes(RECORDS[:-1])
    assert repair(path) is None
    assert path.read_bytes() == RECORDS


def test_no_journal_and_an_empty_one_need_no_repair(tmp_path):
    assert repair(tmp_path / "journal.log") is None
    (tmp_path / "journal.log").touch()
    assert repair(tmp_path / "journal.log") is None


@pytest.mark.parametrize("garbage", [b"garbage\n", b"\x00" * 100 + b"\n", b'{"op_code":1\n', b"[]\n"])
def test_garbage_in_the_middle_is_an_error_that_changes_nothing(tmp_path, garbage):
    run(tmp_path)
    path = tmp_path / "journal.log"
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:3], garbage, *lines[3:]])
    path.write_bytes(damaged)
    with pytest.raises(WorkspaceError, match=rf"{path} is damaged: line 4 .*Move the file away"):
        run(tmp_path)
    assert path.read_bytes() == damaged


def test_records_that_do_not_fit_together_are_an_error(tmp_path):
    path = tmp_path / "journal.log"
    path.write_text('{"op_code":99}\n{"op_code":4}\n')
    with pytest.raises(WorkspaceError, match="is damaged: its records do not fit together"):
        run(tmp_path)


def test_an_outcome_that_cannot_be_read_names_the_trial(tmp_path):
    path = tmp_path / "journal.log"
    run(tmp_path)
    text = path.read_text()
    text = text[: text.index('"verdict"')].rpartition("\n")[0] + "\n"
    path.write_text(text.replace('"measurement":{"accuracy"', '"measurement":{"acuracy"', 1))
    with pytest.raises(WorkspaceError, match=r"trial 0 of study ToyModel-.*cannot be read"):
        run(tmp_path)


def test_lock_files_left_by_a_killed_process_do_not_hold_anyone_up(tmp_path, monkeypatch):
    run(tmp_path)
    (tmp_path / "journal.log.flock").write_text("4194303")
    os.symlink("nowhere/journal.log", tmp_path / "journal.log.lock")
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waits for a process that is gone"))
    run(tmp_path)
