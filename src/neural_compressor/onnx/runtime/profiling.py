"""Time of a run by node, from ONNX Runtime's profile, and a check that a quantized model is not slower than float."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from neural_compressor.onnx.files.model_file import stored_bytes
from neural_compressor.onnx.files.scratch import scratch_folder
from neural_compressor.onnx.runtime.op_race import batches_of_one, current_race
from neural_compressor.onnx.runtime.session import feeds, make_session
from neural_compressor.tuning.measure import NOISE, Effort, ratios_to_first, thread_clock, timed_in_turns

_RUNS = 3
MOST_BYTES = 1 << 28
"""A model is copied to be profiled or compared; one with more bytes of weights is better left alone."""
_KERNEL = "_kernel_time"
_BLOCKED = "_nchwc"
"""The runtime names a node that it moves to blocked layouts after its output."""


def node_times(
    model: ir.Model, feed: Mapping[str, Any], providers: Sequence[str] = ("CPUExecutionProvider",), threads: int = 1
) -> dict[tuple[str, str], float]:
    """Microseconds of three runs on ``feed`` by the name and type of each node that the runtime executes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level, options.enable_profiling = threads, 3, True
    with scratch_folder() as folder:
        options.profile_file_prefix = str(folder / "profile")
        session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=list(providers))
        for _ in range(_RUNS):
            session.run(None, dict(feed))
        try:
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        except ValueError:  # cut off, as where the temporary folder is full
            return {}
    spent: Counter[tuple[str, str]] = Counter()
    for event in events:
        if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_KERNEL):
            spent[event["name"].removesuffix(_KERNEL), event.get("args", {}).get("op_name", "")] += event.get("dur", 0)
    return dict(spent)


def time_shares(
    model: ir.Model, feed: Mapping[str, Any], ops: Collection[str], providers: Sequence[str]
) -> dict[str, float]:
    """The part of a run that each of ``ops`` takes, quantizers before it included."""
    times = node_times(model, feed, providers, threads=0)
    whole = sum(times.values())
    names = _Names(model, ops)
    spent: dict[str, float] = defaultdict(float)
    for (name, kind), microseconds in times.items():
        op = names.op_of(name, kind)
        if op is not None:
            spent[op] += microseconds
    return {op: microseconds / whole for op, microseconds in spent.items()} if whole else {}


class _Names:
    """The ops that the nodes of a profile belong to: by their own name, by their output, or by the op they feed."""

    def __init__(self, model: ir.Model, ops: Collection[str]) -> None:
        self.ops = ops
        self.nodes = {str(node.name): node for node in model.graph.all_nodes()}
        self.writers = {str(value.name): node for node in model.graph.all_nodes() for value in node.outputs}

    def op_of(self, name: str, kind: str) -> str | None:
        name = re.sub(r"_token_\d+$", "", name).removeprefix("fused ").removesuffix("/MatMulAddFusion")
        if name in self.ops:
            return name
        if name.endswith(_BLOCKED):
            return self._upstream(self.writers.get(name.removesuffix(_BLOCKED)), kind)
        return self._downstream(self.nodes.get(name))

    def _upstream(self, node: ir.Node | None, kind: str) -> str | None:
        """The nearest op of the type ``kind``; what stands behind it was fused into it."""
        waiting = [] if node is None else [node]
        for current in waiting:
            if current.op_type == kind:
                return str(current.name) if current.name in self.ops else None
            before = [value.producer() for value in current.inputs if value is not None]
            waiting += [each for each in before if each is not None and each not in waiting]
        return None

    def _downstream(self, node: ir.Node | None) -> str | None:
        """The first op on the way, which is followed only where it does not fork."""
        while node is not None and str(node.name) not in self.ops:
            users = list(dict.fromkeys(user for value in node.outputs for user in value.consumers()))
            node = users[0] if len(users) == 1 else None
        return None if node is None else str(node.name)


logger = logging.getLogger("neural_compressor")

Sample = Mapping[str, Any]
_SLOWER = 1 + NOISE
"""From here on a difference in time is not noise."""
_EFFORT = Effort(budget_s=1.0, precision=0.015, min_rounds=3, max_rounds=30)
_NAMED = 3


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
    if stored_bytes(original) > MOST_BYTES:
        logger.info(
            "the speed of the model is not compared with float: it has over %d MiB of weights", MOST_BYTES >> 20
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
    shapes, found = batches_of_one(model), {}
    for value in (each for each in model.graph.inputs if not each.is_initializer()):
        shape = shapes.get(str(value.name), (0,))
        if value.dtype is None or value.dtype == ir.DataType.STRING or any(size < 1 for size in shape):
            return None
        found[str(value.name)] = np.zeros(shape, value.dtype.numpy())
    return found
