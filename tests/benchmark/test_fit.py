"""Models timed in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from neural_compressor import benchmark
from neural_compressor.config import BenchmarkConfig
from neural_compressor.errors import ConfigError, EvaluationError
from neural_compressor.torch.quantization import RTNConfig, quantize

pinned = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not pin processes")


def product():
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 8]) for name in "xy")
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


BATCHES = [(np.ones((4, 8), np.float32), np.zeros(4)), (np.ones((2, 8), np.float32), np.zeros(2))]


@pytest.mark.parametrize("as_path", [True, False])
def test_an_onnx_model_once_through_the_data(tmp_path, capfd, as_path):
    model = product()
    if as_path:
        onnx.save(model, tmp_path / "model.onnx")
        model = str(tmp_path / "model.onnx")
    result = benchmark.fit(model, BenchmarkConfig(warmup=3), b_dataloader=BATCHES)
    (times,) = result.instances
    assert times.samples == (4, 2)
    assert result.throughput == pytest.approx(6 / sum(times.seconds))
    printed = capfd.readouterr().out
    assert all(word in printed for word in ("instance", "samples/s", "p99"))


@pytest.mark.slow
def test_a_quantized_torch_model(capfd):
    model = quantize(nn.Sequential(nn.Linear(32, 8)).eval(), RTNConfig(), quiet=True)
    data = [(torch.randn(3, 32), torch.zeros(3))]
    result = benchmark.fit(model, BenchmarkConfig(iteration=7), b_dataloader=data, quiet=True)
    assert result.instances[0].samples == (3,) * 7
    assert "instance" not in capfd.readouterr().out


SCRIPT = """
import os
import sys
import onnx
from neural_compressor.benchmark import fit
from neural_compressor.config import BenchmarkConfig

def cores(model):
    assert isinstance(model, onnx.ModelProto)
    print("said in an instance")
    return sum(1 << core for core in os.sched_getaffinity(0)) + int(os.environ["OMP_NUM_THREADS"]) / 100

if {guard}:
    conf = BenchmarkConfig(num_of_instance=len(os.sched_getaffinity(0)), cores_per_instance=1, warmup=1, iteration=2)
    result = fit(sys.argv[1], conf, b_func=cores)
    print("GOT", sorted(each.returned for each in result.instances), [len(each.seconds) for each in result.instances])
"""


def run_script(folder, guard):
    onnx.save(product(), folder / "model.onnx")
    (folder / "script.py").write_text(SCRIPT.format(guard=guard))
    command = [sys.executable, "script.py", "model.onnx"]
    env = {**os.environ, "PYTHONPATH": str(Path(benchmark.__file__).parents[2])}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)


@pinned
def test_every_instance_has_cores_of_its_own(tmp_path):
    done = run_script(tmp_path, "__name__ == '__main__'")
    cores = sorted(os.sched_getaffinity(0))
    assert f"GOT {[2**core + 0.01 for core in cores]} {[2] * len(cores)}" in done.stdout, done.stderr
    assert "calls/s" in done.stdout
    assert done.stderr.count("said in an instance") == 3 * len(cores)


@pinned
def test_a_script_that_is_not_guarded_is_told_so(tmp_path):
    done = run_script(tmp_path, "True")
    assert "under if __name__ == '__main__'" in done.stderr
    assert done.returncode


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of them"),
        ({"b_func": print, "b_dataloader": BATCHES}, "give one of them"),
        ({"b_func": 3}, "b_func is a int"),
        ({"b_func": lambda model: 0}, "b_func cannot be handed to another process"),
        ({"b_dataloader": iter(BATCHES)}, "gone through only once"),
        ({"config": 3, "b_func": print}, "takes a BenchmarkConfig"),
        ({"config": BenchmarkConfig(diagnosis=True), "b_func": print}, "reports of quantization.fit"),
        ({"config": BenchmarkConfig(cores_per_instance=10**6), "b_func": print}, "ask for fewer"),
    ],
)
def test_calls_that_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        benchmark.fit(product(), **arguments)


@pytest.mark.parametrize(
    ("batches", "message"), [([], "gave no batch"), ([(np.ones((4, 3), np.float32), 0)], "does not run on")]
)
def test_what_goes_wrong_in_an_instance_is_told(batches, message):
    with pytest.raises(EvaluationError, match=f"instance 0 of the benchmark.*{message}"):
        benchmark.fit(product(), b_dataloader=batches)
