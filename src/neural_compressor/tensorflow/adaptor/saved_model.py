"""SavedModels and LiteRT files behind the adaptor contract.

Nothing here imports TensorFlow before there is a model to work on.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neural_compressor.adaptor.capability import op_configs
from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.adaptor.records import OpRecord
from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.errors import FormatError, NeuralCompressorError
from neural_compressor.paths import output_folder
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.tensorflow.adaptor.requirements import require_tensorflow

if TYPE_CHECKING:
    from neural_compressor.tensorflow.litert.executor import LiteExecutor
    from neural_compressor.tensorflow.litert.model import LiteModel

_YAML = Path(__file__).parents[2] / "adaptor" / "tensorflow.yaml"
_PLAN = "quantization.json"


class TensorFlowQuery(QueryBackendCapability):
    """Reads tensorflow.yaml."""

    def config_file(self) -> Path:
        return _YAML

    def installed_version(self) -> str:
        import tensorflow

        return str(tensorflow.__version__)

    def known_op_types(self) -> Sequence[str]:
        from neural_compressor.tensorflow.litert.executor import TYPES

        return tuple(TYPES.values())


class TensorFlowAdaptor(Adaptor):
    """Quantizes SavedModels, given as folders, and float ``.tflite`` files, into integer LiteRT models.

    ``framework_specific_info`` may hold ``dataloader`` (calibration batches), ``example_inputs``, ``framework_yaml`` (laid
    over the built-in capability), ``workspace``, and the names ``inputs`` and ``outputs`` of the signature.
    """

    settings = frozenset({"inputs", "outputs"})

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        require_tensorflow()
        self.query_handler = TensorFlowQuery(overlay=self.info.get("framework_yaml"))
        self._executor: LiteExecutor | None = None
        self._read: dict[str, LiteModel] = {}

    @classmethod
    def handles(cls, model: Any) -> bool:
        if isinstance(model, str | Path):
            place = Path(model)
            return place.suffix == ".tflite" or (place.is_dir() and (place / "saved_model.pb").is_file())
        known = sys.modules.get("neural_compressor.tensorflow.litert.model")
        return known is not None and isinstance(model, known.LiteModel)

    def ready(self, model: Any) -> LiteModel:
        """The model as LiteRT runs it, which is what is evaluated."""
        from neural_compressor.tensorflow.litert.model import LiteModel, read_saved_model

        if isinstance(model, LiteModel):
            return model
        if str(model) not in self._read:
            inputs, outputs = (self.info.get(name) or () for name in ("inputs", "outputs"))
            self._read[str(model)] = read_saved_model(Path(model), inputs, outputs)
        return self._read[str(model)]

    def query_fw_capability(self, model: Any) -> dict[str, Any]:
        from neural_compressor.tensorflow.litert.executor import WEIGHTED, skipped_ops

        executor = self._prepared(model)
        self.example = self._first_inputs()
        details = {key: op_configs(self.query_handler, key[1], op.kind in WEIGHTED) for key, op in executor.ops.items()}
        return {
            "opwise": details,
            "optypewise": self.get_optype_wise_ability(details),
            "skipped": skipped_ops(executor.graph),
            "quantizable_types": self.query_handler.known_op_types(),
        }

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: Any,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[Any], Any] | None = None,
    ) -> LiteModel:
        from neural_compressor.tensorflow.litert.executor import feeds_of

        executor = self._prepared(model)
        loader = dataloader if dataloader is not None else self.info.get("dataloader")
        self.info.setdefault("batch_size", getattr(loader, "batch_size", None) or 1)
        self.tuning_cfg_to_fw(tune_cfg)
        plan = Plan.from_tune_cfg(tune_cfg)
        if q_func is not None:
            return executor.run(plan, self._recorded(executor.model, q_func), q_func)
        return executor.run(plan, None if loader is None else feeds_of(loader, plan.calib_sampling_size), loader)

    def predict(self, model: Any, inputs: Any) -> Any:
        return self.ready(model)(inputs)

    @contextmanager
    def on_one_thread(self, models: Sequence[Any]) -> Iterator[bool]:
        """LiteRT runs on the calling thread as it is."""
        yield True

    def save(self, model: LiteModel, path: str | Path) -> None:
        from neural_compressor.tensorflow.files.checkpoint import write_file
        from neural_compressor.tensorflow.litert.model import FILE

        folder = output_folder(Path(path))
        plan = model.plan or Plan()
        write_file(folder / FILE, model.content)
        about = {"plan": json.loads(plan.to_json()), "outputs": list(model.outputs), "name": model.name}
        write_file(folder / _PLAN, json.dumps(about).encode())

    def load(self, path: str | Path, model: Any) -> LiteModel:
        from neural_compressor.tensorflow.litert.model import FILE, LiteModel

        folder = Path(path)
        try:
            about = json.loads((folder / _PLAN).read_text(encoding="utf-8"))
            plan = Plan.from_json(json.dumps(about["plan"]))
            found = LiteModel((folder / FILE).read_bytes(), str(about["name"]), tuple(about["outputs"]), plan)
            assert found.runner
        except NeuralCompressorError:
            raise
        except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
            raise FormatError(f"{folder} holds no quantized LiteRT model: {error}") from error
        return found

    def load_snippet(self, path: str) -> str:
        return (
            "from ai_edge_litert.interpreter import Interpreter\n\n"
            f"runner = Interpreter(model_path={f'{path}/model.tflite'!r}).get_signature_runner()\n"
        )

    def model_size(self, model: Any) -> int:
        return len(self.ready(model).content)

    def summary(self, model: LiteModel) -> list[OpRecord]:
        from neural_compressor.tensorflow.litert.executor import skipped_ops

        assert self._executor is not None
        plan = model.plan or Plan()
        records = [self._record(key, plan) for key in self._executor.ops]
        skipped = skipped_ops(self._executor.graph)
        return [*records, *(OpRecord(*key, "fp32", reason=why) for key, why in skipped.items())]

    def fingerprint(self, model: Any) -> str:
        return hashlib.sha256(self.ready(model).content).hexdigest()[:16]

    def describe(self, model: Any) -> str:
        found = self.ready(model)
        quantized = sum(not scheme.is_float for scheme in (found.plan or Plan()).values())
        return f"<LiteRT model {found.name!r}: {len(found.graph.ops)} ops, {quantized} quantized>"

    def convert(self, model: Any, source: str, destination: str) -> bytes:
        """The bytes of the LiteRT file."""
        if destination != "litert":
            raise FormatError(f"convert: got {source!r} to {destination!r}; known: 'savedmodel' to 'litert'")
        return self.ready(model).content

    def _prepared(self, model: Any) -> LiteExecutor:
        from neural_compressor.tensorflow.litert.executor import LiteExecutor

        found = self.ready(model)
        if self._executor is None or self._executor.model is not found:
            self._executor = LiteExecutor(found)
        return self._executor

    def _first_inputs(self) -> Any:
        from neural_compressor.tensorflow.litert.executor import feeds_of

        if self.info.get("example_inputs") is not None:
            return self.info["example_inputs"]
        if self.info.get("dataloader") is None:
            return None
        return next(iter(feeds_of(self.info["dataloader"], 1)))

    def _recorded(self, model: LiteModel, function: Callable[[Any], Any]) -> list[Any]:
        """The inputs that a user's function calls the model with."""
        from neural_compressor.tensorflow.litert.model import WatchedModel

        watched = WatchedModel(model.content, model.name, model.outputs)
        with calibrating(function, "calib_func", lambda: len(watched.seen)):
            function(watched)
        return watched.seen

    def _record(self, key: OpKey, plan: Plan) -> OpRecord:
        scheme = plan.get(key)
        assert self._executor is not None
        op = self._executor.ops[key]
        weight = self._executor.graph.weight(op)
        array = None if weight is None else self._executor.graph.constant(weight)
        size = 0 if array is None else array.nbytes
        if scheme is None or (scheme.is_float and scheme.precision == "fp32"):
            why = "not in the tuning configuration" if scheme is None else "the tuning configuration keeps it in fp32"
            return OpRecord(*key, "fp32", reason=why, size_bytes=size)
        activation = scheme.activation.dtype.name if scheme.activation else "fp32"
        size = size * (scheme.weight.dtype.bits if scheme.weight else 32) // 32
        record = OpRecord(*key, scheme.precision, activation, scheme.mode, f"LiteRT {op.kind}", size_bytes=size)
        return (
            replace(record, reason=f"the tuning configuration keeps it in {scheme.precision}")
            if scheme.is_float
            else record
        )
