"""What is handed to another process is found there."""

import subprocess
import sys
from pathlib import Path

import pytest

from neural_compressor import benchmark
from neural_compressor.benchmark.job import Job, Script, write_job
from neural_compressor.errors import ConfigError

SCRIPT = """
import sys
from pathlib import Path
from neural_compressor.benchmark.job import Job, write_job

class Half:
    def __call__(self, model):
        return len(model) / 2

if __name__ == "__main__":
    write_job(Job("four", [(1, 2)], Half(), {"threads": 1}, 2, 3), Path(sys.argv[1]))
"""
READER = """
import sys
{imported}
from pathlib import Path
from neural_compressor.benchmark.job import Script, read_job

job = read_job(Path(sys.argv[1]), Script({module!r}, {file!r}))
print(job.function(job.model), job.loader, job.info, job.warmup, job.iteration, type(job.function).__module__)
"""


@pytest.mark.parametrize("imported", ["", "import multiprocessing"])
@pytest.mark.parametrize("as_module", [False, True])
def test_classes_of_a_script(tmp_path, imported, as_module):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    path = f"{tmp_path}:{Path(benchmark.__file__).parents[2]}"
    options = {"env": {"PYTHONPATH": path}, "capture_output": True, "text": True, "timeout": 120}
    write = ["-m", "script"] if as_module else [str(file)]
    done = subprocess.run([sys.executable, *write, str(tmp_path / "job")], check=False, **options)
    assert not done.returncode, done.stderr
    code = READER.format(imported=imported, module="script" if as_module else None, file=str(file))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "job")], check=False, **options)
    assert done.stdout.strip() == "2.0 [(1, 2)] {'threads': 1} 2 3 __mp_main__", done.stderr


@pytest.mark.parametrize(
    ("part", "name"), [({"model": lambda: 0}, "model"), ({"loader": (x for x in "ab")}, "b_dataloader")]
)
def test_what_cannot_be_handed_over_is_named(tmp_path, part, name):
    parts = {"model": "m.onnx", "loader": [], "function": None, "info": {}, "warmup": 0, "iteration": 1, **part}
    with pytest.raises(ConfigError, match=f"^{name} cannot be handed to another process"):
        write_job(Job(**parts), tmp_path / "job")


def test_an_interactive_session_has_no_script():
    with pytest.raises(ConfigError, match="interactive session"):
        Script().run_again()
