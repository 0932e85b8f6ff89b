"""SavedModels and LiteRT files behind the adaptor contract.

Nothing here imports TensorFlow before there is a model to work on.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.errors import ConfigError, FormatError, NeuralCompressorError
from neural_compressor.paths import output_folder
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.tensorflow.adaptor.base import GraphAdaptor

if TYPE_CHECKING:
    from neural_compressor.tensorflow.float_graph import FloatGraph, QuantizedGraph
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
        from neural_compressor.tensorflow.litert.file_graph import TYPES

        return tuple(TYPES.values())


class TensorFlowAdaptor(GraphAdaptor):
    """Quantizes SavedModels, given as folders, and float ``.tflite`` files, into integer LiteRT models.

    ``framework_specific_info`` may hold ``dataloader`` (calibration batches), ``example_inputs``, ``framework_yaml`` (laid
    over the built-in capability), ``workspace``, and the names ``inputs`` and ``outputs`` of the signature.
    """

    settings = frozenset({"inputs", "outputs"})

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        self.query_handler = TensorFlowQuery(overlay=self.info.get("framework_yaml"))
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

    def predict(self, model: Any, inputs: Any) -> Any:
        return self.ready(model)(inputs)

    @contextmanager
    def on_one_thread(self, models: Sequence[Any]) -> Iterator[bool]:
        """LiteRT runs on the calling thread as it is."""
        yield True

    def save(self, model: LiteModel, path: str | Path) -> None:
        from neural_compressor.tensorflow.litert.model import FILE, write_whole

        folder = output_folder(Path(path))
        plan = model.plan or Plan()
        write_whole(folder / FILE, model.content)
        names = {"outputs": list(model.outputs), "inputs": list(model.inputs), "name": model.name}
        about = {"plan": json.loads(plan.to_json()), **names}
        write_whole(folder / _PLAN, json.dumps(about).encode())

    def load(self, path: str | Path, model: Any) -> LiteModel:
        from neural_compressor.tensorflow.litert.model import FILE, LiteModel

        folder = Path(path)
        try:
            about = json.loads((folder / _PLAN).read_text(encoding="utf-8"))
            plan = Plan.from_json(json.dumps(about["plan"]))
            names = tuple(about["outputs"]), tuple(about.get("inputs", ()))
            found = LiteModel((folder / FILE).read_bytes(), str(about["name"]), *names, plan)
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

    def fingerprint(self, model: Any) -> str:
        return hashlib.sha256(self.ready(model).content).hexdigest()[:16]

    def describe(self, model: Any) -> str:
        from neural_compressor.tensorflow.litert.flatbuffer import op_kinds

        found = self.ready(model)
        quantized = sum(not scheme.is_float for scheme in (found.plan or Plan()).values())
        return f"<LiteRT model {found.name!r}: {len(op_kinds(found.content))} ops, {quantized} quantized>"

    def deployed(self, model: Any) -> bytes:
        """The bytes of the LiteRT file that is written."""
        return self.convert(model, "savedmodel", "litert")

    def convert(self, model: Any, source: str, destination: str) -> bytes:
        """The bytes of the LiteRT file."""
        if (source, destination) != ("savedmodel", "litert"):
            raise ConfigError(f"convert: got {source!r} to {destination!r}; known: 'savedmodel' to 'litert'")
        return self.ready(model).content

    def _kernel(self, key: OpKey, model: Any) -> tuple[str, str]:
        from neural_compressor.tensorflow.litert.quantizer import lite_scheme
        from neural_compressor.tensorflow.litert.stored_weights import kernel_name

        assert self._executor is not None
        kind = self._executor.graph.ops()[key].kind
        told = lite_scheme(kind, self._parts(model).plan[key])
        assert not isinstance(told, str)  # the plan was checked
        return f"LiteRT {kernel_name(kind, told.integer)}", ""

    def _parts(self, model: LiteModel) -> QuantizedGraph:
        from neural_compressor.tensorflow.float_graph import QuantizedGraph
        from neural_compressor.tensorflow.layout import lay_out

        if model.quantization is not None:
            return model.quantization
        assert self._executor is not None
        plan = model.plan or Plan()
        return QuantizedGraph(plan, shared=lay_out(self._executor.graph, plan).shared)

    def _graph_of(self, model: Any) -> FloatGraph:
        from neural_compressor.tensorflow.litert.file_graph import FileGraph

        return FileGraph(self.ready(model))
