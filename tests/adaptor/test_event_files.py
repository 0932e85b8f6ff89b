"""Event files, read back with TensorBoard's own reader."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from neural_compressor.adaptor.evaluation import EventFile, flatten, run_folder
from neural_compressor.errors import WorkspaceError


def test_scalars_keep_value_and_step(tmp_path):
    with EventFile(tmp_path) as events:
        events.scalar("accuracy", 0.5, step=1)
        events.scalar("accuracy", 0.25, step=2)
    read = EventAccumulator(str(tmp_path)).Reload().Scalars("accuracy")
    assert [(event.step, event.value) for event in read] == [(1, 0.5), (2, 0.25)]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_histogram_tells_of_every_value(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("events")
    with EventFile(folder) as events:
        events.histogram("values", np.array(values))
    read = EventAccumulator(str(folder)).Reload().Histograms("values")[0].histogram_value
    assert (read.min, read.max, read.num) == (min(values), max(values), len(values))
    assert sum(read.bucket) == len(values)
    assert read.sum == pytest.approx(sum(values), abs=1e-6)
    # Each bucket counts the values up to its limit.
    limits, below = read.bucket_limit, np.cumsum(read.bucket)
    for limit, count in zip(limits[:-1], below, strict=False):
        assert sum(v < limit for v in values) <= count <= sum(v <= limit for v in values)


def test_values_that_are_not_finite_are_left_out_of_a_histogram(tmp_path):
    with EventFile(tmp_path) as events:
        events.histogram("some", [1.0, np.nan, np.inf])
        events.histogram("none", [np.nan])
    read = EventAccumulator(str(tmp_path)).Reload()
    assert read.Tags()["histograms"] == ["some"]
    assert read.Histograms("some")[0].histogram_value.num == 1


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(WorkspaceError, match="runs"):
        EventFile(tmp_path / "runs" / "eval")


def test_run_folders_go_on_after_the_highest_number(tmp_path):
    assert run_folder(tmp_path, fp32_baseline=True) == tmp_path / "runs" / "eval" / "baseline"
    for name in ("tune_2", "tune_10", "tune_x", "other"):
        (tmp_path / "runs" / "eval" / name).mkdir(parents=True)
    assert run_folder(tmp_path, fp32_baseline=False).name == "tune_11"


def test_flatten_numbers_iterations():
    tensors = {"activation": [{"fc": {"output0": 1}}, {"fc": {"output0": 2}}], "weight": {"fc": {"weight": 3}}}
    assert list(flatten(tensors, "")) == [
        ("activation/fc/output0", 0, 1),
        ("activation/fc/output0", 1, 2),
        ("weight/fc/weight", 0, 3),
    ]


def test_writing_imports_no_framework(tmp_path):
    code = (
        "import sys; from pathlib import Path; from neural_compressor.adaptor.evaluation import EventFile\n"
        f"with EventFile(Path({str(tmp_path)!r})) as events:\n"
        "    events.scalar('a', 1.0); events.histogram('b', [1.0, 2.0])\n"
        "print([name for name in ('torch', 'tensorflow') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
