"""The README runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_readme_tunes_saves_and_loads(tmp_path):
    code = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)[1]
    code += (
        "print('SAME', bool((loaded(mx.nd.array(inputs)) == quantized.model(mx.nd.array(inputs))).min().asscalar()))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["SAME", "True"]
