"""What holds for every test."""

import shutil
import subprocess
import sys
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # how long an example takes depends on what else the machine does

_RACES = {
    "torch": "neural_compressor.torch.modules.kernels.race",
    "onnxruntime": "neural_compressor.onnx.runtime.op_race",
}


@pytest.fixture(scope="session", autouse=True)
def _own_cache_folder(tmp_path_factory):
    """Nothing is measured into, or read from, the cache folder of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _kernels_by_table(_own_cache_folder):
    """What a plan holds, and which kernel runs it, must not depend on how busy the machine is.

    For the session, as fixtures of modules quantize too, and whether or not a test is the first to import the framework.
    """
    with ExitStack() as stack:
        for framework, race in _RACES.items():
            if find_spec(framework):
                stack.enter_context(import_module(race).racing(None))
        yield


@pytest.fixture(autouse=True)
def _nothing_compiled():
    """Dynamo gives up on a function that the process has compiled eight times, for whichever models."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 96 kB."""
    mount = tmp_path / "tiny"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", mount]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield mount
    subprocess.run(["umount", "--lazy", mount], check=True)
