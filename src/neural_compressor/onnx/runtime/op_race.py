"""Ops of a model raced on this machine, in float against integers; results are kept for the next run."""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from neural_compressor.kernel_race import Race, Referee, Work
from neural_compressor.kernel_timings import KernelTimings
from neural_compressor.onnx.graph.normalise import infer_shapes
from neural_compressor.onnx.runtime.saturation import saturates_here

logger = logging.getLogger("neural_compressor")

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of a model's tensors by name, as far as they are known."""

RACED = ("Conv", "MatMul", "Gemm")
MOST_PRODUCTS = 1 << 30
"""A larger op is left to the fixed rules, as racing it takes long; integers pay for it in any case."""
_MUST_GAIN = 1.15
"""Integers stay unless float is so many times as fast: noise decides nothing, and they are smaller."""
_SECONDS = 2.0
"""What the races of one model may take; the ops that come last are left to the fixed rules."""


@functools.cache
def machine_race() -> Race:
    """The race whose results are kept for this CPU and this runtime; how integers are summed tells of its instructions."""
    instructions = "pairs" if saturates_here() else "exact"
    return Race(KernelTimings.of_machine(instructions, {"onnxruntime": ort.__version__}))


_referee = Referee(machine_race)
current_race = _referee.current
racing = _referee.racing


def known_shapes(model: ir.Model, inputs: Shapes) -> dict[str, tuple[int, ...]]:
    """The shapes of what ``model`` computes from ``inputs`` of known shapes, as far as they can be inferred."""
    fixed = model
    if inputs:
        fixed = model.clone()
        for value in fixed.graph.inputs:
            if str(value.name) in inputs:
                value.shape = ir.Shape(inputs[str(value.name)])
        infer_shapes(fixed)
    values = [*fixed.graph.inputs, *(value for node in fixed.graph for value in node.outputs)]
    shapes = {str(v.name): v.shape for v in values if v.shape is not None}
    return {name: tuple(shape.numpy()) for name, shape in shapes.items() if all(isinstance(d, int) for d in shape)}


def batches_of_one(model: ir.Model) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's inputs that have known sizes but for the first, the batch, which is then 1."""
    found = {}
    for value in (each for each in model.graph.inputs if each.shape is not None):
        sizes = [*(value.shape or ())]
        sizes[:1] = [size if isinstance(size, int) else 1 for size in sizes[:1]]
        if all(isinstance(size, int) for size in sizes):
            found[str(value.name)] = tuple(int(size) for size in sizes)
    return found


class OpRace:
    """The races of one model, within a bound of time."""

    def __init__(self, race: Race, shapes: Shapes) -> None:
        self.race, self.shapes = race, shapes
        self._end = time.monotonic() + _SECONDS
        self._found: dict[str, str | None] = {}

    def count_products(self, node: ir.Node, weight: ir.Value | None) -> float:
        """About how many numbers a node multiplies with a weight; 0 where that is not known."""
        given = node.inputs[0]
        shape = () if given is None else self.shapes.get(str(given.name), ())
        if not shape or weight is None or weight.shape is None:
            return 0.0
        summed = shape[1 if node.op_type == "Conv" else -1]
        return math.prod(shape) / max(summed, 1) * math.prod(weight.shape.numpy())

    def why_float(self, op: str, shape: Sequence[int], work: Callable[[bool], Work]) -> str | None:
        """Why an op is better left in float, empty where it is not; None where there was no time to find out.

        ``op`` tells it from others, ``shape`` is that of its input, and ``work`` prepares a run of it, in integers or not.
        """
        if op not in self._found:
            works = {f"{name}: {op}": functools.partial(work, name == "int8") for name in ("float", "int8")}
            if len(self.race.known(works)) < len(works) and time.monotonic() > self._end:
                return None
            self._found[op] = self._raced(works, shape)
        return self._found[op]

    def _raced(self, works: Mapping[str, Callable[[], Work]], shape: Sequence[int]) -> str | None:
        try:
            in_float, in_integers = self.race.microseconds(works).values()
        except Exception as error:  # noqa: BLE001 - the runtime's errors share no other base class
            logger.info("%s is not raced: %s", next(iter(works)).removeprefix("float: "), error)
            return None
        if in_integers <= in_float * _MUST_GAIN:
            return ""
        times = f"{in_float:.0f} us against {in_integers:.0f} us in integers"
        return f"float is faster here: {times} for an input of {list(shape)}"


def described(node: ir.Node, constants: Sequence[ir.Value | None]) -> str:
    """A node by its type, the shapes of its ``constants`` and its attributes."""
    shapes = ["-" if v is None or v.shape is None else str(list(v.shape.numpy())) for v in constants]
    attributes = {name: each.value for name, each in sorted(node.attributes.items())}
    return f"{node.op_type} {' '.join(shapes)} {attributes}"


def run_of_one(model: onnx.ModelProto, x: np.ndarray) -> Work:
    """A run of a model of one op on its input ``x``, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})
