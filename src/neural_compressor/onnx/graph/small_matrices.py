"""Matrices so small beside their model that quantizing them alone is of no use."""

from __future__ import annotations

import math
from collections.abc import Collection

import onnx_ir as ir

from neural_compressor.onnx.files.model_file import weight_bytes
from neural_compressor.onnx.graph.matrix_nodes import weight_only_nodes

_LITTLE = 1 << 15
"""A matrix of fewer numbers stays in the cache of a core as floats, too: reading it is no faster in fewer bits."""
_SHARE = 1 / 40
"""A model that gets smaller by less is no smaller to speak of."""


def little_matrices(model: ir.Model, names: Collection[str]) -> dict[str, str]:
    """Those nodes of ``names`` that are better left in float, with the reason: heads of few classes, routers of experts.

    None is where the little ones come to something together.
    """
    found = {name: node for name, node in weight_only_nodes(model).items() if name in names}
    little = {name: node.weight for name, node in found.items() if math.prod(node.shape) < _LITTLE}
    size = sum(weight.const_value.nbytes for weight in set(little.values()) if weight.const_value is not None)
    share = size / max(weight_bytes(model), 1)
    if share > _SHARE:
        return {}
    return dict.fromkeys(
        little,
        f"matrices this small hold {share:.1%} of the model together: too little to gain by; name one to quantize it",
    )
