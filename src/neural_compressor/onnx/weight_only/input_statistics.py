"""Statistics of what reaches products, streamed over the calibration data: nothing is kept of a sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    model: ir.Model, wanted: Iterable[Sources], samples: Samples, providers: Sequence[str] = ("CPUExecutionProvider",)
) -> dict[Sources, InputStatistics]:
    """The statistics of each of ``wanted``, all sources of one taken together, in one run over the data.

    Only the part of the model that leads to them is run.
    """
    gathered = {sources: InputStatistics() for sources in wanted}
    names = sorted({source.value for sources in gathered for source in sources})
    inputs = {value.name for value in model.graph.inputs}
    computed = [name for name in names if name not in inputs]
    session = make_session(_leading_to(model, computed), providers=providers) if computed else None
    for number, sample in enumerate(samples):
        values = feeds(model, sample, number)
        if session is not None:
            try:
                results = session.run(computed, values)
            except Exception as error:  # the runtime's errors share no base class but this
                raise CalibrationError(f"the model does not run on sample {number}: {error}") from error
            values |= dict(zip(computed, results, strict=True))
        for sources, statistics in gathered.items():
            for source in sources:
                _update(statistics, values[source.value], source, number)
    return gathered


def _update(statistics: InputStatistics, array: np.ndarray, source: Source, number: int) -> None:
    try:
        statistics.update(array.T if source.transposed else array)
    except CalibrationError as error:
        raise CalibrationError(f"{source.value!r} in sample {number}: {error}") from error


def _leading_to(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """The part of ``model`` that computes the values of ``names``, which are its outputs."""
    graph = ir.convenience.extract(model.graph, list(model.graph.inputs), names)
    for value in graph.outputs:
        # The runtime may not widen or narrow what it was told; what it is told here may be unknown.
        value.shape = None
    return ir.Model(graph, ir_version=model.ir_version)
