"""Models run batch by batch, each in a session that is kept while it is in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from neural_compressor.errors import EvaluationError
from neural_compressor.onnx.files.model_file import read_model
from neural_compressor.onnx.runtime.batches import ModelInputs
from neural_compressor.onnx.runtime.saturation import warn_if_saturating
from neural_compressor.onnx.runtime.session import make_session

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
