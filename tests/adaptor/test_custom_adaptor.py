"""The worked example: passes the contract suite, and is found through its entry point by an untouched package."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from test_tinynet import *  # noqa: F403  the example's own tests, the contract suite among them

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_adaptor"


@pytest.fixture
def installed(tmp_path):
    """What installing the example leaves on the path: its metadata, with the entry points its pyproject declares."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return os.pathsep.join([str(EXAMPLE), str(tmp_path)])


def run(code, path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path, str(EXAMPLE.parents[1] / "src")])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_adaptor_is_found_through_its_entry_point(installed):
    code = (
        "from neural_compressor.adaptor import ADAPTORS, adaptor_for; import tinynet\n"
        "print(*ADAPTORS.names(), ADAPTORS['tinynet'].__name__, adaptor_for(tinynet.Network()).__name__)"
    )
    assert run(code, installed)[-3:] == ["tinynet", "TinyNetAdaptor", "TinyNetAdaptor"]


def test_adaptor_works_where_torch_is_missing(installed):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from neural_compressor.adaptor import adaptor_for; import tinynet\n"
        "print(adaptor_for(tinynet.Network()).__name__)"
    )
    assert run(code, installed) == ["TinyNetAdaptor"]


def test_an_adaptor_whose_framework_is_missing_is_passed_over_by_the_others(installed):
    code = (
        "import sys; sys.modules['tinynet.network'] = None\n"
        "from neural_compressor.adaptor import adaptor_for\n"
        "try: adaptor_for(object())\n"
        "except ValueError as error: print('tinynet is out' in str(error))"
    )
    assert run(code, installed) == ["True"]


def test_readme_tunes_a_network_with_the_public_api(installed, tmp_path):
    code = re.search(r"^```python\n(.*?)^```", (EXAMPLE / "README.md").read_text(), re.DOTALL | re.MULTILINE)[1]
    code += "print('PRECISIONS', *sorted({record.precision for record in quantized.result.ops}))"
    assert run(f"import os; os.chdir({str(tmp_path)!r})\n{code}", installed)[-2:] == ["PRECISIONS", "int8"]
