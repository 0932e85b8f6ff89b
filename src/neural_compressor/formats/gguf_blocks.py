"""The blocks of GGUF files: 32 values of a row behind one float16 scale.

Q4_0: scale, 16 bytes with the first half of the values in the low nibbles; ``value = scale * (nibble - 8)``. Q4_1: scale,
float16 offset, nibbles; ``value = scale * nibble + offset``. Q8_0: scale, 32 signed bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from array_api_compat import device

from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat
from neural_compressor.formats.byte_views import reinterpreted
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight
from neural_compressor.formats.stored_tensors import finite_scale, half_scale, matrix, why_no_half_scale
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32

BLOCK = 32
#: Bytes of a block of 32 values.
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def block_type(spec: LinearSpec) -> str | None:
    """The block type that holds the very codes of a weight; None where none does.

    >>> block_type(LinearSpec(4, 128, symmetric=True)), block_type(LinearSpec(8, 32, symmetric=False))
    ('Q4_0', None)
    """
    if spec.symmetric:
        return "Q4_0" if spec.bits <= 4 else "Q8_0"
    if spec.bits <= 4:
        return "Q4_1"
    # Code less zero point needs one bit more than the code.
    return "Q8_0" if spec.bits <= 7 else None


class GGUF(CheckpointFormat[LinearWeight]):
    """Blocks of 32 values, as llama.cpp computes with: a layer is one ``weight`` of bytes, a row after the other."""

    name = "gguf"
    parts = ("weight",)
    key = "weight"

    def _why_not(self, weight: LinearWeight) -> str | None:
        """Why no block type holds the codes of ``weight``; None where one does."""
        if block_type(weight.spec) is None:
            return f"no block type of it holds asymmetric integers of {weight.bits} bits"
        if weight.g_idx is not None:
            return "it knows no activation order (g_idx)"
        if weight.in_features % BLOCK or (weight.group_size != -1 and weight.group_size % BLOCK):
            return (
                f"its blocks have {BLOCK} values, and {weight.in_features} inputs in groups of {weight.group_size} "
                "are not made of whole blocks"
            )
        return why_no_half_scale(weight.scale)

    def _store(self, weight: LinearWeight) -> dict[str, Array]:
        xp = array_namespace(weight.codes)
        kind = block_type(weight.spec)
        rows, blocks = weight.out_features, weight.in_features // BLOCK
        first_columns = xp.arange(0, weight.in_features, BLOCK, device=device(weight.codes))
        group = xp.take(weight.column_groups, first_columns, axis=0)
        scale = xp.take(half_scale(weight.scale), group, axis=1)
        zeros = xp.astype(xp.take(weight.zero_points, group, axis=1), xp.int16)
        codes = xp.reshape(xp.astype(weight.codes, xp.int16), (rows, blocks, BLOCK))
        if kind == "Q4_1":
            offset = half_scale(-xp.astype(zeros, xp.float32) * as_float32(scale))
            fields = [_octets(scale), _octets(offset), _nibbles(codes)]
        else:
            steps = codes - zeros[..., None]
            fields = [_octets(scale), _nibbles(steps + 8) if kind == "Q4_0" else _octets_of_int8(steps)]
        return {"weight": xp.reshape(xp.concat(fields, axis=-1), (rows, -1))}

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> LinearWeight:
        kind = (config.get("tensor_types") or {}).get(name)
        if kind not in BLOCK_BYTES:
            raise FormatError(f"blocks of the types {', '.join(BLOCK_BYTES)} are read, not {kind!r}")
        stored = matrix(tensors, "weight", "uint8")
        xp = array_namespace(stored)
        rows, count = int(stored.shape[0]), int(stored.shape[1])
        if count % BLOCK_BYTES[kind]:
            raise FormatError(f"rows are not made of whole {kind} blocks: {count} bytes")
        blocks = xp.reshape(stored, (rows, count // BLOCK_BYTES[kind], BLOCK_BYTES[kind]))
        scale = finite_scale(_float16(blocks[..., :2]), "weight")
        zeros, bits = None, 4
        if kind == "Q8_0":
            signed, bits = reinterpreted(blocks[..., 2:], xp.int8), 8
            codes = xp.astype(xp.astype(signed, xp.int16) + 128, xp.uint8)
        elif kind == "Q4_0":
            codes = _from_nibbles(blocks[..., 2:])
        else:
            codes = _from_nibbles(blocks[..., 4:])
            zeros = _zero_points(scale, finite_scale(_float16(blocks[..., 2:4]), "weight"))
        return LinearWeight(xp.reshape(codes, (rows, -1)), scale, zeros, bits, BLOCK, None, tensors.get("bias"))

    def config(
        self, specs: Mapping[str, LinearSpec], ignore: Iterable[str] = (), complete: bool = True
    ) -> dict[str, Any]:
        """The block type of each layer; a GGUF file says it beside each tensor."""
        return {"quant_method": "gguf", "tensor_types": {name: block_type(spec) for name, spec in specs.items()}}

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says GGUF."""
        return config.get("quant_method") == "gguf"


def _octets(x: Array) -> Array:
    """Each float16 number as two bytes on an axis of its own."""
    return reinterpreted(x[..., None], array_namespace(x).uint8)


def _octets_of_int8(x: Array) -> Array:
    xp = array_namespace(x)
    return reinterpreted(xp.astype(x, xp.int8), xp.uint8)


def _float16(octets: Array) -> Array:
    return reinterpreted(octets, array_namespace(octets).float16)[..., 0]


def _nibbles(codes: Array) -> Array:
    xp = array_namespace(codes)
    codes = xp.astype(codes, xp.uint8)
    return codes[..., : BLOCK // 2] | (codes[..., BLOCK // 2 :] << 4)


def _from_nibbles(octets: Array) -> Array:
    return array_namespace(octets).concat([octets & 15, octets >> 4], axis=-1)


def _zero_points(scale: Array, offset: Array) -> Array:
    xp = array_namespace(scale)
    exact = as_float32(scale)
    zeros = xp.round(-as_float32(offset) / xp.where(exact == 0, xp.ones_like(exact), exact))
    whole = half_scale(-zeros * exact) == offset
    if not bool(xp.all(whole & (zeros >= 0) & (zeros <= 15))):
        raise FormatError("Q4_1 blocks have offsets between steps; dequantize them instead")
    return xp.astype(zeros, xp.int32)


FORMATS.add(GGUF.name, GGUF())
