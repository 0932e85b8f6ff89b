"""The examples of the migration guide run as printed."""

import re
from pathlib import Path

import torch
from torch import nn

from neural_compressor.config import options

GUIDE = Path(__file__).parents[2] / "docs" / "migration.md"


def test_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = options.workspace
    torch.manual_seed(0)
    inputs = torch.randn(16, 32)
    names = {"evaluate": lambda model: 1.0}
    examples = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 4
    found = []
    try:
        for code in examples:
            model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
            names |= {"model": model, "loader": [(inputs, model(inputs).argmax(1))]}
            exec(compile(code, "docs/migration.md", "exec"), names)
            found.append(names["q_model"])
    finally:
        options.workspace = before
    assert (tmp_path / "out" / "model").is_dir()
    assert (tmp_path / "out" / "model.onnx").is_file()
    assert len(names["times"].instances[0].seconds) == 20
    assert "promise" in found[1].tuning.verdict
    assert [found[2][place].scheme.weight.dtype.name for place in (0, 2)] == ["int4", "int4"]
    assert [each.bits for each in names["config"].resolve({"0": "Linear", "2": "Linear"}).values()] == [8, 4]
