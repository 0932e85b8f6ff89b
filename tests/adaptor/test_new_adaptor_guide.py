"""The guide to a new adaptor runs as it stands."""

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "new_adaptor.md"


def test_python_blocks_of_the_guide_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    namespace = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), namespace)
