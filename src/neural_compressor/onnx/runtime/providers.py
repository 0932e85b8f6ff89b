"""Execution providers of ONNX Runtime: what they are called, and which one a model is quantized for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import onnx
import onnx_ir as ir
import onnxruntime as ort

from neural_compressor.errors import ConfigError, MissingDependencyError
from neural_compressor.registry import close_matches

logger = logging.getLogger("neural_compressor")


@dataclass(frozen=True)
class Provider:
    """An execution provider, its name as a ``backend`` of the 2.x API, and what must be installed for it.

    ``beside`` are the providers that take the nodes this one does not.
    """

    name: str
    backend: str
    device: str
    package: str
    beside: tuple[str, ...] = ("CPUExecutionProvider",)


CPU = Provider("CPUExecutionProvider", "default", "cpu", "onnxruntime", beside=())
TENSORRT = Provider(
    "TensorrtExecutionProvider",
    "onnxrt_trt_ep",
    "gpu",
    "onnxruntime-gpu and TensorRT",
    beside=("CUDAExecutionProvider", "CPUExecutionProvider"),
)
CUDA = Provider("CUDAExecutionProvider", "onnxrt_cuda_ep", "gpu", "onnxruntime-gpu")
DNNL = Provider("DnnlExecutionProvider", "onnxrt_dnnl_ep", "cpu", "an ONNX Runtime built with oneDNN")
DML = Provider("DmlExecutionProvider", "onnxrt_dml_ep", "npu", "onnxruntime-directml")

PROVIDERS = (TENSORRT, CUDA, DML, CPU, DNNL)
"""Those there are a capability for; the automatic choice is the first that runs, so DNNL is had by name alone."""
AUTOMATIC = ("auto", "default")
"""Names that leave the choice to what is installed."""


@dataclass(frozen=True)
class Target:
    """What a model is quantized for, and the providers its sessions have on this machine."""

    provider: Provider
    sessions: tuple[str, ...]

    @property
    def runs_here(self) -> bool:
        """Whether sessions use the provider the model is for."""
        return self.provider.name in self.sessions

    def warn_of_batch(self, model: ir.Model) -> None:
        """DirectML has kernels for integer ops at a fixed batch of one sample."""
        given = [value for value in model.graph.inputs if not value.is_initializer()]
        if self.provider is DML and not all(v.shape is not None and len(v.shape) and v.shape[0] == 1 for v in given):
            logger.warning("%s runs quantized models with a batch fixed to 1, and this model's is not", DML.name)


def find_provider(name: str) -> Provider:
    """The provider called ``name``, by its own name or as a backend of the 2.x API.

    >>> find_provider("onnxrt_cuda_ep").name
    'CUDAExecutionProvider'
    """
    known = {p.name: p for p in PROVIDERS} | {p.backend: p for p in PROVIDERS}
    if name not in known:
        raise ConfigError(f"unknown execution provider {name!r}; {close_matches(str(name), known)}")
    return known[name]


def choose_target(
    name: str | None = None,
    *,
    device: str | None = None,
    graph_only: bool = False,
    runs: Callable[[str], bool] | None = None,
) -> Target:
    """The target called ``name``, or the first of :data:`PROVIDERS` that runs here.

    A provider asked for that does not run here is an error, unless ``graph_only`` says that the quantized graph is all
    that is wanted: it is then calibrated on the CPU. ``device`` ('cpu', 'gpu', 'npu') bounds the automatic choice.
    ``runs(name)`` tells whether a provider runs here; by default a small session is tried.

    >>> choose_target("CPUExecutionProvider").sessions
    ('CPUExecutionProvider',)
    """
    runs = runs or provider_runs
    if name is None or name in AUTOMATIC:
        return _automatic(device, runs)
    provider = find_provider(name)
    if runs(provider.name):
        return Target(provider, _sessions(provider, runs))
    if not graph_only:
        raise MissingDependencyError(
            f"{provider.name} does not run here; install {provider.package}, or choose among what ONNX Runtime "
            f"{ort.__version__} offers: {', '.join(p.name for p in PROVIDERS if runs(p.name))}"
        )
    logger.warning(
        "%s does not run here: the graph is made for it, and calibrated and run on the CPU meanwhile", provider.name
    )
    return Target(provider, (CPU.name,))


@cache
def provider_runs(name: str) -> bool:
    """Whether a session really gets the provider: a package lists those it was built with, devices or not."""
    if name == CPU.name or name not in ort.get_available_providers():
        return name == CPU.name  # which every build has
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "probe", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    ort.set_default_logger_severity(4)  # what goes wrong is said here
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session = ort.InferenceSession(model.SerializeToString(), options, providers=[name], enable_fallback=0)
    except Exception as error:  # noqa: BLE001 - the runtime's errors share no other base class
        logger.info("%s is installed and does not start: %s", name, error)
        return False
    finally:
        ort.set_default_logger_severity(2)
    return name in session.get_providers()


def _automatic(device: str | None, runs: Callable[[str], bool]) -> Target:
    candidates = [p for p in PROVIDERS if device in (None, p.device)]
    for provider in candidates:
        if runs(provider.name):
            return Target(provider, _sessions(provider, runs))
        if provider.name in ort.get_available_providers():
            logger.warning("%s is installed and does not run here; trying the next provider", provider.name)
    raise MissingDependencyError(
        f"no execution provider for the device {device!r} runs here; install "
        f"{' or '.join(p.package for p in candidates) or 'one'}, or leave the device at 'cpu'. "
        "To make the graph alone, name the provider it is for"
    )


def _sessions(provider: Provider, runs: Callable[[str], bool]) -> tuple[str, ...]:
    return (provider.name, *(name for name in provider.beside if runs(name)))
