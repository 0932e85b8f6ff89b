"""``benchmark.fit``: starts the processes of a benchmark, has them begin at once, and gathers what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from neural_compressor.adaptor.contract import adaptor_for
from neural_compressor.adaptor.user_code import require_function
from neural_compressor.benchmark.cores import available, shares
from neural_compressor.benchmark.instance import in_instance
from neural_compressor.benchmark.job import Job, Script, write_job
from neural_compressor.benchmark.times import BenchmarkResult, InstanceTimes, print_table
from neural_compressor.config import BenchmarkConfig
from neural_compressor.config.base import either
from neural_compressor.errors import ConfigError, EvaluationError
from neural_compressor.model import unwrapped
from neural_compressor.tuning.evaluator import require_repeatable

_BOOTSTRAP = """
import json, os, sys
job = json.loads(sys.argv[1])
if job["cores"]:
    os.sched_setaffinity(0, job["cores"])
sys.path[:] = job["path"]
sys.argv[:] = job["argv"]
from neural_compressor.benchmark.instance import main
main(job["folder"], job["module"], job["file"])
"""
"""Pinned before anything is imported, so that libraries find no other cores to make threads for."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def fit(
    model: Any,
    config: BenchmarkConfig | None = None,
    b_dataloader: Iterable[Any] | None = None,
    b_func: Callable[[Any], Any] | None = None,
    *,
    conf: BenchmarkConfig | None = None,
    quiet: bool = False,
) -> BenchmarkResult:
    """Time ``model`` in ``config.num_of_instance`` processes at once, each pinned to cores of its own.

    Either ``b_dataloader`` gives batches, of which each call of the model is timed, or ``b_func(model)`` is called and timed
    as a whole. The model, the data and the function are handed to the processes: what is defined in the script at hand is
    looked up there, so that what the script does has to stand under ``if __name__ == "__main__":``. A table of throughput
    and latency is printed unless ``quiet``, and returned. ``conf`` is another word for ``config``.
    """
    if in_instance():
        raise ConfigError(
            "benchmark.fit was reached while an instance looks for what is defined in this script: put what the script does "
            "under if __name__ == '__main__':, or the model, the data and b_func into a module of their own"
        )
    config = either(conf, config, "benchmark.fit")
    config = BenchmarkConfig() if config is None else config
    _check(config, b_dataloader, b_func)
    model = unwrapped(model)
    kind = adaptor_for(model)
    cores = shares(config, available())
    if not hasattr(os, "sched_setaffinity") and len(cores) > 1:
        raise ConfigError(
            f"num_of_instance: instances are pinned to cores, which {sys.platform} does not offer; take 1"
        )
    threads = config.intra_num_of_threads or len(cores[0])
    info = {"device": config.device, "backend": config.backend, "threads": threads}
    adaptor = kind(info)
    adaptor.check_settings(config)
    once = b_func is not None and "warmup" not in config.model_fields_set
    with tempfile.TemporaryDirectory(prefix="nc-benchmark-") as folder:
        job = Job(
            adaptor.hand_over(model, Path(folder)),
            b_dataloader,
            b_func,
            info,
            warmup=0 if once else config.warmup,
            iteration=config.iteration,
        )
        write_job(job, Path(folder) / "job")
        found = _run(folder, cores, threads)
    instances = tuple(
        InstanceTimes(tuple(own), tuple(each["seconds"]), tuple(each["samples"]), each["returned"])
        for own, each in zip(cores, found, strict=True)
    )
    result = BenchmarkResult(instances, "samples" if b_func is None else "calls")
    if not quiet:
        print_table(result)
    return result


def _check(config: Any, b_dataloader: Any, b_func: Any) -> None:
    if not isinstance(config, BenchmarkConfig):
        raise ConfigError(f"config is a {type(config).__name__}; benchmark.fit takes a BenchmarkConfig")
    config.check()
    if (b_dataloader is None) == (b_func is None):
        raise ConfigError(
            "benchmark.fit takes b_dataloader, whose batches are timed, or b_func(model): give one of them"
        )
    require_function(b_func, "b_func")
    if b_dataloader is not None:
        require_repeatable(b_dataloader, "b_dataloader")


def _run(folder: str, cores: Sequence[Sequence[int]], threads: int) -> list[dict[str, Any]]:
    """Start all, wait until each is ready, let them go, and take what they say."""
    instances: list[subprocess.Popen[str]] = []
    try:
        for own in cores:
            instances.append(_start(folder, own, threads))
        for number, instance in enumerate(instances):
            _line(instance, number)
        for number, instance in enumerate(instances):
            _go(instance, number)
        return [_line(instance, number) for number, instance in enumerate(instances)]
    except BaseException:
        for instance in instances:
            instance.kill()
        raise
    finally:
        for instance in instances:
            instance.communicate()


def _start(folder: str, cores: Sequence[int], threads: int) -> subprocess.Popen[str]:
    script = Script.of_this_process()
    job = {
        "cores": list(cores) if hasattr(os, "sched_setaffinity") else [],
        "path": [str(Path(each).absolute()) for each in sys.path],
        "argv": sys.argv,
        "folder": folder,
        "module": script.module,
        "file": script.file,
    }
    return subprocess.Popen(
        [sys.executable, "-c", _BOOTSTRAP, json.dumps(job)],
        env={**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _line(instance: subprocess.Popen[str], number: int) -> dict[str, Any]:
    assert instance.stdout is not None
    line = instance.stdout.readline()
    if not line:
        raise EvaluationError(f"instance {number} of the benchmark ended with the code {instance.wait()} and no result")
    found: dict[str, Any] = json.loads(line)
    if "error" in found:
        raise EvaluationError(f"instance {number} of the benchmark: {found['error']}")
    return found


def _go(instance: subprocess.Popen[str], number: int) -> None:
    assert instance.stdin is not None
    try:
        instance.stdin.write("go\n")
        instance.stdin.flush()
    except BrokenPipeError as error:
        raise EvaluationError(f"instance {number} of the benchmark is gone") from error
