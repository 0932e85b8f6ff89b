"""One process of a benchmark: gets a job, warms up, waits for the others, and times its calls.

It talks to the process that started it in lines of JSON: ``{"ready": ...}`` and then ``{"seconds": [...]}`` on what was its
standard output, or ``{"error": ...}``; what the user's code prints goes to standard error. A line on standard input is the
sign to begin.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TextIO

from neural_compressor.adaptor.contract import Adaptor, adaptor_for
from neural_compressor.benchmark.job import Job, Script, read_job
from neural_compressor.errors import EvaluationError, NeuralCompressorError

_RUNNING: list[str] = []
"""The job of this process, where it is an instance."""


def in_instance() -> bool:
    """Whether this process was started to time a model."""
    return bool(_RUNNING)


def main(folder: str, module: str | None, file: str | None) -> None:
    """Do the job in ``folder``."""
    _RUNNING.append(folder)
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        found = _times(read_job(Path(folder) / "job", Script(module, file)), lambda: _begin(lines))
    except Exception as error:  # noqa: BLE001  whatever it is, who started this wants to know
        known = isinstance(error, NeuralCompressorError)
        if not known:
            traceback.print_exc()
        _say(lines, {"error": str(error) if known else f"{type(error).__name__}: {error}"})
        sys.exit(1)
    _say(lines, found)


def _say(lines: TextIO, what: dict[str, Any]) -> None:
    lines.write(json.dumps(what) + "\n")
    lines.flush()


def _begin(lines: TextIO) -> None:
    _say(lines, {"ready": True})
    if not sys.stdin.readline():
        raise EvaluationError("whoever started this instance is gone")


def _times(job: Job, begin: Callable[[], None]) -> dict[str, Any]:
    adaptor = adaptor_for(job.model)(job.info)
    model = adaptor.ready(job.model)
    calls = _calls_of_function(job.function, model) if job.function is not None else _calls(adaptor, model, job.loader)
    if job.iteration == -1:
        counted: Iterator[Any] = iter(calls())
    else:
        counted = islice(chain.from_iterable(calls() for _ in repeat(None)), job.iteration)
    for call, _ in islice(chain.from_iterable(calls() for _ in repeat(None)), job.warmup):
        call()
    begin()
    seconds, samples, value = [], [], None
    for call, count in counted:
        begun = time.perf_counter()
        value = call()
        seconds.append(time.perf_counter() - begun)
        samples.append(count)
    if not seconds:
        raise EvaluationError("b_dataloader gave no batch; it has to give at least one")
    returned = float(value) if job.function is not None and isinstance(value, int | float) else None
    return {"seconds": seconds, "samples": samples, "returned": returned}


Calls = Callable[[], Iterator[tuple[Callable[[], Any], int]]]
"""Calls of a model with how many samples each has, each time anew."""


def _calls_of_function(function: Callable[[Any], Any], model: Any) -> Calls:
    return lambda: iter([(lambda: function(model), 1)])


def _predict(adaptor: Adaptor, model: Any, inputs: Any) -> Any:
    return adaptor.finish(adaptor.predict(model, inputs))


def _calls(adaptor: Adaptor, model: Any, loader: Any) -> Calls:
    def calls() -> Iterator[tuple[Callable[[], Any], int]]:
        empty = True
        for batch in loader:
            inputs, samples = adaptor.batch_inputs(model, batch)
            yield partial(_predict, adaptor, model, inputs), samples
            empty = False
        if empty:
            raise EvaluationError("b_dataloader gave no batch; it has to give at least one")

    return calls
