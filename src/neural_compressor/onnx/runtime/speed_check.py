"""A check that a quantized model is not slower on this machine than the float one it was made of."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from neural_compressor.onnx.files.serialized import stored_bytes
from neural_compressor.onnx.runtime.op_race import current_race
from neural_compressor.onnx.runtime.profiling import node_times
from neural_compressor.onnx.runtime.session import feeds, make_session
from neural_compressor.tuning.measure import NOISE, Effort, ratios_to_first, thread_clock, timed_in_turns

logger = logging.getLogger("neural_compressor")

Sample = Mapping[str, Any]
_SLOWER = 1 + NOISE
"""From here on a difference in time is not noise."""
_EFFORT = Effort(budget_s=1.0, precision=0.015, min_rounds=3, max_rounds=30)
_NAMED = 3
_MOST_BYTES = 1 << 28
"""Both models are in memory meanwhile."""


def warn_if_slower(original: ir.Model, quantized: ir.Model, sample: Callable[[], Sample | None]) -> float | None:
    """Run both in turns on what ``sample`` gives for about a second; the ratio of their times, None where they do not run.

    A warning names the ops that take longest where the quantized model is the slower one.
    """
    if current_race() is None:
        return None
    given = sample() or _blank(original)
    if given is None:
        logger.info("the speed of the model is not compared with float: there is no sample to run it on")
        return None
    if stored_bytes(original) > _MOST_BYTES:
        logger.info(
            "the speed of the model is not compared with float: it has over %d MiB of weights", _MOST_BYTES >> 20
        )
        return None
    try:
        feed = feeds(original, given, 0)
        ratio = _ratio([make_session(model, threads=1, few_shapes=True) for model in (original, quantized)], feed)
        slowest = ", ".join(_slowest(quantized, feed)) if ratio >= _SLOWER else ""
    except Exception as error:  # noqa: BLE001 - the runtime's errors share no base class, and this is but a look at the clock
        logger.info("the speed of the model is not compared with float: %s", error)
        return None
    if slowest:
        logger.warning(
            "the quantized model takes %.2f times as long as float here; the ops that take longest are %s",
            ratio,
            slowest,
        )
    return ratio


def _ratio(sessions: list[ort.InferenceSession], feed: dict[str, np.ndarray]) -> float:
    """How long the second takes as a multiple of the first; sessions of one thread, so that its time counts."""
    calls = [lambda session=session: session.run(None, feed) for session in sessions]
    (ratio,) = ratios_to_first(timed_in_turns(calls, _EFFORT, thread_clock()))
    return ratio.median


def _slowest(model: ir.Model, feed: dict[str, np.ndarray]) -> list[str]:
    """The nodes that most of the time goes to, as the runtime's profile has it."""
    spent = Counter({f"{name} ({kind})": spent for (name, kind), spent in node_times(model, feed).items()})
    whole = sum(spent.values()) or 1
    return [f"{name} {time / whole:.0%}" for name, time in spent.most_common(_NAMED)]


def _blank(model: ir.Model) -> dict[str, np.ndarray] | None:
    """Zeros for a model whose inputs have known sizes, but for the first, which may be any."""
    found = {}
    for value in (each for each in model.graph.inputs if not each.is_initializer()):
        sizes = None if value.shape is None else [*value.shape]
        if sizes is None or value.dtype is None or value.dtype == ir.DataType.STRING:
            return None
        fixed = [1 if not place and not isinstance(size, int) else size for place, size in enumerate(sizes)]
        if not all(isinstance(size, int) and size > 0 for size in fixed):
            return None
        found[str(value.name)] = np.zeros(fixed, value.dtype.numpy())
    return found
