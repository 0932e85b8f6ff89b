"""What the report tells of the run itself: machine, versions, configuration, shares of time, how to load the model."""

import importlib.metadata
import platform
from types import SimpleNamespace

import numpy as np
import pytest
from sample_result import sample_result

from neural_compressor.config import AccuracyCriterion, PostTrainingQuantConfig
from neural_compressor.report import environment as environment_module
from neural_compressor.report.environment import environment, instructions
from neural_compressor.report.evidence import add_evidence, as_given


def adaptor(shares=None, example=None):
    def time_shares(model):
        if shares is None:
            raise RuntimeError("the profiler is out of order")
        return shares[model]

    return SimpleNamespace(
        time_shares=time_shares, load_snippet=lambda path: f"model = load({path!r})\n", example=example
    )


def told(**kwargs):
    result = sample_result()
    metadata = kwargs.pop("metadata", {})
    result.metadata = dict(metadata)
    add_evidence(result, adaptor(**kwargs), "float", "quantized", PostTrainingQuantConfig(approach="dynamic"))
    return result


def test_shares_of_time_go_to_the_ops():
    shares = {"float": {"norm": 0.4, "head": 0.1}, "quantized": {"norm": 0.75}}
    ops = {op.name: op for op in told(shares=shares).ops}
    assert (ops["norm"].time_share, ops["norm"].float_time_share) == (0.75, 0.4)
    assert (ops["head"].time_share, ops["head"].float_time_share) == (None, 0.1)


def test_a_profile_that_fails_costs_the_shares_and_not_the_run():
    result = told()
    assert all(op.time_share is None for op in result.ops)
    assert result.metadata["configuration"] == {"approach": "dynamic"}


def test_a_model_that_is_nowhere_on_disk_is_saved_first():
    shares = {"float": {}, "quantized": {}}
    assert told(shares=shares, metadata={"best_model": "/a/b"}).metadata["loading"] == "model = load('/a/b')\n"
    lines = told(shares=shares).metadata["loading"].splitlines()
    assert lines == ["# q_model: what was returned", 'q_model.save("quantized")', "model = load('quantized')"]


@pytest.mark.parametrize(
    ("example", "size"),
    [(None, None), (np.zeros((5, 2)), 5), ({"x": np.zeros(7)}, 7), (("a", np.zeros((3, 1))), 3), (np.float32(1), None)],
    ids=["none", "array", "mapping", "tuple", "scalar"],
)
def test_the_batch_size_is_that_of_the_example(example, size):
    assert told(shares={"float": {}, "quantized": {}}, example=example).metadata["batch_size"] == size


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
    monkeypatch.setattr(environment_module, "_CPUINFO", path)
    assert instructions() == expected
    monkeypatch.setattr(environment_module, "_CPUINFO", tmp_path / "missing")
    assert instructions() == ""
