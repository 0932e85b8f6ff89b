"""Calibration: the float network is run on samples, and observers of the core see the tensors that become int8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError

from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError
from neural_compressor.observers import make_observer
from neural_compressor.schemes import OpScheme, TensorScheme, choose_qparams
from neural_compressor_mxnet.graph import PASSING_ON, Graph, Op, as_block, as_inputs

Ranges = dict[str, tuple[float, float]]
"""Smallest and largest value of a tensor, by the name it has in MXNet's calibration table."""

#: MXNet's kernels divide the larger side of a range into this many steps, and clip to whole codes after that: the step of
#: an int8 tensor with the range [-1, 1] is 1 / 127.5. A range of so many steps of a scale has just that scale.
STEPS = {"int8": 127.5, "uint8": 255.5}


@dataclass(frozen=True)
class Watched:
    """A tensor that becomes int8, and the schemes of the ops that read it."""

    source: tuple[str, int]
    schemes: tuple[TensorScheme, ...]
    readers: tuple[str, ...]


def watched_tensors(graph: Graph, quantized: Mapping[Op, OpScheme], int8_nodes: set[str]) -> dict[str, Watched]:
    """What has to be observed so that ``quantized`` can run, by tensor name.

    A tensor is quantized once, where it is made. So an op that reads it through an int8 pooling means the pooling's input,
    and poolings, which have nothing of their own to estimate, count only where nobody else reads it. An op whose
    output no int8 op reads has it rounded to eight bits by the algorithm of its own input.
    """
    found: dict[tuple[str, int], dict[TensorScheme, list[str]]] = {}
    weighted_first = sorted(quantized.items(), key=lambda item: item[0].weight is None)
    for op, scheme in weighted_first:
        for place, source in enumerate(graph.nodes[op.node].inputs):
            origin = _origin(graph, source, int8_nodes)
            if op.weight is None and origin in found:
                continue
            wanted = scheme.activation if place == 0 else _kind(graph, origin, scheme.activation)
            found.setdefault(origin, {}).setdefault(wanted, []).append(op.name)
    for op, scheme in quantized.items():
        if op.weight is not None and (op.node, 0) not in found:
            found[op.node, 0] = {_kind(graph, (op.node, 0), scheme.activation): [op.name]}
    return {
        graph.tensors[source]: Watched(source, tuple(by), tuple(name for names in by.values() for name in names))
        for source, by in found.items()
    }


class ObservedNetwork:
    """The float network while it is calibrated: called like it, and observers see the watched tensors."""

    def __init__(self, graph: Graph, watched: Mapping[str, Watched]) -> None:
        internals = graph.symbol.get_internals()
        self._graph, self._watched = graph, watched
        self._inside = [name for name in watched if name not in graph.inputs]
        self._count = len(graph.symbol.list_outputs())
        outputs = mx.sym.Group([*graph.symbol, *(internals[name] for name in self._inside)])
        self._block = as_block(outputs, graph.inputs, {**graph.arguments, **graph.auxiliary})
        self._observers = {
            name: [(scheme, make_observer(scheme)) for scheme in tensor.schemes] for name, tensor in watched.items()
        }
        self.batches = 0

    def __call__(self, *inputs: Any) -> Any:
        arrays = [array for each in inputs for array in as_inputs(each)]
        outputs = self._block(*arrays)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        seen = dict(zip(self._inside, outputs[self._count :], strict=True))
        seen |= {name: array for name, array in zip(self._graph.inputs, arrays, strict=True) if name in self._watched}
        for name, array in seen.items():
            for _, observer in self._observers[name]:
                observer.update(array.asnumpy().astype(np.float32, copy=False))
        self.batches += 1
        return outputs[0] if self._count == 1 else outputs[: self._count]

    def ranges(self) -> Ranges:
        """The range of each watched tensor: the widest where ops that read it name different algorithms."""
        found = {}
        for name, tensor in self._watched.items():
            peaks = []
            for scheme, observer in self._observers[name]:
                low, high = observer.range(scheme)
                if scheme.dtype.name == "uint8" and float(low) < 0:
                    raise CalibrationError(
                        f"the input of {', '.join(tensor.readers)} goes down to {float(low):g} in the calibration data, and "
                        "uint8 codes of MXNet have no negative values; int8 would be right"
                    )
                peaks.append((STEPS[scheme.dtype.name] * float(choose_qparams(low, high, scheme).scale), scheme))
            peak, scheme = max(peaks, key=lambda each: each[0])
            found[name] = (0.0 if scheme.dtype.name == "uint8" else -peak, peak)
        return found


def inputs_of(batch: Any) -> Any:
    """The inputs of a batch ``(inputs, labels)``, or of one that is inputs alone."""
    return batch[0] if isinstance(batch, (tuple, list)) and len(batch) == 2 else batch


def run_samples(model: ObservedNetwork, dataloader: Iterable[Any] | None, iterations: int, samples: int) -> int:
    """Run batches until there were ``iterations`` of them or ``samples`` samples; returns how many samples."""
    seen = 0
    for number, batch in enumerate(dataloader if dataloader is not None else (), 1):
        inputs = inputs_of(batch)
        try:
            model(inputs)
            seen += len(as_inputs(inputs)[0])
        except (MXNetError, ValueError, TypeError, AssertionError) as error:
            raise CalibrationError(
                f"batch {number} of the calibration data does not fit the network: {str(error).splitlines()[0]}"
            ) from error
        if number >= iterations or seen >= samples:
            break
    return seen


def _origin(graph: Graph, source: tuple[str, int], int8_nodes: set[str]) -> tuple[str, int]:
    """Where the codes of a tensor are made: behind the int8 ops that only pass them on."""
    while source[0] in int8_nodes and graph.nodes[source[0]].op in PASSING_ON:
        source = graph.nodes[source[0]].inputs[0]
    return source


def _kind(graph: Graph, source: tuple[str, int], scheme: TensorScheme) -> TensorScheme:
    return replace(scheme, dtype=dtype("uint8" if graph.without_negatives(source[0]) else "int8"))
