import json

import pytest
from toy_tuning import plan_of

from neural_compressor.errors import WorkspaceError
from neural_compressor.tuning.result import Measurement, Trial
from neural_compressor.tuning.workspace import BestModelFolder, slug, writable_folder


def trial(names):
    return Trial(1, "s", plan_of(names), Measurement(0.5), 0.0, True, 1.0, 0.1)


def saver(text):
    def save(path):
        path.mkdir()
        (path / "weights").write_text(text)

    return save


def test_replacing_the_best_model(tmp_path):
    best = BestModelFolder(tmp_path / "study")
    for text in ("one", "two"):
        best.replace(trial(text[0]), saver(text))
        assert (best.model / "weights").read_text() == text
        assert best.holds(trial(text[0]))
    assert not best.holds(trial("a"))
    assert sorted(p.name for p in best.folder.iterdir()) == ["best_model", "best_plan.json"]


class PulledPlugError(BaseException):
    pass


@pytest.mark.parametrize("error", [PulledPlugError(), RuntimeError("cannot save")])
def test_a_save_that_fails_leaves_the_old_model(tmp_path, error):
    best = BestModelFolder(tmp_path / "study")
    best.replace(trial("a"), saver("old"))

    def half(path):
        saver("new")(path)
        raise error

    with pytest.raises(type(error)):
        best.replace(trial("b"), half)
    assert (best.model / "weights").read_text() == "old"
    assert best.holds(trial("a"))
    assert sorted(p.name for p in best.folder.iterdir()) == ["best_model", "best_plan.json"]


def test_a_kill_between_the_two_renames_is_undone(tmp_path):
    best = BestModelFolder(tmp_path / "study")
    best.replace(trial("a"), saver("old"))
    best.plan.unlink()
    best.model.rename(best.folder / "best_model.previous")
    saver("new")(best.folder / "best_model.new-x")
    recovered = BestModelFolder(tmp_path / "study")
    assert (recovered.model / "weights").read_text() == "old"
    assert not recovered.holds(trial("a"))  # unsealed: it will be written again
    assert [p.name for p in recovered.folder.iterdir()] == ["best_model"]


def test_a_full_disk_while_saving_is_a_workspace_error(tmp_path):
    best = BestModelFolder(tmp_path / "study")

    def full(path):
        raise OSError(28, "No space left on device")

    with pytest.raises(WorkspaceError, match=r"No space left on device.*Free some space"):
        best.replace(trial("a"), full)


def test_a_best_model_that_does_not_fit_leaves_the_old_one_and_says_so(tmp_path):
    best = BestModelFolder(tmp_path / "study")
    best.replace(trial("a"), saver("old"))

    def full(path):
        raise WorkspaceError("weights cannot be written")

    with pytest.raises(WorkspaceError, match=rf"in {best.model}; the one there stays: weights") as caught:
        best.replace(trial("b"), full)
    assert caught.value.__suppress_context__
    assert (best.model / "weights").read_text() == "old"


def test_the_plan_on_disk_can_be_read_back(tmp_path):
    best = BestModelFolder(tmp_path)
    best.replace(trial("ab"), saver("x"))
    record = json.loads(best.plan.read_text())
    assert record["plan"] == json.loads(plan_of("ab").to_json())


def test_folders_are_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert writable_folder("a/b") == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize(
    ("title", "expected"),
    [("../../etc", "etc"), ("", "model"), ("...", "model"), ("é/ü", "model"), ("x" * 99, "x" * 60)],
)
def test_a_title_cannot_leave_the_workspace(title, expected):
    assert slug(title) == expected
