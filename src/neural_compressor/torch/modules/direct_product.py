"""Products of weight-only layers for few rows, called without their modules: what a layer settles once is settled here.

The outputs are those of the layers, to the bit. Whoever calls these has to know that the layers are what they were, that
nobody listens to them and that no graph is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from neural_compressor.torch.modules.portable import makes_graph
from neural_compressor.torch.modules.shared_input import SharedProduct
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear

Product = Callable[[Tensor], Tensor]


def is_watched() -> bool:
    """Whether a graph is made, or someone looks at operators and wants to see those of the module's own forward."""
    return makes_graph() or torch._C._len_torch_function_stack() > 0 or torch._C._len_torch_dispatch_stack() > 0


def plain_product(layer: WeightOnlyLinear) -> Product:
    """The product with the weight of ``layer``, in float32."""
    assert layer.low_bit_kernel is not None
    multiply, packed, single = layer.low_bit_kernel.run, layer.prepacked(), torch.float32
    turned = layer.turned if any(change is not None for change in layer.input_changes()) else None

    def linear(x: Tensor) -> Tensor:
        y = multiply(packed, x if turned is None else turned(x))
        return y if y.dtype is single else y.to(single)

    return linear


def split_products(product: SharedProduct, layer: WeightOnlyLinear) -> Callable[[Tensor], Sequence[Tensor]]:
    """The products with the weights of all layers that share one with ``layer``, in float32."""
    parts, single = product.parts, torch.float32

    def linears(x: Tensor) -> Sequence[Tensor]:
        found = parts(x, layer)
        return found if found[0].dtype is single else [part.to(single) for part in found]

    return linears


def output_of(layer: WeightOnlyLinear) -> Product:
    """What a float32 ``layer`` gives, bias and all, in float32."""
    linear, finish = plain_product(layer), finishing(layer)
    if finish is None:
        return linear

    def whole(x: Tensor) -> Tensor:
        return finish(linear(x))

    return whole


def joined_outputs(product: SharedProduct) -> Product | None:
    """What the layers of ``product`` give, beside each other in one tensor; None where more is done to it than a bias."""
    layers, single = product.layers(), torch.float32
    if any(layer.scheme.output is not None or layer.relu for layer in layers):
        return None
    biases = [layer.bias for layer in layers]
    given = [bias for bias in biases if bias is not None]
    if given and (len(given) < len(biases) or any(bias.dtype is not single for bias in given)):
        return None
    bias, joined, first = torch.cat(given) if given else None, product.joined, layers[0]

    def outputs(x: Tensor) -> Tensor:
        y = joined(x, first)
        y = y if y.dtype is single else y.to(single)
        return y if bias is None else y + bias

    return outputs


def finishing(layer: WeightOnlyLinear) -> Product | None:
    """What is done to the product of ``layer``, in float32; None where that is nothing."""
    if layer.bias is None and layer.scheme.output is None and not layer.relu:
        return None
    finished, single = layer.finished, torch.float32

    def finish(y: Tensor) -> Tensor:
        return finished(y, single)

    return finish
