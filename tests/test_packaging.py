"""What is installed and what an import costs."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FRAMEWORKS = ("torch", "onnx", "onnxruntime", "tensorflow", "keras", "mxnet", "transformers", "optuna", "sklearn")


def run(code, *, python=sys.executable, **kwargs):
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, **kwargs)


def test_import_pulls_in_no_framework():
    code = f"import neural_compressor, sys; print([m for m in {FRAMEWORKS} if m in sys.modules])"
    assert run(code).stdout.strip() == "[]"


def test_configuration_and_strategies_need_no_framework():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from neural_compressor import quantization\n"
        "from neural_compressor.config import PostTrainingQuantConfig\n"
        "print(PostTrainingQuantConfig().approach)"
    )
    done = run(code)
    assert done.stdout.strip() == "static", done.stderr


def test_a_missing_framework_names_its_extra():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from neural_compressor.errors import MissingDependencyError\n"
        "try:\n"
        "    import neural_compressor.torch.adaptor\n"
        "except MissingDependencyError as error:\n"
        "    print(error)"
    )
    done = run(code)
    assert "open-neural-compressor[torch]" in done.stdout, done.stderr


def build_wheel(folder):
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_installs_into_an_empty_environment(tmp_path):
    wheel = build_wheel(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    assert "neural_compressor/adaptor/pytorch_cpu.yaml" in names
    assert "neural_compressor/py.typed" in names
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    constraints = str(ROOT / "constraints.txt")
    install = [python, "-m", "pip", "install", "-q", "-c", constraints, str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code = (
        "import sys; before = set(sys.modules); import neural_compressor; new = set(sys.modules) - before\n"
        "from neural_compressor import quantization, config\n"
        "import neural_compressor.adaptor as a, pathlib\n"
        "print(len(new) < 40, (pathlib.Path(a.__file__).parent / 'pytorch_cpu.yaml').exists())\n"
        "import neural_compressor.torch.adaptor"
    )
    done = run(code, python=str(python), cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""})
    assert done.stdout.strip() == "True True", done.stderr
    assert "open-neural-compressor[torch]" in done.stderr
