"""Looking at the tensors of a network, float or int8, as values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor_mxnet.calibration import STEPS, inputs_of
from neural_compressor_mxnet.graph import Graph, Op, as_block, as_inputs
from neural_compressor_mxnet.quantized import INT8, QuantizedBlock

INSPECT_TYPES = ("weight", "activation", "all")


def inspect(
    model: QuantizedBlock | Graph,
    dataloader: Iterable[Any],
    op_list: Sequence[Any],
    iterations: Sequence[int],
    what: str,
) -> dict[str, Any]:
    """Weights, and outputs as values, of the ops named in ``op_list``, or of all."""
    if what not in INSPECT_TYPES:
        raise ConfigError(f"unknown inspect_type {what!r}; {close_matches(str(what), INSPECT_TYPES)}")
    known = {op.name: op for op in (model.ops if isinstance(model, QuantizedBlock) else model.ops.values())}
    names = [op if isinstance(op, str) else op[0] for op in op_list] or list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"the network has no op {name!r}; {close_matches(name, known)}")
    found: dict[str, Any] = {}
    if what != "activation":
        weights = {name: _weight(model, known[name].weight) for name in names}
        found["weight"] = {name: {"weight": array} for name, array in weights.items() if array is not None}
    if what != "weight":
        probe = _Probe(model, [known[name] for name in names])
        batches = enumerate(dataloader, 1)
        last = max(iterations, default=0)
        found["activation"] = []
        for number, batch in batches:
            if number in iterations:
                found["activation"].append(probe(inputs_of(batch)))
            if number >= last:
                break
    return found


def write_tensors(found: dict[str, Any], folder: Path) -> None:
    """Write what :func:`inspect` returned as .npz files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"weight": found.get("weight", {})}
    files |= {f"activation_{number}": tensors for number, tensors in enumerate(found.get("activation", []), 1)}
    for name, tensors in files.items():
        np.savez(
            folder / f"{name}.npz",
            **{f"{op}/{part}": a for op, arrays in tensors.items() for part, a in arrays.items()},
        )


class _Probe:
    """A network that gives the outputs of ops: one array in float, or codes with the range they stand for."""

    def __init__(self, model: QuantizedBlock | Graph, ops: Sequence[Op]) -> None:
        if isinstance(model, QuantizedBlock):
            inputs, parameters = model.graph_inputs, {n: p.data() for n, p in model.collect_params().items()}
        else:
            inputs, parameters = model.inputs, {**model.arguments, **model.auxiliary}
        outputs: dict[str, list[Any]] = {}
        for output in model.symbol.get_internals():
            outputs.setdefault(output.name, []).append(output)
        self._groups = {op.name: outputs.get(INT8 + op.node) or outputs[op.node][:1] for op in ops}
        self._block = as_block(mx.sym.Group([o for group in self._groups.values() for o in group]), inputs, parameters)

    def __call__(self, inputs: Any) -> dict[str, dict[str, np.ndarray]]:
        results = self._block(*as_inputs(inputs))
        arrays = iter([array.asnumpy() for array in (results if isinstance(results, (list, tuple)) else [results])])
        return {name: {"output0": _values([next(arrays) for _ in group])} for name, group in self._groups.items()}


def _values(arrays: list[np.ndarray]) -> np.ndarray:
    if len(arrays) == 1:
        return arrays[0]
    codes, low, high = arrays
    peak = max(abs(float(low.min())), abs(float(high.max())))
    return codes.astype(np.float32) * np.float32(peak / STEPS[codes.dtype.name])


def _weight(model: QuantizedBlock | Graph, name: str | None) -> np.ndarray | None:
    if name is None:
        return None
    if isinstance(model, QuantizedBlock):
        return model.collect_params()[name].data().asnumpy()
    return model.arguments[name].asnumpy()
