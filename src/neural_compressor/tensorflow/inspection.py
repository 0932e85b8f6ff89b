"""Looking at the tensors of a model: its constants, and what its ops give on some batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.tensorflow.batches import inputs_of, run
from neural_compressor.tensorflow.float_graph import FloatGraph
from neural_compressor.tensorflow.statistics import Kept

INSPECT_TYPES = ("weight", "activation", "all")


def inspect(
    graph: FloatGraph, dataloader: Iterable[Any], op_list: Sequence[Any], iterations: Sequence[int], inspect_type: str
) -> dict[str, Any]:
    """Weights, and outputs on some batches, of the ops named in ``op_list``, or of all."""
    if inspect_type not in INSPECT_TYPES:
        raise ConfigError(f"unknown inspect_type {inspect_type!r}; {close_matches(str(inspect_type), INSPECT_TYPES)}")
    known = {call.name: call for call in graph.sequence()}
    wanted = [op if isinstance(op, str) else op[0] for op in op_list] or list(known)
    for name in wanted:
        if name not in known:
            raise ConfigError(f"the model has no op called {name!r}; {close_matches(str(name), known)}")
    found: dict[str, Any] = {}
    if inspect_type != "activation":
        arrays = {name: graph.arrays(name) for name in wanted}
        found["weight"] = {name: tensors for name, tensors in arrays.items() if tensors}
    if inspect_type != "weight":
        kept = {tensor: Kept() for name in wanted for tensor in known[name].outputs}
        found["activation"] = []

        def feed(model: Any) -> None:
            for number, batch in enumerate(dataloader, 1):
                if number in iterations:
                    run(model, inputs_of(batch, model))
                    seen = {tensor: each.taken() for tensor, each in kept.items()}
                    found["activation"].append(
                        {n: {f"output{i}": seen[t] for i, t in enumerate(known[n].outputs)} for n in wanted}
                    )
                if number >= max(iterations, default=0):
                    break

        graph.watch(kept)({tensor: [each] for tensor, each in kept.items()}, feed)
    return found
