"""Sessions of ONNX Runtime on models in memory, whose weights are not copied into a file first, and what they are fed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from neural_compressor.errors import CalibrationError, EvaluationError, FormatError
from neural_compressor.onnx.files.mapped_file import constants_replaced, release
from neural_compressor.onnx.files.model_file import initializers, read_model
from neural_compressor.onnx.runtime.batches import ModelInputs, batch_size
from neural_compressor.onnx.runtime.data_reader import as_array
from neural_compressor.onnx.runtime.saturation import warn_if_saturating
from neural_compressor.paths import raise_if_full
from neural_compressor.registry import close_matches

_PROVIDER_OPTIONS = {
    # By default CUDA times every way to compute a convolution for each shape it sees: minutes where sizes of images vary.
    "CUDAExecutionProvider": {"cudnn_conv_algo_search": "HEURISTIC"}
}
_BY_REFERENCE = 1 << 20
"""Weights of at least this size are handed over as arrays, which may be mapped from a file."""
_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_HELD_AS_IS = frozenset(
    {np.dtype(t) for t in (np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8)}
)


def make_session(
    model: ir.Model,
    outputs: Sequence[str] | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    level: str = "all",
    threads: int = 0,
    optimized_path: str | None = None,
    disabled_optimizers: Sequence[str] = (),
    few_shapes: bool = False,
) -> ort.InferenceSession:
    """A session on ``model`` that gives ``outputs``, which may be any values inside it; by default its own.

    ``optimized_path`` is where the runtime writes the graph as it runs it, with large weights in a file beside it: in one
    file they would be in memory once more. Unless inputs are of ``few_shapes``, where to put what is computed is found out
    anew for each: the runtime would otherwise keep that for every shape it sees, and memory for the largest.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = few_shapes
    options.graph_optimization_level = _LEVELS[level]
    if optimized_path is not None:
        options.optimized_model_filepath = optimized_path
        key = "session.optimized_model_external_initializers"
        options.add_session_config_entry(f"{key}_file_name", f"{Path(optimized_path).name}.data")
        options.add_session_config_entry(f"{key}_min_size_in_bytes", str(_BY_REFERENCE))
    with _other_outputs(model, outputs), _by_reference(model) as arrays:
        data = ir.to_proto(model).SerializeToString()
    if arrays:
        options.add_external_initializers(list(arrays), [ort.OrtValue.ortvalue_from_numpy(a) for a in arrays.values()])
    try:
        return ort.InferenceSession(
            data,
            options,
            providers=[(name, _PROVIDER_OPTIONS.get(name, {})) for name in providers],
            disabled_optimizers=list(disabled_optimizers),
            enable_fallback=0,  # to what was not asked for
        )
    except Exception as error:  # the runtime's errors share no base class but this
        if optimized_path is not None:
            raise_if_full(Path(optimized_path).parent, len(data) + sum(array.nbytes for array in arrays.values()))
        raise FormatError(f"ONNX Runtime does not take the model: {error}") from error


@contextmanager
def _other_outputs(model: ir.Model, names: Sequence[str] | None) -> Iterator[None]:
    if names is None:
        yield
        return
    values = {v.name: v for n in model.graph for v in n.outputs} | {v.name: v for v in model.graph.inputs}
    own = list(model.graph.outputs)
    model.graph.outputs.clear()
    model.graph.outputs.extend(values[name] for name in names)
    try:
        yield
    finally:
        model.graph.outputs.clear()
        model.graph.outputs.extend(own)


@contextmanager
def _by_reference(model: ir.Model) -> Iterator[dict[str, np.ndarray]]:
    """Large weights of the main graph taken out of what is written meanwhile, as arrays by name."""
    arrays: dict[str, np.ndarray] = {}
    instead: dict[ir.Value, ir.TensorProtocol] = {}
    own_names = model.graph.initializers
    for value, tensor in initializers(model):
        # The runtime drops what nothing reads, and then has no place for it.
        is_own = value.name and own_names.get(value.name) is value
        large = bool(is_own and tensor.nbytes >= _BY_REFERENCE and value.uses())
        array = tensor.numpy() if large or isinstance(tensor, ir.ExternalTensor) else None
        if array is not None and large and array.dtype in _HELD_AS_IS:
            own = np.require(array, requirements=("C", "A"))  # where a file has it may be no place for numbers
            arrays[str(value.name)] = own
            if own is not array:
                release(tensor)
            instead[value] = ir.ExternalTensor(
                "held in memory",
                0,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=str(value.name),
            )
        elif array is not None and isinstance(tensor, ir.ExternalTensor):
            # What is written has no folder in which its files could be found.
            instead[value] = ir.Tensor(array, tensor.dtype, name=value.name)
    with constants_replaced(instead):
        yield arrays


def run_sample(
    session: ort.InferenceSession, arrays: Mapping[str, np.ndarray], number: int, outputs: Sequence[str] | None = None
) -> list[np.ndarray]:
    """What a session gives for the calibration sample ``number``."""
    try:
        results: list[np.ndarray] = session.run(outputs, dict(arrays))
    except Exception as error:  # the runtime's errors share no base class but this
        raise CalibrationError(f"the model does not run on sample {number}: {error}") from error
    return results


def feeds(model: ir.Model, sample: Mapping[str, Any], number: int) -> dict[str, np.ndarray]:
    """The arrays of sample ``number`` by input name; what does not fit the model is an error that says what would."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name in sample:
        if name not in inputs:
            raise CalibrationError(f"sample {number} has an input {name!r}; {close_matches(str(name), inputs)}")
    missing = [name for name in inputs if name not in sample]
    if missing:
        raise CalibrationError(f"sample {number} lacks the inputs {missing}; it has {sorted(sample)}")
    return {name: _fitting(value, sample[name], number) for name, value in inputs.items()}


def _fitting(value: ir.Value, given: Any, number: int) -> np.ndarray:
    where = f"input {value.name!r} of sample {number}"
    array = as_array(given, str(value.name), number)
    if value.dtype is not None and value.dtype != ir.DataType.STRING and array.dtype != value.dtype.numpy():
        raise CalibrationError(f"{where} is {array.dtype}, and the model takes {value.dtype.numpy()}")
    if value.shape is None:
        return array
    # Exporters write -1 for a size that is not fixed.
    wanted = [dim if isinstance(dim, int) and dim >= 0 else None for dim in value.shape]
    if len(wanted) != array.ndim or any(w not in (None, g) for w, g in zip(wanted, array.shape, strict=True)):
        shape = ", ".join("any" if size is None else str(size) for size in wanted)
        raise CalibrationError(f"{where} has shape {array.shape}, and the model takes ({shape})")
    return array


_KEPT = 2
"""A candidate and the model it is compared with."""


@dataclass(frozen=True, eq=False)
class _Running:
    model: Any
    inputs: ModelInputs
    session: Any


class Runner:
    """Sessions of models, made when a model is first run; the last ``kept`` stay. 0 ``threads`` are one a core."""

    def __init__(self, providers: Sequence[str], threads: int = 0, kept: int = _KEPT) -> None:
        self.providers = tuple(providers)
        self.threads = threads
        self.kept = kept
        self._running: list[_Running] = []

    def predict(self, model: Any, inputs: Any) -> Any:
        """What ``model`` gives for the inputs of a batch: an array, or a list where it has several outputs."""
        running = self._of(model)
        feed = running.inputs.feed(inputs)
        try:
            results: list[np.ndarray] = running.session.run(None, feed)
        except Exception as error:  # the runtime's errors share no base class but this
            shapes = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in feed.items())
            raise EvaluationError(f"the model does not run on {shapes}: {error}") from error
        return results[0] if len(results) == 1 else results

    def batch_inputs(self, model: Any, batch: Any) -> tuple[dict[str, np.ndarray], int]:
        """The inputs of a batch by name, without the label, and how many samples they are."""
        inputs = self._of(model).inputs
        feed = inputs.feed(inputs.split(batch))
        return feed, batch_size(feed)

    def _of(self, model: Any) -> _Running:
        for place, running in enumerate(self._running):
            if running.model is model:
                self._running.append(self._running.pop(place))
                return running
        graph = read_model(model)
        if "CPUExecutionProvider" in self.providers:
            warn_if_saturating(graph)
        session = make_session(graph, providers=self.providers, threads=self.threads, few_shapes=True)
        running = _Running(model, ModelInputs.of(graph), session)
        self._running = [*self._running, running][-self.kept :]
        return running
