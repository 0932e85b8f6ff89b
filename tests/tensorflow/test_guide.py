"""The examples of docs/keras.md run as printed, and the names it has are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "keras.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 3
    names = {}
    for number, code in enumerate(examples):
        exec(compile(code, f"docs/keras.md, example {number}", "exec"), names)
    assert names["found"].result.verdict
    assert set(tmp_path.iterdir()) >= {tmp_path / "model.tflite", tmp_path / "folder", tmp_path / "tuned"}
    assert (tmp_path / "tuned" / "model.tflite").is_file()
