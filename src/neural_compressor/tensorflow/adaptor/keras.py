"""Keras behind the adaptor contract.

Nothing here imports Keras before there is a model to work on: whoever asks whether a model is one gets an answer first.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neural_compressor.adaptor.capability import op_configs
from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.adaptor.records import OpRecord
from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.errors import MissingDependencyError
from neural_compressor.schemes import OpKey, Plan, float_op, sqnr_db

if TYPE_CHECKING:
    from neural_compressor.tensorflow.executor import Executor

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

    @classmethod
    def handles(cls, model: Any) -> bool:
        keras = sys.modules.get("keras")
        return keras is not None and isinstance(model, keras.Model)

    def query_fw_capability(self, model: Any) -> dict[str, Any]:
        graph = self._prepared(model).graph
        self.example = self._first_inputs(model)
        details = {key: op_configs(self.query_handler, key[1], key[1] in _weighted()) for key in graph.ops()}
        return {
            "opwise": details,
            "optypewise": self.get_optype_wise_ability(details),
            "skipped": graph.skipped(),
            "quantizable_types": self.query_handler.known_op_types(),
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
        plan = Plan.from_tune_cfg(tune_cfg)
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

        return run(model, inputs)

    def save(self, model: Any, path: str | Path) -> None:
        from neural_compressor.tensorflow.files.checkpoint import save_model

        save_model(model, Path(path))

    def load(self, path: str | Path, model: Any) -> Any:
        from neural_compressor.tensorflow.files.checkpoint import load_model

        return load_model(Path(path), self._prepared(model).graph)

    def model_size(self, model: Any) -> int:
        from neural_compressor.tensorflow.files.checkpoint import stored_arrays

        return sum(array.nbytes for array in stored_arrays(model).values())

    def summary(self, model: Any) -> list[OpRecord]:
        assert self._executor is not None
        graph = self._executor.graph
        records = [self._record(key, model) for key in graph.ops()]
        return [*records, *(OpRecord(*key, "fp32", reason=why) for key, why in graph.skipped().items())]

    def fingerprint(self, model: Any) -> str:
        config = model.to_json() if hasattr(model, "to_json") and _has_config(model) else type(model).__qualname__
        digest = hashlib.sha256(config.encode())
        for weight in model.weights:
            digest.update(f"{weight.path} {weight.shape}".encode() + np.asarray(weight.numpy()).tobytes())
        return digest.hexdigest()[:16]

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
        size = sum(codes[n].nbytes_packed if n in codes else v.matrix().nbytes for n, v in views.items())
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
        why = "the Keras model computes in float on quantized values"
        return OpRecord(
            *key,
            scheme.precision,
            activation,
            scheme.mode,
            "float on quantized values",
            True,
            why,
            error,
            size_bytes=size,
        )


def require_tensorflow() -> None:
    """Say which extra to install where TensorFlow is missing, or which backend Keras must have."""
    try:
        import keras
        import tensorflow  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"{error}; install what Keras models need with: pip install 'open-neural-compressor[tensorflow]'"
        ) from error
    if keras.backend.backend() != "tensorflow":
        raise MissingDependencyError(
            f"Keras runs on {keras.backend.backend()} here, and models are quantized on TensorFlow: set "
            "KERAS_BACKEND=tensorflow"
        )


def _weighted() -> Sequence[str]:
    from neural_compressor.tensorflow.structure.ops import WEIGHTED

    return WEIGHTED


def _has_config(model: Any) -> bool:
    return hasattr(model, "_nodes_by_depth") or type(model).__name__ == "Sequential"
