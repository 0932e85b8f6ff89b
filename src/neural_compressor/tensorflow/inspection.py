"""Looking at the tensors of a model: its constants, and what its ops give on some batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neural_compressor.adaptor.inspection import inspected
from neural_compressor.tensorflow.batches import inputs_of, run
from neural_compressor.tensorflow.float_graph import FloatGraph
from neural_compressor.tensorflow.statistics import Kept


def inspect(
    graph: FloatGraph, dataloader: Iterable[Any], op_list: Sequence[Any], iterations: Sequence[int], inspect_type: str
) -> dict[str, Any]:
    """Weights, and outputs on some batches, of the ops named in ``op_list``, or of all."""
    known = {call.name: call for call in graph.sequence()}

    def activations(names: list[str]) -> list[dict[str, Any]]:
        kept = {tensor: Kept() for name in names for tensor in known[name].outputs}
        found: list[dict[str, Any]] = []

        def feed(model: Any) -> None:
            for number, batch in enumerate(dataloader, 1):
                if number in iterations:
                    run(model, inputs_of(batch, model))
                    seen = {tensor: each.taken() for tensor, each in kept.items()}
                    found.append({n: {f"output{i}": seen[t] for i, t in enumerate(known[n].outputs)} for n in names})
                if number >= max(iterations, default=0):
                    break

        graph.watch(kept)({tensor: [each] for tensor, each in kept.items()}, feed)
        return found

    return inspected(inspect_type, op_list, known, list(known), graph.arrays, activations)
