"""The examples of the guide run as printed."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

GUIDE = Path(__file__).parents[3] / "docs" / "onnx.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def names(mlp, vectors, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for node in mlp.graph.node:
        node.name = node.name.replace("/h.4/mlp/fc_in", "/h.0/mlp/fc_in")
    onnx.save(mlp, "model.onnx")
    exact = run(mlp, vectors[0])

    def accuracy(path):
        return 1 - float(np.linalg.norm(run(path, vectors[0]) - exact) / np.linalg.norm(exact))

    return {"samples": vectors, "accuracy": accuracy}


def test_every_example(names):
    assert len(BLOCKS) >= 5
    for number, code in enumerate(BLOCKS):
        exec(compile(code, f"docs/onnx.md, example {number}", "exec"), names)
    written = {path.name for path in Path.cwd().glob("*.onnx")}
    saved = {name for code in BLOCKS for name in re.findall(r'"(\w+\.onnx)"', code)}
    assert written == saved
    for name in written:
        onnx.checker.check_model(onnx.load(name))
