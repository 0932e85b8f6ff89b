"""``quant_method: mxfp4``: the experts of gpt-oss checkpoints, all of a layer in one tensor.

``gate_up_proj_blocks`` uint8 (experts, out, in / 32, 16), even elements in the low nibbles; ``gate_up_proj_scales`` uint8
(experts, out, in / 32), exponents less 127; ``gate_up_proj_bias`` (experts, out). Everything else is in float. A single
matrix is stored as that of one expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat
from neural_compressor.formats.compressed_floats import block_array
from neural_compressor.formats.quantized_linear import QuantizedLinear
from neural_compressor.formats.stored_tensors import of_shape, required
from neural_compressor.schemes import PerGroup, TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace

_BLOCK = 32
_SCHEME = TensorScheme(dtype("mxfp4"), granularity=PerGroup(_BLOCK))


class MXFP4Experts(CheckpointFormat[QuantizedLinear]):
    """``quant_method: mxfp4``. A layer is the parameter of all experts; their matrices stand below each other."""

    name = "mxfp4"
    parts = ("blocks", "scales")
    key = "blocks"
    separator = "_"
    takes = (QuantizedLinear,)

    def _why_not(self, weight: QuantizedLinear) -> str | None:
        if weight.weight.scheme.dtype != _SCHEME.dtype:
            return f"its weights are {_SCHEME.dtype.name}, not {weight.weight.scheme.dtype.name}"
        if weight.activation is not None:
            return "its inputs are in float"
        inputs = weight.in_features
        return f"its blocks of {_BLOCK} must divide the inputs: {inputs}" if inputs % _BLOCK else None

    def _store(self, weight: QuantizedLinear) -> dict[str, Array]:
        packed, xp = weight.weight.pack(), array_namespace(weight.weight.codes)
        rows, count = weight.out_features, weight.in_features // _BLOCK
        blocks = xp.reshape(packed.data, (1, rows, count, _BLOCK // 2))
        return {"blocks": blocks, "scales": xp.reshape(packed.scale, (1, rows, count))}

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> QuantizedLinear:
        blocks = required(tensors, "blocks", "uint8")
        if blocks.ndim != 4 or blocks.shape[3] != _BLOCK // 2:
            raise FormatError(
                f"'blocks' has the shape (experts, outputs, blocks, {_BLOCK // 2}), found {tuple(blocks.shape)}"
            )
        experts, outputs, count, _ = (int(size) for size in blocks.shape)
        scales = of_shape(required(tensors, "scales", "uint8"), (experts, outputs, count), "scales")
        xp = array_namespace(blocks)
        data = xp.reshape(blocks, (experts * outputs, count * _BLOCK // 2))
        bias = tensors.get("bias")
        bias = None if bias is None else xp.reshape(bias, (-1,))
        return QuantizedLinear(block_array(data, xp.reshape(scales, (experts * outputs, count)), _SCHEME), bias=bias)

    def config(self, specs: Mapping[str, Any], ignore: Iterable[str] = (), complete: bool = True) -> dict[str, Any]:
        """The block; what is no expert is in float."""
        return {"quant_method": self.name, "modules_to_not_convert": sorted(ignore)}

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says mxfp4."""
        return config.get("quant_method") == self.name


FORMATS.add(MXFP4Experts.name, MXFP4Experts())
