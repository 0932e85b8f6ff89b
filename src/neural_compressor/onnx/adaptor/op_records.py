"""Records of the ops of a quantized ONNX model: precision, kernel, and errors against the float model."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.adaptor.records import OpRecord
from neural_compressor.dtypes import dtype
from neural_compressor.onnx.adaptor.inspection import constants_of, nodes_of, weights_of
from neural_compressor.onnx.files.model_file import ONE_FILE_BYTES, weight_bytes
from neural_compressor.onnx.files.quantization_record import QuantizationRecord, read_record
from neural_compressor.onnx.graph.ops import CLIPS
from neural_compressor.onnx.graph.queries import clip_bounds, is_constant, is_float, standard
from neural_compressor.onnx.passes.store_weights import stored_floats
from neural_compressor.onnx.runtime.batches import ModelInputs
from neural_compressor.onnx.runtime.fusion_check import INTEGER_OPS, RunningNode, as_run, running_in_float
from neural_compressor.onnx.runtime.profiling import time_shares
from neural_compressor.onnx.runtime.providers import Target
from neural_compressor.onnx.runtime.session import make_session
from neural_compressor.schemes import OpKey, OpScheme, sqnr_db

logger = logging.getLogger("neural_compressor")

_STORED = "float: the runtime turns the weight into floats when it loads the model"


def op_records(
    model: ir.Model,
    record: QuantizationRecord,
    original: ir.Model | None,
    feed: Mapping[str, Any] | None,
    target: Target,
) -> list[OpRecord]:
    """The ops that ``record`` tells of in ``model``.

    Errors are known with the ``original``, as it was before its weights were rounded; those of outputs with a ``feed``
    too, and hold what came in from before. Kernels are those of the target, where it runs here.
    """
    quantized = {name for (name, _), scheme in record.ops.items() if not scheme.is_float}
    errors: dict[str, float] = {}
    if original is not None and feed is not None:
        found = output_errors(model, original, quantized, [feed], target.sessions)
        errors = {name: decibels(error) for name, error in found.items()}
    kernels = Kernels.of_session(model, target)
    summary = _Summary(model, original, record)
    return [summary.of(key, kernels, errors.get(key[0])) for key in dict.fromkeys([*record.ops, *record.reasons])]


def brief_records(model: ir.Model, in_float: Mapping[str, str]) -> list[OpRecord]:
    """The ops of a quantized ``model`` without a session or a run: errors stay out, kernels are told from the graph.

    ``in_float`` has the reasons of those that the runtime computes in float all the same, by name.
    """
    record = read_record(model)
    if record is None:
        return []
    summary, kernels = _Summary(model, None, record), Kernels(in_float)
    return [summary.of(key, kernels, None) for key in dict.fromkeys([*record.ops, *record.reasons])]


def half_records(original: ir.Model, model: ir.Model, precision: str, kept: Collection[str]) -> list[OpRecord]:
    """The nodes of ``original`` in ``model``, converted to ``precision``; where only weights are, those with weights.

    ``kept`` are the nodes that were to stay as they are.
    """
    half = dtype(precision).name
    computing = f"computes in {half}"
    kinds = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
    nodes = {str(node.name): node for node in model.graph.all_nodes()}

    def record(name: str, kind: str) -> OpRecord:
        read = [value for value in nodes[name].inputs if value is not None]
        if any(value.dtype in kinds for value in (*read, *nodes[name].outputs)):
            return OpRecord(name, kind, half, reason=computing)
        before = [value.producer() for value in read]
        if any(cast is not None and cast.op_type == "Cast" and is_constant(cast.inputs[0]) for cast in before):
            return OpRecord(name, kind, half, reason=f"weight stored in {half}, computes in fp32")
        reason = (
            "nodes_to_exclude names it" if name in kept else f"stays in fp32: not run in {half}, or too large for it"
        )
        return OpRecord(name, kind, "fp32", reason=reason)

    floats = (node for node in original.graph.all_nodes() if any(is_float(value) for value in node.outputs))
    found = [record(str(node.name), node.op_type) for node in floats if str(node.name) in nodes]
    all_of_it = any(op.reason == computing for op in found)
    return [op for op in found if all_of_it or op.precision == half or op.name in kept]


@dataclass(frozen=True)
class Kernels:
    """What the runtime computes the nodes of a model with: ``in_float`` says why some are in float.

    Without ``running``, the nodes that a session has, it is told as far as the graph shows it. ``absent`` is the provider
    that the model is for where it does not run here.
    """

    in_float: Mapping[str, str] = field(default_factory=dict)
    running: Mapping[str, RunningNode] | None = None
    absent: str = ""

    @classmethod
    def of_session(cls, model: ir.Model, target: Target) -> Kernels:
        """The kernels that a session on ``target`` takes; of a model too large for one, what the graph shows."""
        if not target.runs_here:
            return cls(absent=target.provider.name)
        if weight_bytes(model) > ONE_FILE_BYTES:
            return cls(running={})
        running = as_run(model, target.sessions)
        return cls(running_in_float(model, target.sessions, running), running)

    def of(self, key: OpKey, parts: Sequence[ir.Node]) -> tuple[str, bool]:
        """What runs the op that became ``parts``, and whether that is float arithmetic on quantized values."""
        name, kind = key
        if self.absent:
            return f"{self.absent}, not run here", False
        if any(stored_floats(value) is not None for part in parts[:1] for value in part.inputs):
            return _STORED, True
        known = self.running or {}
        running = [known[str(part.name)] for part in parts if part.name in known]
        kinds = [*(node.op_type for node in running), *(part.op_type for part in parts)]
        integer = next((each for each in kinds if each in INTEGER_OPS), None)
        if integer is not None and name not in self.in_float:
            return integer, False
        if name in self.in_float or any(node.dequantizes for node in running):
            return f"float: {self.in_float.get(name, 'the runtime turns the weight into floats first')}", True
        if self.running is None:
            return f"{kind} between quantizers", False
        # Only its table is stored in integers, and looked up as it was.
        return kind if parts else "none: it was taken into another op", False


class _Summary:
    def __init__(self, model: ir.Model, original: ir.Model | None, record: QuantizationRecord) -> None:
        self.record = record
        self.nodes = {str(node.name): node for node in model.graph.all_nodes()}
        self.originals = {} if original is None else {str(node.name): node for node in original.graph.all_nodes()}
        self.known = set(self.originals) or {name for name, _ in (*record.ops, *record.reasons)}

    def of(self, key: OpKey, kernels: Kernels, output_sqnr: float | None) -> OpRecord:
        """The record of one op."""
        name, scheme = key[0], self.record.ops.get(key, OpScheme())
        parts = list(nodes_of(self.nodes[name], self.known)) if name in self.nodes else []
        size = _bytes(parts)
        if scheme.is_float:
            reason = self.record.reasons.get(key, "kept in float")
            return OpRecord(*key, precision=scheme.precision, reason=reason, size_bytes=size)
        kernel, simulated = kernels.of(key, parts)
        if key in self.record.reasons and not simulated:
            kernel, simulated = f"float: {self.record.reasons[key]}", True
        return OpRecord(
            *key,
            precision=scheme.precision,
            activation=scheme.activation.dtype.name if scheme.activation else "fp32",
            mode=scheme.mode,
            kernel=kernel,
            simulated=simulated,
            reason=self.record.reasons.get(key, kernel.removeprefix("float: ")) if simulated else "",
            weight_sqnr=self._weight_sqnr(name, parts),
            output_sqnr=output_sqnr,
            size_bytes=size,
        )

    def _weight_sqnr(self, name: str, parts: Sequence[ir.Node]) -> float | None:
        node = self.originals.get(name)
        before = None if node is None else constants_of(node).get("input0" if node.op_type == "Gather" else "weight")
        if before is None or before.ndim < 2:
            return None
        after = next((array for array in weights_of(parts) if array.shape == before.shape), None)
        return None if after is None else sqnr_db(before, after)


def _bytes(parts: Sequence[ir.Node]) -> int:
    constants = {value: value.const_value for part in parts for value in part.inputs if value is not None}
    return sum(tensor.nbytes for tensor in constants.values() if tensor is not None)


_AT_A_TIME = 1 << 28
"""Bytes of outputs that are held at a time, of each model."""


class _ErrorSums:
    """Relative squared errors over any number of batches: sum |q - f|^2 / sum |f|^2."""

    def __init__(self) -> None:
        self._signal: dict[str, float] = defaultdict(float)
        self._noise: dict[str, float] = defaultdict(float)

    def add(self, name: str, expected: np.ndarray, actual: np.ndarray) -> None:
        """Take in one batch of what is called ``name``."""
        exact = np.asarray(expected, np.float64)
        if exact.size:
            self._signal[name] += float(np.sum(exact**2))
            self._noise[name] += float(np.sum((np.asarray(actual, np.float64) - exact) ** 2))

    def of(self, name: str) -> float | None:
        """The error of what is called ``name``; None where nothing was seen of it."""
        if name not in self._signal:
            return None
        noise, signal = self._noise[name], self._signal[name]
        return noise / signal if signal else math.inf if noise else 0.0


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
    sums = _ErrorSums()
    for group in _portions(_sizes(original, list(shared.values()), next(iter(feeds)), providers)):
        sessions = [make_session(original, group, providers)]
        sessions.append(make_session(quantized, [read[name] for name in group], providers))
        for feed in feeds:
            for triple in zip(group, *(session.run(None, dict(feed)) for session in sessions), strict=True):
                sums.add(*triple)
    return {op: error for op, name in shared.items() if (error := sums.of(name)) is not None}


def own_errors(
    quantized: ir.Model,
    original: ir.Model,
    ops: Collection[str],
    feeds: Iterable[Mapping[str, Any]],
    providers: Sequence[str],
) -> dict[str, float]:
    """The same of each op alone, on the inputs that it has in the float model; ``quantized`` is in QDQ form.

    The graph is cut in front of each op: what it reads there are values of the float model.
    """
    made = {str(value.name): value for node in quantized.graph for value in node.outputs if is_float(value)}
    cuts: dict[str, tuple[str, list[str], tuple[float, float]]] = {}
    for node in original.graph:
        if node.name in ops and (output := _output(node, made)) is not None:
            inputs = (
                value for value in node.inputs if value is not None and is_float(value) and not is_constant(value)
            )
            read = [str(value.name) for value in inputs]
            cuts[str(node.name)] = output, [name for name in read if name in made], _limits(node, output)
    inner = list(dict.fromkeys(name for output, read, _ in cuts.values() for name in (output, *read)))
    sizes = _sizes(original, inner, next(iter(feeds)), providers)
    sums = _ErrorSums()
    for group in _portions({op: sum(sizes[name] for name in (out, *read)) for op, (out, read, _) in cuts.items()}):
        outputs = [cuts[op][0] for op in group]
        read = list(dict.fromkeys(name for op in group for name in cuts[op][1]))
        wanted = list(dict.fromkeys([*outputs, *read]))
        session = make_session(original, wanted, providers)
        alone = make_session(_cut(quantized, read), list(dict.fromkeys(outputs)), providers)
        for feed in feeds:
            floats = dict(zip(wanted, session.run(None, dict(feed)), strict=True))
            given = {**feed, **{f"{name}{_CUT}": floats[name] for name in read}}
            actual = dict(zip(dict.fromkeys(outputs), alone.run(None, given), strict=True))
            for op in group:
                name, _, limits = cuts[op]
                sums.add(op, floats[name], np.clip(np.asarray(actual[name], np.float64), *limits))
    return {op: sums.of(op) or 0.0 for op in cuts}


_CUT = "/as in the float model"


def _cut(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy of ``model`` in which all that reads one of the values ``names`` reads an input in its place."""
    new = model.clone()
    values = {str(value.name): value for node in new.graph for value in node.outputs}
    for name in names:
        given = ir.Value(name=f"{name}{_CUT}", type=values[name].type, shape=values[name].shape)
        values[name].replace_all_uses_with(given)
        new.graph.inputs.append(given)
    return new


def _limits(node: ir.Node, output: str) -> tuple[float, float]:
    """What the Relu or Clip cuts off that gives ``output``, where a quantizer has taken it over from behind ``node``."""
    clip = next((user for user in node.outputs[0].consumers() if user.outputs[0].name == output), None)
    return (-math.inf, math.inf) if clip is None else clip_bounds(clip)


def decibels(error: float) -> float:
    """A relative squared error as SQNR in dB.

    >>> decibels(0.01), decibels(0.0)
    (20.0, inf)
    """
    return -10 * math.log10(error) if error else math.inf


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


def op_time_shares(model: ir.Model, feed: Any, target: Target) -> dict[str, float]:
    """Which part of a run each op takes; nothing where the runtime does not tell."""
    record = read_record(model)
    every = (str(node.name) for node in model.graph.all_nodes())
    ops = set(every) if record is None else {name for name, _ in (*record.ops, *record.reasons)}
    try:
        return time_shares(model, ModelInputs.of(model).feed(feed), ops, target.sessions)
    except Exception as error:  # noqa: BLE001 - the runtime's errors share no base class, and the model is done and good
        logger.info("the shares of time are not told: %s", error)
        return {}
