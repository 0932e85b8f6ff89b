"""The evaluation loop every adaptor shares: predict, post-process, update the metrics, measure; event files of it."""

from __future__ import annotations

import io
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from neural_compressor.errors import EvaluationError, MissingDependencyError, WorkspaceError

if TYPE_CHECKING:
    from neural_compressor.adaptor.contract import Adaptor


_log = logging.getLogger(__name__)
_BUCKETS = 30


def evaluate_batches(
    adaptor: Adaptor,
    model: Any,
    dataloader: Iterable[Any],
    postprocess: Callable[[Any], Any] | None = None,
    metrics: Sequence[Any] | None = None,
    measurer: Any = None,
    iteration: int = -1,
    tensorboard: bool = False,
    fp32_baseline: bool = False,
) -> Any:
    """Run ``model`` over ``(inputs, labels)`` batches; the result is the metric, a list of several, or 0 of none.

    ``measurer.start()`` and ``.end()`` stand around each prediction; ``iteration`` bounds the number of batches.
    With ``tensorboard`` the tensors of the first batch and the metrics go to ``runs/eval`` in ``info['workspace']``.
    """
    if tensorboard:
        require_tensorboard()
    for metric in metrics or ():
        if hasattr(metric, "reset"):
            metric.reset()
    first: tuple[Any, Any] | None = None
    for inputs, labels in _pairs(dataloader, iteration):
        first = first or (inputs, labels)
        if measurer is not None:
            measurer.start()
        predictions = adaptor.predict(model, inputs)
        if measurer is not None:
            measurer.end()
        outcome = (predictions, labels) if postprocess is None else postprocess((predictions, labels))
        for metric in metrics or ():
            metric.update(*outcome)
    if first is None:
        raise EvaluationError("the evaluation dataloader gave no batch; it has to give at least one (inputs, labels)")
    results = [metric.result() for metric in metrics or ()]
    if tensorboard:
        folder = run_folder(Path(adaptor.info.get("workspace") or "."), fp32_baseline)
        # Numbered, as two metrics may be of one class.
        tags = [f"metric/{number}_{type(metric).__name__}" for number, metric in enumerate(metrics or ())]
        _write_events(folder, adaptor, model, first, dict(zip(tags, results, strict=True)))
    return 0 if not results else results[0] if len(results) == 1 else results


def _pairs(dataloader: Iterable[Any], iteration: int) -> Iterator[tuple[Any, Any]]:
    for index, batch in enumerate(dataloader):
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            size = f" of {len(batch)} parts" if isinstance(batch, (tuple, list)) else ""
            raise EvaluationError(
                f"batch {index} of the evaluation dataloader is a {type(batch).__name__}{size}; "
                "each batch has to be a pair (inputs, labels)"
            )
        yield batch[0], batch[1]
        # Compared after the batch, so that no batch is fetched only to be thrown away.
        if index + 1 == iteration:
            return


def _write_events(
    folder: Path, adaptor: Adaptor, model: Any, batch: tuple[Any, Any], scalars: Mapping[str, Any]
) -> None:
    with EventFile(folder) as events:
        for tag, value in scalars.items():
            events.scalar(tag, float(value))
        try:
            tensors = adaptor.inspect_tensor(model, [batch], inspect_type="all")
        except NotImplementedError as error:
            _log.warning("%s: %s, so only the metrics are written", folder, error)
            return
        for tag, step, values in flatten(tensors, ""):
            events.histogram(tag, values, step)


def require_tensorboard() -> None:
    """Say which extra to install where the package is missing."""
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "tensorboard=True needs the package tensorboard: pip install 'open-neural-compressor[tensorboard]'"
        ) from error


class EventFile:
    """A context manager that writes scalars and histograms into a new event file in ``folder``."""

    def __init__(self, folder: Path) -> None:
        require_tensorboard()
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = io.FileIO(folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}", "x")
        except OSError as error:
            raise WorkspaceError(f"event files cannot be written into {folder}: {error}") from error
        self._records = RecordWriter(file)
        self._write(file_version="brain.Event:2")

    def __enter__(self) -> EventFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._records.close()

    def scalar(self, tag: str, value: float, step: int = 0) -> None:
        """Write one number."""
        summary = self._summary.Summary(value=[self._summary.Summary.Value(tag=tag, simple_value=value)])
        self._write(summary=summary, step=step)

    def histogram(self, tag: str, values: Any, step: int = 0) -> None:
        """Write the distribution of the finite values of an array."""
        array = np.asarray(values, dtype=np.float64).ravel()
        array = array[np.isfinite(array)]
        if array.size == 0:
            return
        counts, edges = np.histogram(array, bins=_BUCKETS)
        histogram = self._summary.HistogramProto(
            min=array.min(),
            max=array.max(),
            num=array.size,
            sum=array.sum(),
            sum_squares=np.square(array).sum(),
            bucket_limit=edges[1:].tolist(),
            bucket=counts.tolist(),
        )
        self._write(
            summary=self._summary.Summary(value=[self._summary.Summary.Value(tag=tag, histo=histogram)]), step=step
        )

    def _write(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())


def run_folder(workspace: Path, fp32_baseline: bool) -> Path:
    """``runs/eval/baseline``, or the next free ``runs/eval/tune_N``."""
    root = workspace / "runs" / "eval"
    if fp32_baseline:
        return root / "baseline"
    taken = [int(found[1]) for path in root.glob("tune_*") if (found := re.fullmatch(r"tune_(\d+)", path.name))]
    return root / f"tune_{max(taken, default=0) + 1}"


def flatten(tensors: Any, prefix: str) -> Iterator[tuple[str, int, Any]]:
    """Tag, step and array of each tensor in what ``inspect_tensor`` returns: nested mappings, lists one an iteration.

    >>> [(tag, step) for tag, step, _ in flatten({"activation": [{"fc": {"output": [1.0]}}]}, "")]
    [('activation/fc/output', 0)]
    """
    if isinstance(tensors, Mapping):
        for name, part in tensors.items():
            yield from flatten(part, f"{prefix}/{name}" if prefix else str(name))
    elif isinstance(tensors, (list, tuple)) and all(isinstance(part, Mapping) for part in tensors):
        for iteration, part in enumerate(tensors):
            yield from ((tag, iteration, array) for tag, _, array in flatten(part, prefix))
    else:
        yield prefix, 0, tensors
