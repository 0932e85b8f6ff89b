"""Imports that wait until something of the module is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neural_compressor.onnx.quantization.deferred_import import deferred


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that writes a file when it is executed."""
    (tmp_path / "late_one.py").write_text(
        "from pathlib import Path\nPath(__file__).with_name('ran').touch()\nanswer = 42\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "late_one"
    sys.modules.pop("late_one", None)


def test_a_deferred_module_is_executed_when_an_attribute_is_read(module: str, tmp_path: Path) -> None:
    with deferred(module):
        late = __import__(module)
    assert not (tmp_path / "ran").exists()
    assert late.answer == 42
    assert (tmp_path / "ran").exists()


def test_other_modules_are_imported_at_once(module: str, tmp_path: Path) -> None:
    with deferred("something_else"):
        __import__(module)
    assert (tmp_path / "ran").exists()


def test_a_deferred_module_that_is_not_there_is_an_import_error() -> None:
    with deferred("no_such_module_anywhere"), pytest.raises(ImportError):
        __import__("no_such_module_anywhere")


def test_nothing_is_left_behind_when_an_import_fails() -> None:
    before = list(sys.meta_path)
    with pytest.raises(ImportError), deferred("sympy"):
        raise ImportError
    assert sys.meta_path == before


def test_the_onnx_interface_does_without_symbolic_algebra() -> None:
    """In a process of its own: other tests import what they like."""
    code = (
        "import sys; import onnx_neural_compressor.quantization; assert 'sympy.core' not in sys.modules; "
        "import onnx_ir; print(onnx_ir.SymbolicDim('n') + 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "n" in done.stdout
