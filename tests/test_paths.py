"""Results go where links lead, replace nothing but files and folders, and are whole or not there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from neural_compressor.errors import WorkspaceError
from neural_compressor.paths import output_file, output_folder, write_text_atomically


def test_what_is_no_link_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").write_text("old")
    monkeypatch.chdir(tmp_path)
    assert output_file("there") == Path("there")
    assert output_file(tmp_path / "new") == tmp_path / "new"


@pytest.mark.parametrize("exists", [True, False])
def test_links_are_followed_to_their_end(tmp_path: Path, exists: bool) -> None:
    target = tmp_path / "deep" / "model"
    target.parent.mkdir()
    if exists:
        target.write_text("old")
    (tmp_path / "second").symlink_to(target)
    (tmp_path / "first").symlink_to("second")
    assert output_file(tmp_path / "first") == output_folder(tmp_path / "first") == target


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path(os.devnull)):
        with pytest.raises(WorkspaceError, match="no regular file"):
            output_file(path)
    with pytest.raises(WorkspaceError, match="is a folder"):
        output_file(tmp_path)


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket may not be long
    with socket.socket(socket.AF_UNIX) as open_socket:
        open_socket.bind("socket")
        with pytest.raises(WorkspaceError, match="no regular file"):
            output_file("socket")


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for where in (output_file, output_folder):
        with pytest.raises(WorkspaceError, match="leads nowhere"):
            where(tmp_path / "a")


def test_a_write_protected_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("kept")
    path.chmod(0o444)
    with pytest.raises(WorkspaceError, match=r"model.onnx is there and nobody may write to it"):
        output_file(path)
    path.chmod(0o644)
    assert output_file(path) == path


def test_a_write_that_fails_leaves_the_old_text(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
