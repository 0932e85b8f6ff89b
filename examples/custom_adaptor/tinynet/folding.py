"""The optimisation done once, before quantization: a Scale after a convolution becomes part of it."""

from __future__ import annotations

import copy

from tinynet.network import Conv1D, Network, Scale


def fold_scales(network: Network) -> Network:
    """A copy of ``network`` in which each Scale that follows a Conv1D is multiplied into its weight and bias."""
    folded = Network()
    for layer in copy.deepcopy(network):
        before = folded.layers[-1] if folded.layers else None
        if isinstance(layer, Scale) and isinstance(before, Conv1D):
            before.weight = before.weight * layer.factor[:, None, None]
            before.bias = before.bias * layer.factor + layer.offset
        else:
            folded.add_layer(layer)
    return folded
