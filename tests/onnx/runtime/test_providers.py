"""Names of execution providers, and which one is chosen."""

import logging

import onnxruntime
import pytest

from neural_compressor.config.validators import BACKENDS
from neural_compressor.errors import ConfigError, MissingDependencyError
from neural_compressor.onnx.runtime.providers import PROVIDERS, choose_target, find_provider, provider_runs

CPU, CUDA, TENSORRT, DML, DNNL = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt", "Dml", "Dnnl"))


def only(*names):
    return lambda name: name in names


def test_every_provider_has_a_backend_name_of_the_2x_api():
    assert {p.backend for p in PROVIDERS} == {b for b in BACKENDS if b == "default" or b.startswith("onnxrt_")}
    assert all(find_provider(p.backend) is find_provider(p.name) is p for p in PROVIDERS)


def test_an_unknown_name_is_an_error_with_close_matches():
    with pytest.raises(ConfigError, match=r"did you mean .*'CUDAExecutionProvider'"):
        choose_target("CudaExecutionProvider")


@pytest.mark.parametrize("asked", [None, "auto", "default"])
@pytest.mark.parametrize(
    ("installed", "chosen", "sessions"),
    [
        ((CPU,), CPU, (CPU,)),
        ((CUDA, CPU), CUDA, (CUDA, CPU)),
        ((TENSORRT, CUDA, CPU), TENSORRT, (TENSORRT, CUDA, CPU)),
        ((DML, CPU), DML, (DML, CPU)),
        ((DNNL, CPU), CPU, (CPU,)),
    ],
)
def test_automatic_choice_is_gpu_or_npu_then_cpu(asked, installed, chosen, sessions):
    target = choose_target(asked, runs=only(*installed))
    assert (target.provider.name, target.sessions, target.runs_here) == (chosen, sessions, True)


@pytest.mark.parametrize(("device", "chosen"), [("cpu", CPU), ("gpu", CUDA), ("npu", DML)])
def test_a_device_bounds_the_automatic_choice(device, chosen):
    assert choose_target(device=device, runs=only(CUDA, DML, CPU)).provider.name == chosen


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(MissingDependencyError, match=r"'gpu'.*onnxruntime-gpu"):
        choose_target(device="gpu", runs=only(CPU))


def test_a_provider_that_is_installed_and_does_not_start_is_passed_over_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        assert choose_target(runs=only(CPU)).provider.name == CPU
    assert CUDA in caplog.text


@pytest.mark.parametrize("name", [CUDA, "onnxrt_trt_ep", DML, DNNL])
def test_a_provider_asked_for_by_name_that_does_not_run_is_an_error_that_says_what_to_install(name):
    with pytest.raises(MissingDependencyError) as error:
        choose_target(name, runs=only(CPU))
    assert find_provider(name).name in str(error.value)
    assert find_provider(name).package in str(error.value)
    assert CPU in str(error.value)


def test_the_graph_alone_can_be_had_for_a_provider_that_does_not_run_here(caplog):
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        target = choose_target(CUDA, graph_only=True, runs=only(CPU))
    assert (target.provider.name, target.sessions, target.runs_here) == (CUDA, (CPU,), False)
    assert "CPU" in caplog.text


def test_whether_a_provider_runs_is_tried_and_not_read_from_a_list(monkeypatch):
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    provider_runs.cache_clear()
    try:
        assert provider_runs(CPU)
        assert not provider_runs(CUDA) or onnxruntime.get_device() == "GPU"
        assert not provider_runs(DML)
    finally:
        provider_runs.cache_clear()
