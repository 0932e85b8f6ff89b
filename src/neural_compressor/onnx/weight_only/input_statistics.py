"""Statistics of what reaches products, streamed over the calibration data: nothing is kept of a sample."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import InputStatistics
from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.data_reader import Samples
from neural_compressor.onnx.feeds import feeds
from neural_compressor.onnx.session import make_session


@dataclass(frozen=True, order=True)
class Source:
    """A value of the graph whose rows, or whose columns where it is ``transposed``, are multiplied with a weight."""

    value: str
    transposed: bool = False


Sources = tuple[Source, ...]


def input_statistics(
    model: ir.Model,
    wanted: Iterable[Sources],
    samples: Samples,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    *,
    float_model: ir.Model | None = None,
    compared: Collection[Sources] = (),
) -> dict[Sources, InputStatistics]:
    """The statistics of each of ``wanted``, all sources of one taken together, in one run over the data.

    Those of ``compared`` see beside each value what ``float_model`` has in its place. Only the parts of the models that
    lead to the sources are run.
    """
    gathered = {sources: InputStatistics() for sources in wanted}
    values_of = _Values(model, gathered, providers)
    floats_of = None if float_model is None or not compared else _Values(float_model, compared, providers)
    for number, sample in enumerate(samples):
        given = feeds(model, sample, number)
        values = values_of(given, number)
        floats = {} if floats_of is None else floats_of(given, number)
        for sources, statistics in gathered.items():
            for source in sources:
                reference = floats.get(source.value) if sources in compared else None
                _update(statistics, values[source.value], reference, source, number)
    return gathered


class _Values:
    """Calls give the values of some sources in a model."""

    def __init__(self, model: ir.Model, wanted: Iterable[Sources], providers: Sequence[str]) -> None:
        names = sorted({source.value for sources in wanted for source in sources})
        inputs = {value.name for value in model.graph.inputs}
        self._computed = [name for name in names if name not in inputs]
        part = _leading_to(model, self._computed) if self._computed else None
        self._session = None if part is None else make_session(part, providers=providers)

    def __call__(self, given: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
        if self._session is None:
            return given
        try:
            results = self._session.run(self._computed, given)
        except Exception as error:  # the runtime's errors share no base class but this
            raise CalibrationError(f"the model does not run on sample {number}: {error}") from error
        return {**given, **dict(zip(self._computed, results, strict=True))}


def _update(
    statistics: InputStatistics, array: np.ndarray, reference: np.ndarray | None, source: Source, number: int
) -> None:
    if source.transposed:
        array, reference = array.T, None if reference is None else reference.T
    try:
        statistics.update(array, reference)
    except CalibrationError as error:
        raise CalibrationError(f"{source.value!r} in sample {number}: {error}") from error


def _leading_to(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """The part of ``model`` that computes the values of ``names``, which are its outputs."""
    graph = ir.convenience.extract(model.graph, list(model.graph.inputs), names)
    for value in graph.outputs:
        # The runtime may not widen or narrow what it was told; what it is told here may be unknown.
        value.shape = None
    return ir.Model(graph, ir_version=model.ir_version)
