"""The contract between the tuning core and a framework: what an adaptor must and may implement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from neural_compressor.adaptor.capability import get_optype_wise_ability
from neural_compressor.adaptor.evaluation import evaluate_batches
from neural_compressor.adaptor.framework_config import to_framework_config
from neural_compressor.adaptor.records import Node, OpRecord
from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry
from neural_compressor.schemes import OpKey, Plan

Model = Any
"""A model of the adaptor's framework; the core never looks inside."""

FRAMEWORK_SETTINGS = ("device", "backend", "domain", "quant_format", "inputs", "outputs")
"""Fields of a configuration that only some frameworks know."""

ADAPTORS: Registry[type[Adaptor]] = Registry("adaptor", entry_point_group="neural_compressor.adaptors")


class Adaptor(ABC):
    """A framework as the tuning core sees it.

    Subclass it, implement the abstract methods, and declare the class under the entry-point group
    ``neural_compressor.adaptors``. ``neural_compressor.testing.AdaptorContract`` checks the result.
    """

    #: What ``query_fw_capability`` reads its framework YAML with; set by subclasses that have one.
    query_handler: Any = None

    #: Fields of a configuration that only some frameworks know and this adaptor applies (``device``, ``backend``, ...).
    settings: frozenset[str] = frozenset()

    #: Inputs of one batch, with which latency is measured; set by ``query_fw_capability`` where it knows of data.
    example: Any = None

    #: Calibration data that the adaptor holds itself, besides what :meth:`quantize` is given; a job is known by it too.
    calibration_data: Sequence[Any] = ()

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        self.info: dict[str, Any] = dict(framework_specific_info or {})
        self.quantize_config: dict[str, Any] = {}
        self.bf16_ops: list[tuple[str, str]] = []
        #: How many samples calibration saw, by how many a plan asked for; adaptors that count fill it in.
        self.samples_seen: dict[int, int] = {}

    # -- what every adaptor implements ------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def handles(cls, model: Model) -> bool:
        """Whether ``model`` belongs to this framework (cheap; must not import the framework to say no)."""

    @abstractmethod
    def query_fw_capability(self, model: Model) -> dict[str, Any]:
        """``{'opwise': {(name, type): [config, ...]}, 'optypewise': {type: config}}`` of this model.

        Called once; pre-optimisations (folding) happen here and are cached for :meth:`quantize`. May add
        ``'blocks'``, a list of lists of op keys, and ``'skipped'``, ``{(name, type): reason}``.
        """

    @abstractmethod
    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: Model,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[Model], Any] | None = None,
    ) -> Model:
        """A new model quantized as ``tune_cfg`` says; ``model`` itself is left as it was."""

    @abstractmethod
    def predict(self, model: Model, inputs: Any) -> Any:
        """Run ``model`` on the inputs of one batch."""

    @abstractmethod
    def save(self, model: Model, path: str | Path) -> None:
        """Write a quantized model into the folder ``path``, atomically."""

    @abstractmethod
    def load(self, path: str | Path, model: Model) -> Model:
        """Read back what :meth:`save` wrote; ``model`` is the float model it was made from."""

    @abstractmethod
    def model_size(self, model: Model) -> int:
        """Bytes the model takes on disk."""

    # -- what has a sensible default --------------------------------------------------------------------------------

    def tuning_cfg_to_fw(self, tune_cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Fill and return ``quantize_config``: device, calib_iteration, advance and the dispatched ops."""
        self.quantize_config, self.bf16_ops = to_framework_config(tune_cfg, self.info)
        return self.quantize_config

    def output_sqnr(self, model: Model) -> float | None:
        """How exactly a quantized model gives what the float one does on an example, in dB; None where that is not cheap."""
        return None

    def load_snippet(self, path: str) -> str:
        """Lines of Python that read back what :meth:`save` wrote to ``path``."""
        return (
            "from neural_compressor import quantization\n\n"
            "# float_model: the model before it was quantized\n"
            f"model = quantization.load({path!r}, float_model)\n"
        )

    def get_optype_wise_ability(
        self, quantizable_op_details: Mapping[OpKey, Sequence[dict[str, Any]]]
    ) -> dict[str, Any]:
        """The op-type view of the op-wise details, for ``query_fw_capability``."""
        return get_optype_wise_ability(quantizable_op_details)

    #: The spelling some existing adaptors call it by.
    get_optye_wise_ability = get_optype_wise_ability

    def data_or_own(self, dataloader: Iterable[Any] | None) -> Iterable[Any] | None:
        """``dataloader``, or the calibration data that the adaptor was made with where that is None."""
        return self.info.get("dataloader") if dataloader is None else dataloader

    def check_settings(self, conf: Any) -> None:
        """Refuse fields of a configuration that only some frameworks know, were changed, and are not in :attr:`settings`."""
        for name, (given, usual) in conf.changed(*FRAMEWORK_SETTINGS).items():
            if name not in self.settings:
                raise ConfigError(f"{type(self).__name__} does not apply {name}={given!r}; leave it at {usual!r}")

    def evaluate(
        self,
        model: Model,
        dataloader: Iterable[Any],
        postprocess: Callable[[Any], Any] | None = None,
        metrics: Sequence[Any] | None = None,
        measurer: Any = None,
        iteration: int = -1,
        tensorboard: bool = False,
        fp32_baseline: bool = False,
    ) -> Any:
        """Run the model over ``dataloader`` and return the metric, or a list where several are given."""
        return evaluate_batches(
            self, model, dataloader, postprocess, metrics, measurer, iteration, tensorboard, fp32_baseline
        )

    def summary(self, model: Model) -> list[OpRecord]:
        """One record for each op of a quantized model, ops left in float included, with the reason."""
        return []

    def nodes(self, model: Model) -> list[Any]:
        """What the model runs, each with its ``name`` and ``op_type``."""
        return [Node(op.name, op.op_type) for op in self.summary(model)]

    def describe(self, model: Model) -> str:
        """``model`` in words that a person reads."""
        return repr(model)

    def ready(self, model: Model) -> Model:
        """``model`` as it is evaluated and quantized: itself, or a copy of one that is in training mode."""
        return model

    def settle(self, model: Model) -> None:  # noqa: B027 - most frameworks have nothing to undo
        """Undo what an evaluation may have left on ``model``, such as a training mode."""

    def on_one_thread(self, models: Sequence[Model]) -> AbstractContextManager[bool]:
        """While it is open, :meth:`predict` of ``models`` works on the calling thread alone where it says True.

        Latency is then that thread's CPU time, which other processes hardly change. With False, the default, the wall clock
        counts.
        """
        return nullcontext(False)

    def batch_inputs(self, model: Model, batch: Any) -> tuple[Any, int]:
        """The inputs of a batch of a data loader, without the label, and how many samples they are."""
        inputs = batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch
        shape = getattr(inputs, "shape", ())
        return inputs, int(shape[0]) if shape else 1

    def finish(self, outputs: Any) -> Any:
        """``outputs`` of :meth:`predict` when they are there: a device may still be at work when a call returns."""
        return outputs

    def hand_over(self, model: Model, folder: Path) -> Any:
        """What another process is given for ``model``, which is pickled for it; files may be put into ``folder``."""
        return model

    def fingerprint(self, model: Model) -> str:
        """Identity of the float model (structure and weights), so that a journal is resumed only for the same one."""
        return type(model).__qualname__

    # -- optional abilities -----------------------------------------------------------------------------------------

    def prepare_training(self, tune_cfg: Mapping[str, Any], model: Model) -> Any:
        """Start quantization-aware training: an object whose ``model`` is trained and whose ``finish()`` is the result."""
        raise self._unsupported("prepare_training")

    def train(
        self,
        model: Model,
        dataloader: Iterable[Any],
        tune_cfg: Mapping[str, Any],
        criterion: Callable[[Any, Any], Any],
        optimizer: Callable[[Any], Any] | None = None,
        epochs: int = 1,
    ) -> Model:
        """Quantization-aware training."""
        raise self._unsupported("train")

    def convert(self, model: Model, source: str, destination: str) -> Model:
        """Convert a model from one format to another."""
        raise self._unsupported("convert")

    def export(self, model: Model, conf: Any) -> Any:
        """``model`` as an ``onnx.ModelProto``, written as ``conf``, a ``Torch2ONNXConfig``, says."""
        raise ConfigError(f"{type(self).__name__} writes no ONNX models of others; save() writes the model as it is")

    def quantize_input(self, model: Model) -> Any:
        """Make the model take quantized input; returns the model and the scale of its input."""
        raise self._unsupported("quantize_input")

    def inspect_tensor(
        self,
        model: Model,
        dataloader: Iterable[Any],
        op_list: Sequence[Any] = (),
        iteration_list: Sequence[int] = (1,),
        inspect_type: str = "activation",
        save_to_disk: bool = False,
    ) -> dict[str, Any]:
        """Weights and activations of ops as NumPy arrays.

        ``{'weight': {op: {tensor: array}}, 'activation': [{op: {tensor: array}}, ...]}``, with one mapping for each
        iteration in ``iteration_list`` (counted from 1). ``inspect_type`` is ``'weight'``, ``'activation'`` or
        ``'all'``; an empty ``op_list`` stands for every op. ``save_to_disk`` writes it into the workspace, too.
        """
        raise self._unsupported("inspect_tensor")

    def set_tensor(self, model: Model, tensor_dict: Mapping[str, Any]) -> Model:
        """A new model with tensors written into it: ``{'op.tensor': array}``, named as :meth:`inspect_tensor` does."""
        raise self._unsupported("set_tensor")

    def op_errors(self, plan: Plan, model: Model, dataloader: Iterable[Any] | None = None) -> dict[OpKey, float]:
        """How far the output of each op that ``plan`` quantizes is from that in the float model, as a share of it.

        sum |quantized - float|^2 / sum |float|^2 over as much data as the plan calibrates with, batch by batch. Each op is
        quantized alone, on the inputs it has in the float model. Without data, it is what the adaptor was given.
        """
        raise self._unsupported("op_errors")

    def op_gains(self, model: Model, dataloader: Iterable[Any] | None = None) -> dict[OpKey, float]:
        """By which factor such an error of each op's output comes out of the model, to first order.

        ``op_errors * op_gains`` is the share of the model's output error that is due to an op. Needs derivatives.
        """
        raise self._unsupported("op_gains")

    def op_curvatures(
        self, plan: Plan, model: Model, loss: Callable[..., Any], dataloader: Iterable[Any] | None = None
    ) -> dict[OpKey, float]:
        """What a loss of a user gains by the weight of each op that ``plan`` quantizes, to second order.

        The mean of the diagonal of the Hessian of ``loss(output, label)`` times |quantized weight - weight|^2. Needs
        derivatives, and data with labels.
        """
        raise self._unsupported("op_curvatures")

    def convert_bf16(self, model: Model) -> Model:
        """Convert the ops in ``self.bf16_ops`` to bf16."""
        raise self._unsupported("convert_bf16")

    def _unsupported(self, ability: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} does not offer {ability!r}")


def adaptor_for(model: Model) -> type[Adaptor]:
    """The registered adaptor that handles ``model``; adaptors whose framework is not installed are passed over."""
    missing = []
    for name in ADAPTORS:
        try:
            adaptor = ADAPTORS[name]
        except ImportError as error:
            missing.append(f"{name} is out: {error}")
            continue
        if adaptor.handles(model):
            return adaptor
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    known = f"registered adaptors: {', '.join(ADAPTORS.names())}"
    what = f"a model of type {kind}"
    if isinstance(model, str | Path):
        there = "holds none of a kind that is known" if Path(model).exists() else "is not there"
        what = f"a model at the path {str(model)!r}, which {there}"
    raise ConfigError("; ".join([f"no adaptor handles {what}", known, *missing]))
