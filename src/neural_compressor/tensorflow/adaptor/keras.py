"""Keras behind the adaptor contract.

Nothing here imports Keras before there is a model to work on: whoever asks whether a model is one gets an answer first.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from neural_compressor.adaptor.capability import op_configs
from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.adaptor.records import OpRecord
from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.config.recipes import with_recipes
from neural_compressor.errors import CalibrationError, ConfigError, NeuralCompressorError, QuantizationError
from neural_compressor.schemes import OpKey, Pass, Plan, float_op, sqnr_db
from neural_compressor.tensorflow.adaptor.requirements import require_tensorflow

if TYPE_CHECKING:
    from neural_compressor.tensorflow.executor import Executor
    from neural_compressor.tensorflow.litert.keras_file import LiteRTFile

logger = logging.getLogger("neural_compressor")
RECIPES: Mapping[str, tuple[str, ...]] = {
    "smooth_quant": ("static", "dynamic"),
    "smooth_quant_args": ("static", "dynamic"),
    "fast_bias_correction": ("static",),
    "equalization": ("static", "dynamic"),
}
"""The recipes that are applied, with the modes of quantization they are about."""
_YAML = Path(__file__).parents[2] / "adaptor" / "keras.yaml"


class KerasQuery(QueryBackendCapability):
    """Reads keras.yaml."""

    def config_file(self) -> Path:
        return _YAML

    def installed_version(self) -> str:
        import keras

        return str(keras.__version__)

    def known_op_types(self) -> Sequence[str]:
        from neural_compressor.tensorflow.structure.ops import UNWEIGHTED, WEIGHTED

        return (*WEIGHTED, *UNWEIGHTED)


class KerasAdaptor(Adaptor):
    """Quantizes Keras 3 models: functional, Sequential, and subclassed ones made of layers and ``keras.ops``.

    ``framework_specific_info`` may hold ``dataloader`` (calibration batches), ``example_inputs``, ``framework_yaml`` (laid
    over the built-in capability) and ``workspace``.
    """

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        require_tensorflow()
        self.query_handler = KerasQuery(overlay=self.info.get("framework_yaml"))
        self._executor: Executor | None = None
        self._files: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._runners: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._racing = False
        self._read: dict[str, Any] = {}

    @classmethod
    def handles(cls, model: Any) -> bool:
        if isinstance(model, str | Path):
            return Path(model).suffix in (".keras", ".h5", ".hdf5")
        keras = sys.modules.get("keras")
        return keras is not None and isinstance(model, keras.Model)

    def ready(self, model: Any) -> Any:
        """The model itself, or the one in the file that was given."""
        from neural_compressor.tensorflow.files.source import read_keras

        if not isinstance(model, str | Path):
            return model
        if str(model) not in self._read:
            self._read[str(model)] = read_keras(Path(model))
        return self._read[str(model)]

    def query_fw_capability(self, model: Any) -> dict[str, Any]:
        model = self.ready(model)
        graph = self._prepared(model).graph
        self.example = self._first_inputs(model)
        details = {key: op_configs(self.query_handler, key[1], key[1] in _weighted()) for key in graph.ops()}
        return {
            "opwise": details,
            "optypewise": self.get_optype_wise_ability(details),
            "skipped": graph.skipped(),
            "quantizable_types": self.query_handler.known_op_types(),
            "recipes": RECIPES,
            "passes": (Pass("correct_biases"),),
        }

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: Any,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[Any], Any] | None = None,
    ) -> Any:
        executor = self._prepared(model)
        loader = dataloader if dataloader is not None else self.info.get("dataloader")
        self.info.setdefault("batch_size", getattr(loader, "batch_size", None) or 1)
        self.tuning_cfg_to_fw(tune_cfg)
        plan = with_recipes(Plan.from_tune_cfg(tune_cfg), tune_cfg.get("recipe_cfgs") or {})
        if q_func is not None:
            return executor.run(plan, lambda prepared: self._by_function(prepared, q_func), q_func)
        if loader is None:
            return executor.run(plan)
        return executor.run(plan, lambda prepared: self._by_data(prepared, loader, plan.calib_sampling_size), loader)

    def convert_bf16(self, model: Any) -> Any:
        """The ops in ``self.bf16_ops`` with inputs and weights rounded to bf16: simulated."""
        return self._prepared(model).run(Plan({key: float_op("bf16") for key in self.bf16_ops}))

    def predict(self, model: Any, inputs: Any) -> Any:
        from neural_compressor.tensorflow.batches import run

        model = self.ready(model)
        return self._runners[model](inputs) if self._racing else run(model, inputs)

    @contextmanager
    def on_one_thread(self, models: Sequence[Any]) -> Iterator[bool]:
        """Models as LiteRT files, which is how they are deployed; what cannot be a file has all of them run by Keras."""
        alone = all(self._as_file(model) for model in models)
        self._racing = alone
        try:
            yield alone
        finally:
            self._racing = False

    def litert(self, model: Any) -> LiteRTFile:
        """A quantized model as a LiteRT file, made once."""
        from neural_compressor.tensorflow.litert.keras_file import to_litert

        if model not in self._files:
            try:
                self._files[model] = to_litert(model)
            except QuantizationError as error:
                self._files[model] = error
        if isinstance(self._files[model], QuantizationError):
            raise self._files[model]
        found: LiteRTFile = self._files[model]
        return found

    def convert(self, model: Any, source: str, destination: str) -> bytes:
        """The bytes of a LiteRT file of a Keras model, quantized or not."""
        if (source, destination) != ("keras", "litert"):
            raise ConfigError(f"convert: got {source!r} to {destination!r}; known: 'keras' to 'litert'")
        from neural_compressor.tensorflow.litert.keras_file import float_litert

        if hasattr(model, "quantization"):
            return self.litert(model).content
        return float_litert(self._prepared(model).graph.model)

    def save(self, model: Any, path: str | Path) -> None:
        from neural_compressor.tensorflow.files.checkpoint import save_model

        try:
            content = self.litert(model).content
        except QuantizationError as error:
            logger.warning("%s; the folder %s holds no LiteRT file", error, path)
            content = None
        save_model(model, Path(path), content)

    def load(self, path: str | Path, model: Any) -> Any:
        from neural_compressor.tensorflow.files.checkpoint import load_model

        return load_model(Path(path), self._prepared(model).graph)

    def model_size(self, model: Any) -> int:
        from neural_compressor.tensorflow.files.checkpoint import stored_arrays

        return sum(array.nbytes for array in stored_arrays(self.ready(model)).values())

    def summary(self, model: Any) -> list[OpRecord]:
        assert self._executor is not None
        graph = self._executor.graph
        records = [self._record(key, model) for key in graph.ops()]
        return [*records, *(OpRecord(*key, "fp32", reason=why) for key, why in graph.skipped().items())]

    def fingerprint(self, model: Any) -> str:
        model = self.ready(model)
        config = model.to_json() if hasattr(model, "to_json") and _has_config(model) else type(model).__qualname__
        digest = hashlib.sha256(config.encode())
        for weight in model.weights:
            digest.update(f"{weight.path} {weight.shape}".encode() + np.asarray(weight.numpy()).tobytes())
        return digest.hexdigest()[:16]

    def inspect_tensor(
        self,
        model: Any,
        dataloader: Iterable[Any],
        op_list: Sequence[Any] = (),
        iteration_list: Sequence[int] = (1,),
        inspect_type: str = "activation",
        save_to_disk: bool = False,
    ) -> dict[str, Any]:
        from neural_compressor.tensorflow.inspection import inspect, write_tensors

        found = inspect(self._graph_of(model), dataloader, op_list, iteration_list, inspect_type)
        if save_to_disk:
            write_tensors(found, Path(self.info.get("workspace") or ".") / "inspect_saved")
        return found

    def set_tensor(self, model: Any, tensor_dict: Mapping[str, Any]) -> Any:
        """A new model, in inference form, with tensors written into it."""
        from neural_compressor.tensorflow.inspection import with_tensors

        return with_tensors(self._graph_of(model), tensor_dict)

    def op_errors(self, plan: Plan, model: Any, dataloader: Iterable[Any] | None = None) -> dict[OpKey, float]:
        """Those of ops that the graph calls once."""
        from neural_compressor.tensorflow.batches import feeds
        from neural_compressor.tensorflow.sensitivity import op_errors

        loader = dataloader if dataloader is not None else self.info.get("dataloader")
        if not any(not scheme.is_float for scheme in plan.values()):
            return {}
        if loader is None:
            raise CalibrationError("errors of ops are seen on data: give a calibration data loader")
        quantized = self.quantize(plan.to_tune_cfg(), model, loader)
        found = self._prepared(model).graph.model
        return op_errors(quantized.quantization, feeds(found, loader, plan.calib_sampling_size))

    def _graph_of(self, model: Any) -> Any:
        """The graph whose tensors are shown: that of a quantized model itself, of others the one that plans name."""
        from neural_compressor.tensorflow.structure.ops import Graph

        return Graph(model) if hasattr(model, "quantization") else self._prepared(model).graph

    def describe(self, model: Any) -> str:
        parts = getattr(model, "quantization", None)
        ops = (
            ""
            if parts is None
            else f", {sum(not s.is_float for s in parts.plan.values())} ops quantized (simulated in Keras)"
        )
        return f"<keras {type(model).__name__} {model.name!r}: {len(model.layers)} layers{ops}>"

    def _prepared(self, model: Any) -> Executor:
        from neural_compressor.tensorflow.executor import Executor

        model = self.ready(model)
        if self._executor is None or self._executor.model is not model:
            self._executor = Executor(model)
        return self._executor

    def _first_inputs(self, model: Any) -> Any:
        from neural_compressor.tensorflow.batches import inputs_of, samples_in

        if self.info.get("example_inputs") is not None:
            return self.info["example_inputs"]
        for batch in self.info.get("dataloader") or ():
            inputs = inputs_of(batch, model)
            self.info.setdefault("batch_size", samples_in(inputs))
            return inputs
        return None

    def _by_data(self, prepared: Any, loader: Iterable[Any], samples: int) -> None:
        from neural_compressor.tensorflow.batches import feeds, run, samples_in

        seen = 0
        for inputs in feeds(prepared, loader, samples):
            run(prepared, inputs)
            seen += samples_in(inputs)
        self.samples_seen[samples] = seen

    def _by_function(self, prepared: Any, function: Callable[[Any], Any]) -> None:
        with calibrating(function, "calib_func", lambda: 0):
            function(prepared)

    def _record(self, key: OpKey, model: Any) -> OpRecord:
        assert self._executor is not None
        from neural_compressor.tensorflow.structure.ops import weights_of

        parts = model.quantization
        views = weights_of(self._executor.graph.ops()[key])
        scheme, codes = parts.plan.get(key), parts.codes.get(key[0], {})
        size = sum(codes[n].array.nbytes_packed if n in codes else v.matrix().nbytes for n, v in views.items())
        if scheme is None:
            return OpRecord(*key, "fp32", reason="not in the tuning configuration", size_bytes=size)
        activation = scheme.activation.dtype.name if scheme.activation else "fp32"
        error = None
        if codes:
            tensor = next(iter(codes))
            error = sqnr_db(views[tensor].matrix(), np.asarray(codes[tensor].dequantize()))
        if scheme.is_float:
            reason = f"the tuning configuration keeps it in {scheme.precision}"
            return OpRecord(*key, scheme.precision, activation, reason=reason, weight_sqnr=error, size_bytes=size)
        kernel, why = self._kernel(key, model)
        return OpRecord(*key, scheme.precision, activation, scheme.mode, kernel, bool(why), why, error, size_bytes=size)

    def _kernel(self, key: OpKey, model: Any) -> tuple[str, str]:
        """What runs an op where the model is deployed, and why that is no kernel of its own."""
        try:
            file = self.litert(model)
        except QuantizationError as error:
            return "float on quantized values", str(error)
        if key[0] in file.ops:
            return f"LiteRT {file.ops[key[0]]}", ""
        why = file.in_float.get(key[0], "the file has no such op")
        return "float on quantized values", f"{why}; in float in the LiteRT file"

    def _as_file(self, model: Any) -> bool:
        from neural_compressor.tensorflow.litert.runner import Runner

        if model not in self._runners:
            try:
                names = [tensor.name for tensor in model.inputs] if getattr(model, "inputs", None) else None
                self._runners[model] = _plain_outputs(Runner(self.convert(model, "keras", "litert"), order=names))
            except NeuralCompressorError as error:
                logger.info("latency is that of Keras: %s", error)
                return False
        return True


def _plain_outputs(runner: Any) -> Callable[[Any], Any]:
    """A runner that gives one output as an array and several as a list, as a Keras model does."""

    def run(inputs: Any) -> Any:
        found = runner(inputs)
        outputs = [found[name] for name in runner.outputs]
        return outputs[0] if len(outputs) == 1 else outputs

    return run


def _weighted() -> Sequence[str]:
    from neural_compressor.tensorflow.structure.ops import WEIGHTED

    return WEIGHTED


def _has_config(model: Any) -> bool:
    return hasattr(model, "_nodes_by_depth") or type(model).__name__ == "Sequential"
