"""Keras behind the adaptor contract.

Nothing here imports Keras before there is a model to work on: whoever asks whether a model is one gets an answer first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.errors import (
    CalibrationError,
    ConfigError,
    NeuralCompressorError,
    QuantizationError,
    WorkspaceError,
)
from neural_compressor.schemes import OpKey, Plan, float_op
from neural_compressor.tensorflow.adaptor.base import GraphAdaptor

if TYPE_CHECKING:
    from neural_compressor.tensorflow.executor import Executor
    from neural_compressor.tensorflow.float_graph import FloatGraph
    from neural_compressor.tensorflow.litert.keras_file import LiteRTFile

logger = logging.getLogger("neural_compressor")
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


class KerasAdaptor(GraphAdaptor):
    """Quantizes Keras 3 models: functional, Sequential, and subclassed ones made of layers and ``keras.ops``.

    ``framework_specific_info`` may hold ``dataloader`` (calibration batches), ``example_inputs``, ``framework_yaml`` (laid
    over the built-in capability) and ``workspace``.
    """

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        self.query_handler = KerasQuery(overlay=self.info.get("framework_yaml"))
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
        graph: Any = self._prepared(model).graph
        return float_litert(graph.model)

    def save(self, model: Any, path: str | Path) -> None:
        from neural_compressor.tensorflow.files.checkpoint import save_model

        try:
            content = self.deployed(model)
        except QuantizationError as error:
            logger.warning("%s; the folder %s holds no LiteRT file", error, path)
            content = None
        save_model(model, Path(path), content)

    def deployed(self, model: Any) -> bytes:
        """The bytes of the LiteRT file that is written; a warning says which ops of the plan are float in it, and why."""
        if hasattr(model, "quantization") and (left := self.litert(model).in_float):
            reasons: dict[str, list[str]] = {}
            for name, why in left.items():
                reasons.setdefault(why, []).append(name)
            listed = "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
            logger.warning("simulated in Keras, float in the LiteRT file: %s", listed)
        return self.convert(model, "keras", "litert")

    def load(self, path: str | Path, model: Any) -> Any:
        from neural_compressor.tensorflow.files.checkpoint import load_model

        graph: Any = self._prepared(model).graph
        return load_model(Path(path), graph)

    def model_size(self, model: Any) -> int:
        from neural_compressor.tensorflow.files.checkpoint import stored_arrays

        return sum(array.nbytes for array in stored_arrays(self.ready(model)).values())

    def fingerprint(self, model: Any) -> str:
        model = self.ready(model)
        config = type(model).__qualname__
        if hasattr(model, "to_json") and _has_config(model):
            said = json.loads(model.to_json())
            said["config"].pop("name", None)  # Keras numbers models of a process that were given none
            config = json.dumps(said, sort_keys=True)
        digest = hashlib.sha256(config.encode())
        for weight in model.weights:
            digest.update(f"{weight.name} {weight.shape}".encode() + np.asarray(weight.numpy()).tobytes())
        return digest.hexdigest()[:16]

    def op_errors(self, plan: Plan, model: Any, dataloader: Iterable[Any] | None = None) -> dict[OpKey, float]:
        """Those of ops that the graph calls once."""
        from neural_compressor.tensorflow.batches import feeds
        from neural_compressor.tensorflow.sensitivity import op_errors

        loader = self.data_or_own(dataloader)
        if not any(not scheme.is_float for scheme in plan.values()):
            return {}
        if loader is None:
            raise CalibrationError("errors of ops are seen on data: give a calibration data loader")
        quantized = self.quantize(plan.to_tune_cfg(), model, loader)
        graph: Any = self._prepared(model).graph
        return op_errors(quantized.quantization, feeds(graph.model, loader, plan.calib_sampling_size))

    def _prepared(self, model: Any) -> Executor:
        from neural_compressor.tensorflow.layers import FakeQuant, QuantizeDequantize

        model = self.ready(model)
        for layer in model.layers:
            if isinstance(layer, FakeQuant | QuantizeDequantize):
                raise ConfigError(f"the model is quantized already: {layer.name!r} rounds; give the float model")
        return super()._prepared(model)

    def _graph_of(self, model: Any) -> FloatGraph:
        from neural_compressor.tensorflow.keras_graph import KerasGraph

        return KerasGraph(model) if hasattr(model, "quantization") else self._prepared(model).graph

    def describe(self, model: Any) -> str:
        parts = getattr(model, "quantization", None)
        ops = (
            ""
            if parts is None
            else f", {sum(not s.is_float for s in parts.plan.values())} ops quantized (simulated in Keras)"
        )
        return f"<keras {type(model).__name__} {model.name!r}: {len(model.layers)} layers{ops}>"

    def _kernel(self, key: OpKey, model: Any) -> tuple[str, str]:
        try:
            file = self.litert(model)
        except (QuantizationError, WorkspaceError) as error:
            return "float on quantized values", f"simulated in Keras, and there is no LiteRT file: {error}"
        if key[0] in file.ops:
            return f"LiteRT {file.ops[key[0]]}", ""
        why = file.in_float.get(key[0], "the file has no such op")
        return "float on quantized values", f"simulated in Keras, float in the LiteRT file: {why}"

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


def _has_config(model: Any) -> bool:
    return hasattr(model, "_nodes_by_depth") or type(model).__name__ == "Sequential"
