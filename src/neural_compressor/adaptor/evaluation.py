"""The evaluation loop every adaptor shares: predict, post-process, update the metrics, measure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neural_compressor.adaptor.event_files import EventFile, flatten, require_tensorboard, run_folder
from neural_compressor.errors import EvaluationError

if TYPE_CHECKING:
    from neural_compressor.adaptor.contract import Adaptor

_log = logging.getLogger(__name__)


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
