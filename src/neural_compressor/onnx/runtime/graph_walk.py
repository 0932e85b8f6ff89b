"""A model run part by part on a few samples, with what was computed so far open to change."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np
import onnx_ir as ir

from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.graph.queries import is_constant
from neural_compressor.onnx.runtime.session import make_session


class GraphWalk:
    """Each node runs once a sample, in the order of the graph; what no node ahead reads is let go.

    Where that keeps more than ``limit`` bytes, the samples that come last are given up; the first never is.
    """

    def __init__(
        self, model: ir.Model, samples: Sequence[Mapping[str, np.ndarray]], providers: Sequence[str], limit: float = inf
    ) -> None:
        self.model, self.providers, self.limit = model, providers, limit
        self._ahead = list(reversed(model.graph))
        self._last_read = {value: place for place, node in enumerate(model.graph) for value in _inputs([node])}
        self._done = 0
        self._held = deque({value: sample[str(value.name)] for value in model.graph.inputs} for sample in samples)

    def run_to(self, node: ir.Node) -> list[np.ndarray]:
        """What ``node``, which must be ahead, gives as its first output for each sample."""
        part = [self._ahead.pop()]
        while part[-1] is not node:
            part.append(self._ahead.pop())
        self._done += len(part)
        try:
            return self._run(part)
        except Exception as error:  # the runtime's errors share no base class but this
            raise CalibrationError(f"the part of the model up to {node.name!r} does not run alone: {error}") from error

    def _run(self, part: Sequence[ir.Node]) -> list[np.ndarray]:
        node = part[-1]
        read = dict.fromkeys(_inputs(part))
        inputs = [value for value in read if value in self._held[0]]
        outputs = [v for each in part for v in each.outputs if self._is_needed(v) or v is node.outputs[0]]
        constants = [value for value in read if is_constant(value) and value.producer() is None]
        session = make_session(self._alone(part, inputs, outputs, constants), providers=self.providers, level="basic")
        results: list[np.ndarray] = []
        kept: list[dict[ir.Value, np.ndarray]] = []
        room = self.limit
        while self._held and (room > 0 or not kept):
            held = self._held.popleft()
            found = session.run(None, {str(value.name): held[value] for value in inputs})
            now = held | dict(zip(outputs, found, strict=True))
            results.append(now[node.outputs[0]])
            kept.append({value: array for value, array in now.items() if self._is_needed(value)})
            room -= sum(array.nbytes for array in kept[-1].values())
        self._held = deque(kept)
        return results

    def replace(self, value: ir.Value, arrays: Sequence[np.ndarray]) -> None:
        """Let the nodes ahead read ``arrays`` for ``value``, one a sample that is left."""
        for held, array in zip(self._held, arrays, strict=True):
            if value in held:
                held[value] = array

    def _is_needed(self, value: ir.Value) -> bool:
        return self._last_read.get(value, -1) >= self._done

    def _alone(
        self,
        part: Sequence[ir.Node],
        inputs: Sequence[ir.Value],
        outputs: Sequence[ir.Value],
        constants: Sequence[ir.Value],
    ) -> ir.Model:
        imports = self.model.graph.opset_imports
        for value in inputs:
            if value.type is None:
                value.type = ir.TensorType(ir.DataType.from_numpy(self._held[0][value].dtype))
        # A view of the nodes where they are, which is all that writing them takes.
        graph: Any = ir.GraphView(
            inputs, outputs, nodes=part, initializers=constants, opset_imports=imports, name="part"
        )
        return ir.Model(graph, ir_version=self.model.ir_version or 10)


def _inputs(nodes: Iterable[ir.Node]) -> Iterator[ir.Value]:
    """What ``nodes`` read, also inside of branches and loops."""
    for node in nodes:
        yield from (value for value in node.inputs if value is not None)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _inputs(attribute.as_graph())
            elif attribute.type == ir.AttributeType.GRAPHS:
                for body in attribute.as_graphs():
                    yield from _inputs(body)
