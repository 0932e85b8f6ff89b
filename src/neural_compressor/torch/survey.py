"""How a model behaves over many batches: the ways through it that were seen, and what may be folded on all of them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from neural_compressor.torch.batches import feed, tensors_in
from neural_compressor.torch.fold import Structure, find_structure, fold
from neural_compressor.torch.watch import Trace, watch

_COMPARED = 8
"""On so many different ways through the model its outputs are compared; on the others what was connected is the proof."""
_MOST_TRACES = 32
"""So many different ways through the model are kept to look for what may be folded; further ones only take away."""
_ROUNDING = 1024
"""Machine epsilons, relative to the norm of an output, that two orders of float arithmetic may be apart."""


class Survey:
    """Watches ``model`` on one batch after the other; :attr:`structure` is what holds on all of them.

    A batch costs one run. Where a batch goes a way through the model that none before it went, the folded model runs on it
    too, and must give the same: folding is also wrong where a forward reads a weight that no call shows.
    """

    def __init__(self, model: nn.Module) -> None:
        self.traces: list[Trace] = []
        self.structure = Structure()
        self._model = _sharing_weights(model)
        self._paths: set[Any] = set()
        self._refused: dict[str, str] = {}

    def see(self, inputs: Any) -> None:
        """Run the model on the inputs of one batch."""
        rng, given, outputs = torch.get_rng_state(), _copied(inputs), list[Any]()

        def run() -> Any:
            outputs.append(feed(self._model, given))
            return outputs[0]

        trace = watch(self._model, given, run=run)
        if trace.path in self._paths:
            return
        self._paths.add(trace.path)
        if len(self.traces) == _MOST_TRACES:
            self.structure = self.structure.kept_by(self._model, [trace])
            return
        self.traces.append(trace)
        self._find()
        if self.structure.folded and len(self.traces) <= _COMPARED:
            self._compare(inputs, outputs[0], rng)

    def _find(self) -> None:
        self.structure = find_structure(self._model, *self.traces, refused=self._refused)

    def _compare(self, inputs: Any, expected: Any, rng: torch.Tensor) -> None:
        """Give up folds that change what the model computes: those that do so alone, or else all of them."""

        def wrong(folds: dict[str, str]) -> bool:
            return not _same(_run(fold(_sharing_weights(self._model), Structure(folds)), inputs, rng), expected)

        while wrong(self.structure.folded):
            folds = self.structure.folded
            guilty = [norm for norm, name in folds.items() if wrong({norm: name})] or list(folds)
            for norm in guilty:
                self._refused[norm] = f"batch normalisation {norm!r} is not folded into it: that changes the outputs"
            self._find()


def _sharing_weights(model: nn.Module) -> nn.Module:
    """A copy with the parameters of ``model``, which folding replaces and never writes into."""
    return copy.deepcopy(model, {id(p): p for p in model.parameters()})


def _copied(inputs: Any) -> Any:
    """``inputs`` for one run, which may write into them."""
    return tree_map_only(torch.Tensor, torch.Tensor.clone, inputs)


def _run(model: nn.Module, inputs: Any, rng: torch.Tensor) -> Any:
    """The outputs; None where the model does not run."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.set_rng_state(rng)
        try:
            return feed(model, _copied(inputs))
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return None


def _same(found: Any, expected: Any) -> bool:
    pairs = list(zip(tensors_in(found), tensors_in(expected), strict=False))
    return len(pairs) == sum(1 for _ in tensors_in(expected)) and all(_close(a, b) for a, b in pairs)


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not b.is_floating_point():
        return True  # where the floats that it comes from are as good as equal, so is what is counted or chosen by them
    allowed = min(_ROUNDING * torch.finfo(b.dtype).eps, 0.1)
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return bool((a - b).norm() <= allowed * b.norm())
