"""Timings that outlive a process, and caches that are broken."""

import json
import os
import subprocess
import sys

import pytest

from neural_compressor.kernel_timings import KernelTimings, cache_folder, cpu_model


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cache" / "kernels.json"


def test_what_was_put_is_there_for_the_next(path):
    first = KernelTimings(path)
    first.put("a", 1.5)
    first.put("b", 2)
    again = KernelTimings(path)
    assert (again.get("a"), again.get("b"), again.get("c")) == (1.5, 2.0, None)


def test_memory_alone_needs_no_file():
    timings = KernelTimings(None)
    timings.put("a", 1)
    assert timings.get("a") == 1.0


def test_two_writers_keep_what_each_measured(path):
    one, other = KernelTimings(path), KernelTimings(path)
    assert one.get("a") is None
    assert other.get("a") is None
    one.put("a", 1)
    other.put("b", 2)
    one.put("c", 3)
    assert json.loads(path.read_text()) == {"a": 1.0, "b": 2.0, "c": 3.0}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b"\xff\xfe\x00",
        b'{"a": "fast"}',
        b'{"a": NaN}',
        b'{"a": true}',
        b"[" * 100_000,
        b'{"a": 1' + b"0" * 400 + b"}",
    ],
)
def test_a_corrupt_file_is_measured_anew(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    timings = KernelTimings(path)
    assert timings.get("a") is None
    timings.put("a", 3)
    assert KernelTimings(path).get("a") == 3.0


def test_sound_entries_of_a_file_survive_others(path):
    path.parent.mkdir()
    path.write_text('{"good": 2, "bad": null}')
    timings = KernelTimings(path)
    assert (timings.get("good"), timings.get("bad")) == (2.0, None)


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    timings = KernelTimings(tmp_path / "file" / "kernels.json")
    timings.put("a", 1)
    assert timings.get("a") == 1.0


def test_a_path_that_is_a_folder_is_no_error(tmp_path):
    (tmp_path / "kernels.json").mkdir()
    timings = KernelTimings(tmp_path / "kernels.json")
    timings.put("a", 1)
    assert timings.get("a") == 1.0
    assert os.listdir(tmp_path) == ["kernels.json"]


def test_nothing_is_left_beside_the_file(path):
    KernelTimings(path).put("a", 1)
    assert os.listdir(path.parent) == [path.name]


def test_a_file_for_each_machine_and_set_of_versions(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = KernelTimings.of_machine("AVX2", {"torch": "2.13.0+cpu"})
    same = KernelTimings.of_machine("AVX2", {"torch": "2.13.0+cpu"})
    others = [KernelTimings.of_machine("AVX512", {"torch": "2.13.0+cpu"}), KernelTimings.of_machine("AVX2", {})]
    assert one.path == same.path
    assert one.path.parent == tmp_path / "open-neural-compressor"
    assert one.path not in [other.path for other in others]
    assert not any(separator in one.path.name for separator in "/\\: +")


def test_the_folder_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert cache_folder() == tmp_path / ".cache" / "open-neural-compressor"


def test_the_cpu_has_a_name():
    assert cpu_model().strip()


def test_no_framework_is_imported():
    code = "import sys, neural_compressor.kernel_timings; print({'torch', 'onnx', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
