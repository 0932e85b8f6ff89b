"""What is needed is said by name."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["onnx", "onnx_ir", "onnxruntime"])
def test_a_missing_package_names_the_extra(package):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from neural_compressor.errors import MissingDependencyError\n"
        "try:\n"
        "    import onnx_neural_compressor.quantization\n"
        "except MissingDependencyError as error:\n"
        "    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "open-neural-compressor[onnx]" in done.stdout, done.stderr


def test_the_package_itself_imports_no_framework():
    code = (
        "import onnx_neural_compressor, sys; print([m for m in ('onnx', 'onnxruntime', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
