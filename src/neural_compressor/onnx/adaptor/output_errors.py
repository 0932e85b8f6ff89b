"""Output errors of the ops of a quantized model against the float model."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.onnx.graph.ops import CLIPS
from neural_compressor.onnx.graph.queries import is_float, standard
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import sqnr_db

_AT_A_TIME = 1 << 28
"""Bytes of outputs that are held at a time, of each model."""


def output_errors(
    quantized: ir.Model,
    original: ir.Model,
    ops: Collection[str],
    feeds: Iterable[Mapping[str, Any]],
    providers: Sequence[str],
) -> dict[str, float]:
    """The relative squared error of the first output of each op that both models have: sum |q - f|^2 / sum |f|^2 over all
    ``feeds``, which are gone over again for every group of outputs that fits in memory.

    It has the error that came in from before.
    """
    read = {str(value.name): _as_read(value) for node in quantized.graph for value in node.outputs if is_float(value)}
    found = {str(node.name): _output(node, read) for node in original.graph if node.name in ops}
    shared = {op: name for op, name in found.items() if name is not None}
    signal: dict[str, float] = defaultdict(float)
    noise: dict[str, float] = defaultdict(float)
    for group in _portions(_sizes(original, list(shared.values()), next(iter(feeds)), providers)):
        sessions = [make_session(original, group, providers)]
        sessions.append(make_session(quantized, [read[name] for name in group], providers))
        for feed in feeds:
            for name, *pair in zip(group, *(session.run(None, dict(feed)) for session in sessions), strict=True):
                expected, actual = (np.asarray(array, np.float64) for array in pair)
                if expected.size:
                    signal[name] += float(np.sum(expected**2))
                noise[name] += float(np.sum((actual - expected) ** 2))
    return {op: _share(noise[name], signal[name]) for op, name in shared.items() if name in signal}


def decibels(error: float) -> float:
    """A relative squared error as SQNR in dB.

    >>> decibels(0.01), decibels(0.0)
    (20.0, inf)
    """
    return -10 * math.log10(error) if error else math.inf


def _share(noise: float, signal: float) -> float:
    return noise / signal if signal else math.inf if noise else 0.0


def exactness(expected: Any, actual: Any) -> float | None:
    """The SQNR in dB of all float outputs of a model taken together; None where that is no number."""
    pairs = zip(*(each if isinstance(each, list) else [each] for each in (expected, actual)), strict=True)
    floats = [(a.ravel(), b.ravel()) for a, b in pairs if np.asarray(a).dtype.kind == "f"]
    if not floats:
        return None
    ratio = sqnr_db(*(np.concatenate(parts) for parts in zip(*floats, strict=True)))
    return ratio if math.isfinite(ratio) else None


def _as_read(value: ir.Value) -> str:
    """The name of ``value`` behind its quantizer, where every consumer reads it so."""
    consumers = [use.node for use in value.uses()]
    if value.is_graph_output() or len(consumers) != 1 or not standard(consumers[0], "QuantizeLinear"):
        return str(value.name)
    dequantizers = [node for node in consumers[0].outputs[0].consumers() if standard(node, "DequantizeLinear")]
    return str(dequantizers[0].outputs[0].name) if dequantizers else str(value.name)


def _output(node: ir.Node, read: Collection[str]) -> str | None:
    """The name under which both models have the op's output, perhaps with the Relu or Clip that a quantizer took over."""
    value = node.outputs[0]
    clips = [user.outputs[0] for user in value.consumers() if user.op_type in CLIPS]
    return next((str(each.name) for each in (value, *clips) if each.name in read and is_float(each)), None)


def _sizes(model: ir.Model, names: Sequence[str], feed: Mapping[str, Any], providers: Sequence[str]) -> dict[str, int]:
    """The bytes of each value, found without handing it out."""
    if not names:
        return {}
    counting = model.clone()
    values = {str(value.name): value for node in counting.graph for value in node.outputs}
    counts = []
    for place, name in enumerate(names):
        node = ir.node("Size", [values[name]], name=f"count_of_output_{place}")
        node.outputs[0].name = f"count_of_output_{place}"
        counting.graph.append(node)
        counts.append(f"count_of_output_{place}")
    found = make_session(counting, counts, providers).run(None, dict(feed))
    return {name: 4 * int(count) for name, count in zip(names, found, strict=True)}


def _portions(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """The names in groups that fit, each with at least one."""
    group: list[str] = []
    for name, size in sizes.items():
        if group and sum(sizes[other] for other in group) + size > _AT_A_TIME:
            yield group
            group = []
        group.append(name)
    if group:
        yield group
