"""Statistics of what reaches products, streamed over the calibration data, block after block.

Between two passes nothing is kept in memory. What each sample comes to behind the last block that was quantized is put in a
temporary folder, so that the next pass goes on from there and every block runs twice, not once for each block behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from neural_compressor.algorithms import InputStatistics
from neural_compressor.onnx.graph.queries import errors_at
from neural_compressor.onnx.runtime.data_reader import Samples
from neural_compressor.onnx.runtime.session import feeds, make_session, run_sample

logger = logging.getLogger("neural_compressor")

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, order=True)
class Source:
    """A value of the graph whose rows, or whose columns where it is ``transposed``, are multiplied with a weight."""

    value: str
    transposed: bool = False


Sources = tuple[Source, ...]


@dataclass
class CalibrationPasses:
    """Runs over the data with models whose first blocks are quantized; ``folder`` is for files that may go afterwards.

    ``settled`` are the nodes that no pass runs any more: they must not be changed.
    """

    float_model: ir.Model
    samples: Samples
    folder: Path
    providers: Sequence[str] = ("CPUExecutionProvider",)
    settled: frozenset[str] = frozenset()
    _floats: _Cut | None = None
    _quantized: _Cut | None = None
    _count: int = 0

    def statistics(
        self, model: ir.Model, wanted: Iterable[Sources], compared: Collection[Sources] = (), done: Collection[str] = ()
    ) -> dict[Sources, InputStatistics]:
        """The statistics of each of ``wanted``, all sources of one taken together, in one pass.

        Those of ``compared`` see beside each value what the float model has in its place. ``done`` are the outputs of nodes
        that were quantized since the last pass: what lies before them need not run again after this one.
        """
        gathered = {sources: InputStatistics() for sources in wanted}
        run = _Run(model, gathered, self._quantized, done, self.folder / "quantized", self.providers)
        runs = [run]
        if compared:
            runs.append(_Run(self.float_model, compared, self._floats, done, self.folder / "float", self.providers))
        for number, given in enumerate(self._given(model, runs)):
            values, *references = (each(given, number) for each in runs)
            for sources, statistics in gathered.items():
                seen = [values, *(references if sources in compared else [])]
                for source in sources:
                    arrays = [each[source.value] for each in seen]
                    with errors_at(f"{source.value!r} in sample {number}"):
                        statistics.update(*(array.T if source.transposed else array for array in arrays))
            self._count = number + 1
        self._quantized = run.next
        self.settled = frozenset() if run.next is None else run.next.before
        if compared:
            self._floats = runs[1].next
        return gathered

    def _given(self, model: ir.Model, runs: Sequence[_Run]) -> Iterable[Arrays]:
        if all(run.start is not None for run in runs):
            return ({} for _ in range(self._count))
        return (feeds(model, sample, number) for number, sample in enumerate(self.samples))


@dataclass
class _Cut:
    """The values at which a model is cut in two, and the files that hold them for each sample."""

    names: list[str]
    before: frozenset[str]
    folder: Path
    whole: bool = True

    @classmethod
    def behind(cls, model: ir.Model, done: Collection[str], folder: Path) -> _Cut | None:
        """The cut behind the last node that gives one of ``done``; None where no session could start at it."""
        nodes = list(model.graph)
        last = max((n for n, node in enumerate(nodes) if any(v.name in done for v in node.outputs)), default=None)
        if last is None:
            return None
        before = set(nodes[: last + 1])
        given = [value for node in nodes[: last + 1] for value in node.outputs]
        crossing = [value for value in given if any(user not in before for user in value.consumers())]
        inputs = [value for value in model.graph.inputs if value.const_value is None]
        if any(value.name is None or value.type is None for value in crossing):
            return None
        names = [str(value.name) for value in (*inputs, *crossing)]
        return cls(names, frozenset(str(node.name) for node in before), folder)

    def put(self, number: int, values: Arrays) -> None:
        """Keep what a sample has there; what cannot be kept is computed again by the next pass."""
        arrays = [values[name] for name in self.names]
        if not self.whole or any(array.dtype.kind not in "fiub" for array in arrays):
            self.whole = False
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            np.savez(self.folder / f"{number}.npz", *arrays)
        except OSError as error:
            logger.info("passes over the data begin at the inputs of the model, since %s", error)
            self.whole = False

    def take(self, number: int) -> Arrays:
        """What a sample has there."""
        with np.load(self.folder / f"{number}.npz", allow_pickle=False) as kept:
            return {name: kept[f"arr_{place}"] for place, name in enumerate(self.names)}


class _Run:
    """Calls give the values of some sources in a model, from where the last pass left it or from its inputs on."""

    def __init__(
        self,
        model: ir.Model,
        wanted: Iterable[Sources],
        start: _Cut | None,
        done: Collection[str],
        folder: Path,
        providers: Sequence[str],
    ) -> None:
        self.start = start if start is not None and start.whole else None
        self._new = (
            _Cut.behind(model, done, folder.with_name(f"{folder.name}_{len(done)}_{id(self):x}")) if done else None
        )
        sources = {source.value for each in wanted for source in each}
        names = sorted(sources | set(self._new.names if self._new is not None else ()))
        try:
            self._prepare(model, names, providers)
        except ValueError:  # something lies before the cut: the graph is in another order than its blocks
            self.start = None
            self._prepare(model, names, providers)

    def _prepare(self, model: ir.Model, names: Sequence[str], providers: Sequence[str]) -> None:
        inputs = [str(value.name) for value in model.graph.inputs] if self.start is None else self.start.names
        self._computed = [name for name in names if name not in inputs]
        part = _part(model, inputs, self._computed) if self._computed else None
        self._session = None if part is None else make_session(part, providers=providers)

    def __call__(self, given: Arrays, number: int) -> Arrays:
        given = given if self.start is None else self.start.take(number)
        values = dict(given)
        if self._session is not None:
            results = run_sample(self._session, values, number, self._computed)
            values |= dict(zip(self._computed, results, strict=True))
        if self._new is not None:
            self._new.put(number, values)
        return values

    @property
    def next(self) -> _Cut | None:
        """Where the next pass begins."""
        return self._new if self._new is not None and self._new.whole else self.start


def _part(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    """The part of ``model`` that computes ``outputs`` from ``inputs``."""
    given = {str(value.name) for value in model.graph.inputs}
    graph = ir.convenience.extract(model.graph, list(inputs), list(outputs))
    for value in (*graph.outputs, *(value for value in graph.inputs if value.name not in given)):
        # The runtime may not widen or narrow what it was told; what it is told here may be unknown.
        value.shape = None
    return ir.Model(graph, ir_version=model.ir_version)
