"""Which cores instances get, and what is told of their calls."""

import os

import numpy as np
import pytest
from rich.console import Console

from neural_compressor.benchmark.cores import available, shares
from neural_compressor.benchmark.times import BenchmarkResult, InstanceTimes, core_ranges, print_table
from neural_compressor.config import BenchmarkConfig
from neural_compressor.errors import ConfigError


def test_no_core_is_shared():
    given = shares(BenchmarkConfig(cores_per_instance=2, num_of_instance=3), [*range(8)])
    assert given == [[0, 1], [2, 3], [4, 5]]
    assert shares(BenchmarkConfig(), [3, 5]) == [[3, 5]]
    assert shares(BenchmarkConfig(num_of_instance=None), [3]) == [[3]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cores_per_instance": 4, "num_of_instance": 2}, "takes 8 cores, and this process may use 6"),
        ({"num_of_instance": 7}, "takes 7 cores"),
        ({"cores_per_instance": 2, "intra_num_of_threads": 3}, "an instance has 2 cores"),
    ],
)
def test_more_than_there_is(fields, message):
    with pytest.raises(ConfigError, match=message):
        shares(BenchmarkConfig(**fields), [*range(6)])


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not pin processes")
def test_cores_of_one_physical_core_come_after_the_others(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr("neural_compressor.benchmark.cores._siblings", lambda core: str(core // 2))
    assert available() == [0, 2, 1, 3]


def test_numbers():
    seconds = np.random.default_rng(0).uniform(0.01, 0.02, 101)
    one = InstanceTimes((0, 1), tuple(seconds), (8,) * 101)
    assert one.mean_ms == pytest.approx(1e3 * seconds.mean())
    ordered = np.sort(seconds)
    assert (one.p50_ms, one.p90_ms, one.p99_ms) == tuple(pytest.approx(1e3 * ordered[place]) for place in (50, 90, 99))
    assert one.throughput == pytest.approx(808 / seconds.sum())
    result = BenchmarkResult((one, one), "samples")
    assert result.throughput == pytest.approx(2 * one.throughput)
    console = Console(record=True, width=120, quiet=True)
    print_table(result, console)
    assert core_ranges((4, 5, 9)) == "4-5,9"


@pytest.mark.parametrize(
    "field", ["warmup", "iteration", "num_of_instance", "cores_per_instance", "intra_num_of_threads"]
)
def test_settings_that_make_no_sense(field):
    with pytest.raises(ConfigError, match=f"BenchmarkConfig.{field}"):
        BenchmarkConfig(**{field: -3})
    with pytest.raises(ConfigError, match=f"BenchmarkConfig.{field}"):
        BenchmarkConfig(**{field: True})


@pytest.mark.parametrize("fields", [{"model_name": "bert"}, {"inter_num_of_threads": 2}, {"ni_workload_name": "other"}])
def test_settings_that_nothing_reads(fields):
    with pytest.raises(ConfigError, match="leave it at"):
        BenchmarkConfig(**fields).check()
