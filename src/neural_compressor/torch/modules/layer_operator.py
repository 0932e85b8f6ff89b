"""A layer as one operator of torch, for models that are compiled.

What a quantized layer does at a call cannot be traced: its kernel may be outside of torch or hold packed weights, and one
product may serve several layers. As an operator it stands in the graph of ``torch.compile`` as it is, and what is around it
is fused.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from neural_compressor.torch.modules.portable import is_exporting


class Layer(Protocol):
    """What the operator calls."""

    def operator_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What the layer computes."""

    def empty_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the shapes, types and layouts of its outputs."""

    def input_gradients(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of its inputs, of those of its outputs."""


_layers: weakref.WeakValueDictionary[int, Layer] = weakref.WeakValueDictionary()
_next_number = itertools.count()


def numbered(layer: Layer) -> int:
    """A number that stands for ``layer`` in a graph of this process."""
    number = next(_next_number)
    _layers[number] = layer
    return number


def is_compiled() -> bool:
    """Whether ``torch.compile`` is looking."""
    return torch.compiler.is_compiling() and not is_exporting()


def is_traced(x: Tensor) -> bool:
    """Whether ``torch.compile`` is looking at a call with ``x`` that needs no gradients, which the operator has not."""
    return is_compiled() and not (x.requires_grad and torch.is_grad_enabled())


# Defined so, a call costs less than one of a torch.library.custom_op does, and a step of decoding has hundreds.
_library = torch.library.Library("open_neural_compressor", "DEF")  # type: ignore[no-untyped-call]
_library.define("call_layer(Tensor[] inputs, int number) -> Tensor[]")  # type: ignore[no-untyped-call]
_library.define("layer_gradients(Tensor[] inputs, Tensor[] gradients, int number) -> Tensor[]")  # type: ignore[no-untyped-call]


def _call_layer(inputs: Sequence[Tensor], number: int) -> list[Tensor]:
    return _layers[number].operator_outputs(inputs)


def _layer_gradients(inputs: Sequence[Tensor], gradients: Sequence[Tensor], number: int) -> list[Tensor]:
    return _layers[number].input_gradients(inputs, gradients)


for _name, _function in (("call_layer", _call_layer), ("layer_gradients", _layer_gradients)):
    _library.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

call_layer = torch.ops.open_neural_compressor.call_layer.default
"""The outputs of the layer ``number`` for ``inputs``."""
layer_gradients = torch.ops.open_neural_compressor.layer_gradients.default
"""The gradients of the inputs of the layer ``number``, of those of its outputs."""


@torch.library.register_fake("open_neural_compressor::call_layer", lib=_library)  # type: ignore[untyped-decorator]
def _(inputs: Sequence[Tensor], number: int) -> list[Tensor]:
    return _layers[number].empty_outputs(inputs)


@torch.library.register_fake("open_neural_compressor::layer_gradients", lib=_library)  # type: ignore[untyped-decorator]
def _(inputs: Sequence[Tensor], gradients: Sequence[Tensor], number: int) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]


def _keep(ctx: Any, inputs: tuple[Sequence[Tensor], int], output: Any) -> None:
    ctx.save_for_backward(*inputs[0])
    ctx.number = inputs[1]


def _backward(ctx: Any, gradients: Sequence[Tensor]) -> tuple[list[Tensor], None]:
    return layer_gradients(list(ctx.saved_tensors), list(gradients), ctx.number), None


torch.library.register_autograd("open_neural_compressor::call_layer", _backward, setup_context=_keep, lib=_library)
