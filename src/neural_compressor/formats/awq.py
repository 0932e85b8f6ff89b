"""The AWQ checkpoint layout (GEMM version): 4-bit codes packed along the outputs, eight at a time, in a kernel's order.

``qweight`` int32 (in, out / 8), ``qzeros`` int32 (groups, out / 8), ``scales`` float16 (groups, out).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from array_api_compat import device

from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat
from neural_compressor.formats.byte_views import contiguous
from neural_compressor.formats.int32_words import pack_words, unpack_words
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight
from neural_compressor.formats.stored_tensors import (
    finite_scale,
    group_size_of,
    half_scale,
    matrix,
    of_shape,
    option,
    required,
    whole_groups,
    why_no_half_scale,
)
from neural_compressor.schemes.arrays import Array, array_namespace

#: Which of eight neighbouring outputs stands at each place of a word, from the lowest bits up.
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class AWQ(CheckpointFormat[LinearWeight]):
    """AWQ, version GEMM: ``quant_method: awq``."""

    name = "awq"
    parts = ("qweight", "qzeros", "scales")
    key = "qweight"

    def _why_not(self, weight: LinearWeight) -> str | None:
        if weight.bits != 4:
            return f"it takes 4 bits, not {weight.bits}"
        if weight.g_idx is not None:
            return "it knows no activation order (g_idx); use gptq"
        if weight.out_features % 8:
            return f"it packs 8 outputs at a time, and the weight has {weight.out_features}; leave the layer in float"
        if weight.in_features % (weight.in_features if weight.group_size == -1 else weight.group_size):
            return f"its groups must divide the inputs, and {weight.group_size} does not divide {weight.in_features}"
        return why_no_half_scale(weight.scale)

    def _store(self, weight: LinearWeight) -> dict[str, Array]:
        xp = array_namespace(weight.codes)
        return {
            "qweight": _pack(xp.matrix_transpose(weight.codes)),
            "qzeros": _pack(xp.astype(xp.matrix_transpose(weight.zero_points), xp.uint8)),
            "scales": contiguous(xp.matrix_transpose(half_scale(weight.scale))),
        }

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> LinearWeight:
        bits, size = option(config, "bits", "w_bit"), group_size_of(config, "group_size", "q_group_size")
        if bits != 4:
            raise FormatError(f"an AWQ checkpoint has 4 bits, found {bits}")
        qweight = matrix(tensors, "qweight", "int32")
        xp = array_namespace(qweight)
        inputs, outputs = int(qweight.shape[0]), int(qweight.shape[1]) * 8
        groups = whole_groups(inputs, size)
        scales = of_shape(finite_scale(required(tensors, "scales"), "scales"), (groups, outputs), "scales")
        qzeros = of_shape(matrix(tensors, "qzeros", "int32"), (groups, outputs // 8), "qzeros")
        zeros = contiguous(xp.astype(xp.matrix_transpose(_unpack(qzeros)), xp.int32))
        return LinearWeight(
            contiguous(xp.matrix_transpose(_unpack(qweight))),
            contiguous(xp.matrix_transpose(scales)),
            None if bool(xp.all(zeros == 8)) else zeros,
            bits,
            size,
            None,
            tensors.get("bias"),
        )

    def config(
        self, specs: Mapping[str, LinearSpec], ignore: Iterable[str] = (), complete: bool = True
    ) -> dict[str, Any]:
        """The block; all layers must be quantized alike, for it has no way to say otherwise."""
        shapes = {(spec.bits, spec.group_size) for spec in specs.values()}
        if len(shapes) != 1:
            raise FormatError(f"the layers of an AWQ checkpoint have one (bits, group size), found {sorted(shapes)}")
        bits, size = shapes.pop()
        return {
            "quant_method": "awq",
            "version": "gemm",
            "bits": bits,
            "group_size": size,
            "zero_point": True,
            "modules_to_not_convert": sorted(ignore) or None,
        }

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says AWQ, in the GEMM version."""
        return config.get("quant_method") == "awq" and str(config.get("version", "gemm")).lower() == "gemm"


def _pack(codes: Array) -> Array:
    return pack_words(_in_eights(codes, np.asarray(_ORDER)), 4)


def _unpack(words: Array) -> Array:
    return _in_eights(unpack_words(words, 4, words.shape[-1] * 8), np.argsort(_ORDER))


def _in_eights(x: Array, order: np.ndarray[Any, Any]) -> Array:
    """``x`` with each run of eight values of the last axis rearranged."""
    xp = array_namespace(x)
    runs = xp.reshape(x, (-1, 8))
    return xp.reshape(xp.take(runs, xp.asarray(order, device=device(x)), axis=1), x.shape)


FORMATS.add(AWQ.name, AWQ())
