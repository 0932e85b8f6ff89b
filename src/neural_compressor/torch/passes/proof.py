"""What a model gives on data and on variants of it in other shapes: a change of its weights has to leave that as it is."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.utils._pytree import tree_map

from neural_compressor.torch.batches import batch_size, tensors_in
from neural_compressor.torch.hooks import buffers_kept
from neural_compressor.torch.passes.survey import same_outputs
from neural_compressor.torch.structure.call_variants import variants
from neural_compressor.torch.structure.layer_form import ModuleCallError, called
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit, call_block

logger = logging.getLogger("neural_compressor")

TOKENS = 128
"""Tokens of a sample that are enough to compare two models on."""


class Proof:
    """The outputs of ``model`` on ``calls``, and on a sample of each kind of them and its variants, where it runs on these.

    Forwards branch on numbers of samples and tokens, and a fold may be right on the one branch and wrong on the other.

    >>> import torch
    >>> model = nn.Linear(2, 2)
    >>> proof = Proof(model, [((torch.ones(4, 2),), {})])
    >>> [len(args[0]) for args, _ in proof.calls], proof.holds_for(model), proof.holds_for(nn.Linear(2, 2))
    ([4, 1, 2], True, False)
    """

    def __init__(self, model: nn.Module, calls: Sequence[Arguments]) -> None:
        self.calls = list(calls)
        self.outputs = [_outputs(model, call) for call in calls]
        on_cpu = all(each.device.type == "cpu" for each in (*model.parameters(), *model.buffers()))
        for call in _others(calls, on_cpu):
            try:
                self.outputs.append(called(lambda call=call: _outputs(model, call)))  # type: ignore[misc]
                self.calls.append(call)
            except ModuleCallError as error:
                logger.debug("the model does not run on another shape of its data: %s", error)

    def holds_for(self, model: nn.Module) -> bool:
        """Whether ``model`` gives the same, but for the order of float arithmetic."""
        return all(same_outputs(_outputs(model, c), out) for c, out in zip(self.calls, self.outputs, strict=True))


def _others(calls: Sequence[Arguments], on_cpu: bool) -> Iterator[Arguments]:
    for call in first_of_each_kind(calls):
        sample = shortened(call)
        if sample is not None:
            yield from (sample,) if batch_size(call) > 1 else ()
            yield from variants(sample, longer=on_cpu)


def first_of_each_kind(calls: Sequence[Arguments]) -> list[Arguments]:
    """The first of each kind of arguments: a call with images may run what others do not."""
    first: dict[str, Arguments] = {}
    for call in calls:
        first.setdefault(str(tree_map(type, call)), call)  # None, too, is a leaf
    return list(first.values())


def shortened(call: Arguments) -> Arguments | None:
    """One sample of a call, and its first tokens where cutting these leaves no mask of another length."""
    cuts = all(tensor.dim() <= 2 for tensor in tensors_in(call))
    return CalibrationLimit(samples=1, tokens=TOKENS if cuts else math.inf).cut(call, 0)


def _outputs(model: nn.Module, call: Arguments) -> Any:
    with buffers_kept(model):  # a forward that counts or remembers begins anew
        return call_block(model, call)
