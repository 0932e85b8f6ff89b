"""A float model that plans are tried on: what carries them out, what its nodes can run with, and the data they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from neural_compressor.onnx.adaptor.capability import MODES, ModelCapability
from neural_compressor.onnx.executor import CalibrationData, Executor, RunOptions
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.graph.normalise import normalise
from neural_compressor.onnx.runtime.batches import LoaderReader, ModelInputs, RecordedReader, batch_size
from neural_compressor.onnx.runtime.capability import OnnxQuery, ProviderCapability
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader, Samples
from neural_compressor.onnx.runtime.providers import Target
from neural_compressor.schemes import Pass, Plan


class FloatModel:
    """``model`` as it was given, with the ``executor`` that runs plans on it for ``target``."""

    def __init__(self, model: Any, executor: Executor, target: Target, query: OnnxQuery) -> None:
        self.model, self.executor = model, executor
        self._providers = dict.fromkeys(MODES, ProviderCapability(target, query))
        self._capability: ModelCapability | None = None
        self._data: dict[tuple[int, int], CalibrationData] = {}

    @classmethod
    def read(cls, model: Any, target: Target, query: OnnxQuery) -> FloatModel:
        """That of a path or an object."""
        source = read_model(model).clone()
        target.warn_of_batch(source)
        return cls(model, Executor(normalise(source)), target, query)

    def capability(self, passes: Sequence[Pass]) -> ModelCapability:
        """What the model can run, as a plan with these passes names its ops."""
        model = self.executor.float_model(passes)
        if self._capability is None or self._capability.model is not model:
            self._capability = ModelCapability(model, self._providers)
        return self._capability

    def first_feed(self, info: dict[str, Any]) -> Mapping[str, Any] | None:
        """The inputs of the first batch of the data that ``info`` of an adaptor has; the size of a batch is noted there."""
        inputs = ModelInputs.of(self.executor.source)
        if info.get("example_inputs") is not None:
            return inputs.feed(info["example_inputs"])
        if info.get("dataloader") is None:
            return None
        first = LoaderReader(info["dataloader"], inputs, 1).get_next()
        if first is not None:
            info.setdefault("batch_size", batch_size(first))
        return first

    def run_options(self, plan: Plan, data: CalibrationData) -> RunOptions:
        """What a plan is run with: the target, the data, and why ops that it does not quantize stay in float."""
        found = self.capability(plan.passes)
        unnamed = {key: "the plan does not name it" for key in found.opwise if key not in plan}
        floats = {key: op.precision for key, op in plan.items() if op.is_float}
        floats = {
            key: f"the plan {'keeps it' if p == 'fp32' else 'has it compute'} in {p}" for key, p in floats.items()
        }
        return RunOptions(found.providers, dict.fromkeys(found.providers, data), {**found.skipped, **unnamed, **floats})

    def calibration_data(
        self,
        size: int,
        loader: Iterable[Any] | None,
        function: Callable[[Any], Any] | None,
        predict: Callable[[Any, Any], Any],
    ) -> CalibrationData:
        """The samples of a loader or function; those asked for again are the same, so that nothing is read twice."""
        inputs = ModelInputs.of(self.executor.source)
        source: Any = loader if function is None else function
        if source is None:
            return CalibrationData()
        if (id(source), size) not in self._data:
            reader: CalibrationDataReader
            if function is not None:
                reader = RecordedReader(function, self.model, inputs, predict)
            else:
                reader = LoaderReader(source, inputs, size)
            self._data[id(source), size] = CalibrationData(Samples(reader), source)
        return self._data[id(source), size]
