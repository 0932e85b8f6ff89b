"""What the report tells of the run itself: machine, versions, configuration, how to load the model."""

import importlib.metadata
import platform
from types import SimpleNamespace

import numpy as np
import pytest
from sample_result import sample_result

from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig
from neural_compressor.report import run_report
from neural_compressor.report.run_report import add_evidence, as_given, environment, instructions


def told(example=None, **metadata):
    result = sample_result()
    result.metadata = metadata
    adaptor = SimpleNamespace(load_snippet=lambda path: f"model = load({path!r})\n", example=example)
    add_evidence(result, adaptor, PostTrainingQuantConfig(approach="dynamic"))
    return result.metadata


def test_a_model_that_is_nowhere_on_disk_is_saved_first():
    assert told(best_model="/a/b")["loading"] == "model = load('/a/b')\n"
    lines = told()["loading"].splitlines()
    assert lines == ["# q_model: what was returned", 'q_model.save("quantized")', "model = load('quantized')"]


@pytest.mark.parametrize(
    ("example", "size"),
    [(None, None), (np.zeros((5, 2)), 5), ({"x": np.zeros(7)}, 7), (("a", np.zeros((3, 1))), 3), (np.float32(1), None)],
    ids=["none", "array", "mapping", "tuple", "scalar"],
)
def test_the_batch_size_is_that_of_the_example(example, size):
    assert told(example)["batch_size"] == size


def test_of_a_configuration_what_was_set_is_told():
    conf = PostTrainingQuantConfig(
        accuracy_criterion=AccuracyCriterion(tolerable_loss=0.02),
        example_inputs=np.zeros(3),
        excluded_precisions=["bf16"],
    )
    assert as_given(conf) == {
        "accuracy_criterion": {"tolerable_loss": 0.02}, "example_inputs": "ndarray", "excluded_precisions": ["bf16"],
    }  # fmt: skip


def test_the_environment_has_the_machine_and_the_versions():
    found = environment()
    assert found["versions"]["python"] == platform.python_version()
    assert found["versions"]["numpy"] == np.__version__
    assert found["versions"]["open-neural-compressor"] == importlib.metadata.version("open-neural-compressor")
    assert found["machine"]["CPU"]
    assert found["date"].endswith("UTC")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model name\t: x\nflags\t\t: fpu avx2 avx512f avx512_vnni\n", "AVX2, AVX-512, VNNI"),
        ("Features\t: fp asimd asimddp\n", "NEON, dot product"),
        ("processor : 0\n", ""),
    ],
    ids=["x86", "arm", "neither"],
)
def test_instruction_sets_are_read_from_the_system(tmp_path, monkeypatch, text, expected):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    monkeypatch.setattr(run_report, "_CPUINFO", path)
    assert instructions() == expected
    monkeypatch.setattr(run_report, "_CPUINFO", tmp_path / "missing")
    assert instructions() == ""
