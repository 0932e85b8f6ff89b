"""One product for layers that are given the same input: query, key and value, or the two halves of a gated layer.

A call of a kernel with one row costs about as much as what it computes, so layers that read one input are better one matrix
to it. Which layers these are is seen when the model runs: they are called one after the other with the same tensor. From the
next call with few rows on, the first of them multiplies for all, and the others take their outputs from there if they are
given the same values. Whoever is not multiplies alone, and so do all of them from then on. The state of the layers, their
copies and files know nothing of it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight, stacked

if TYPE_CHECKING:
    from neural_compressor.torch.modules.kernels.weight_only import WeightOnlyKernel
    from neural_compressor.torch.modules.weight_only import WeightOnlyLinear

    Layers = list[weakref.ref[WeightOnlyLinear]]

_TILE = 16
"""Kernels compute outputs in tiles: layers of whole tiles have the same outputs to the bit, alone and together."""


class SharedInput:
    """What a layer knows of others that read its input."""

    def __init__(self) -> None:
        self._product: SharedProduct | None = None
        self._place = 0
        self._seen_with: Layers | None = None
        self._is_open = True

    def note(self, layer: WeightOnlyLinear, input: Tensor) -> bool:
        """Whether ``layer`` was called before; its first call shows who else is given ``input``."""
        if self._seen_with is not None:
            return True
        self._seen_with = _recent.given(input)
        self._seen_with.append(weakref.ref(layer))
        return False

    def outputs(self, layer: WeightOnlyLinear, x: Tensor, rows: int) -> Tensor | None:
        """The product of ``x``, which has few rows, with the weight of ``layer``; None where it has to multiply alone."""
        product = self._product
        if product is None:
            if not self._is_open or not self.note(layer, x):
                return None
            self._is_open = False
            found = [other for other in (reference() for reference in self._seen_with or ()) if other is not None]
            if len(found) > 1 and found[0] is layer:
                _join(found)
            product = self._product
        if product is None or rows > product.most_rows:
            return None
        y = product.outputs(self._place, x, layer)
        if y is None:
            self.part()
        return y

    def part(self) -> None:
        """Let the layer and those it was joined with multiply alone from now on."""
        product, self._product, self._is_open = self._product, None, False
        for layer in [] if product is None else product.layers():
            layer.shared_input.part()

    def join(self, product: SharedProduct, place: int) -> None:
        """Take outputs from ``product``."""
        self._product, self._place, self._is_open = product, place, False

    @property
    def product(self) -> SharedProduct | None:
        """The product that serves the layer and others."""
        return self._product

    @property
    def is_joined(self) -> bool:
        """Whether one product serves the layer and others."""
        return self._product is not None


class SharedProduct:
    """The product of an input with the weights of several layers below each other."""

    def __init__(self, layers: Sequence[WeightOnlyLinear], weight: StoredWeight, kernel: WeightOnlyKernel) -> None:
        self._layers = [weakref.ref(layer) for layer in layers]
        self._run, self._packed = kernel.run, kernel.pack(weight)
        self._inputs, self._sizes = layers[0].in_features, [layer.out_features for layer in layers]
        self._waiting = _Waiting()
        #: Beyond this one of the layers takes another way.
        self.most_rows = min(layer.most_rows for layer in layers)

    def layers(self) -> list[WeightOnlyLinear]:
        """Those of the layers that still exist."""
        return [layer for layer in (reference() for reference in self._layers) if layer is not None]

    def parts(self, x: Tensor, layer: WeightOnlyLinear) -> Sequence[Tensor]:
        """The products of ``x`` with the weight of each layer; ``layer`` is any of them."""
        parts = self.joined(x, layer).split_with_sizes(self._sizes, -1)
        return parts if x.numel() == self._inputs else [part.contiguous() for part in parts]

    def joined(self, x: Tensor, layer: WeightOnlyLinear) -> Tensor:
        """The same beside each other in one tensor."""
        return self._run(self._packed, layer.turned(x))

    def outputs(self, place: int, x: Tensor, layer: WeightOnlyLinear) -> Tensor | None:
        """The product of ``x`` with the weight of the layer at ``place``; None where layers do not come for theirs."""
        waiting, content = self._waiting, _content(x)
        if not waiting.outputs:
            waiting.content = content
            waiting.outputs = dict(enumerate(self.parts(x, layer)))
        elif waiting.content != content:
            waiting.outputs = {}
        return waiting.outputs.pop(place, None)


class _Waiting(threading.local):
    """Outputs that layers have not taken yet, by place, and the input they are of; each thread runs the model by itself."""

    def __init__(self) -> None:
        self.content: Any = None
        self.outputs: dict[int, Tensor] = {}


def _content(x: Tensor) -> Any:
    """The values of ``x``. A tensor may change in place, and in inference mode it has no version that would tell."""
    x = x.detach() if x.requires_grad else x
    numbers = x.view(torch.int16) if x.dtype is torch.bfloat16 else x
    return x.dtype, x.shape, numbers.numpy().tobytes()


class _Recent(threading.local):
    """The input that a layer was called with last, and all layers that were called with it."""

    def __init__(self) -> None:
        self._input: weakref.ref[Tensor] | None = None
        self._layers: Layers = []

    def given(self, input: Tensor) -> Layers:
        """Those that were called with ``input``."""
        if self._input is None or self._input() is not input:
            self._input, self._layers = weakref.ref(input), []
        return self._layers


_recent = _Recent()


def _join(layers: Sequence[WeightOnlyLinear]) -> None:
    """Give layers one product, as far as they fit the first of them."""
    kernel, changes = layers[0].low_bit_kernel, layers[0].input_changes()
    fitting = [
        layer
        for layer in layers
        if layer.low_bit_kernel is kernel
        and layer.out_features % _TILE == 0
        and all(_equal(*both) for both in zip(layer.input_changes(), changes, strict=True))
    ]
    weight = stacked([layer.stored_weight() for layer in fitting])
    if kernel is None or weight is None or len(fitting) < 2 or weight.data.device.type != "cpu":
        return
    product = SharedProduct(fitting, weight, kernel)
    for place, layer in enumerate(fitting):
        layer.forget_own_layout()
        layer.shared_input.join(product, place)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other) if not isinstance(one, Tensor) and not isinstance(other, Tensor) else False
