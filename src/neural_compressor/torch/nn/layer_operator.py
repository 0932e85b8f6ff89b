"""A layer as one operator of torch, for models that are compiled.

What a weight-only layer does at a call cannot be traced: its kernel may be outside of torch, and one product may serve
several layers. As an operator it stands in the graph of ``torch.compile`` as it is, and what is around it is fused.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

_layers: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
_next_number = itertools.count()


def numbered(layer: nn.Module) -> int:
    """A number that stands for ``layer`` in a graph of this process."""
    number = next(_next_number)
    _layers[number] = layer
    return number


def is_traced(x: Tensor) -> bool:
    """Whether ``torch.compile`` is looking at a call with ``x`` that needs no gradients, which the operator has not."""
    if not torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return False
    return not (x.requires_grad and torch.is_grad_enabled())


def _call_layer(x: Tensor, number: int, outputs: int) -> Tensor:
    forward: Callable[[Tensor], Tensor] = _layers[number].forward
    return forward(x)


call_layer = torch.library.custom_op(
    "open_neural_compressor::call_layer",
    _call_layer,
    mutates_args=(),
    schema="(Tensor x, int number, int outputs) -> Tensor",
)
"""The output of the layer ``number``, which has so many ``outputs``, for the rows ``x``."""


@call_layer.register_fake
def _(x: Tensor, number: int, outputs: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], outputs)
