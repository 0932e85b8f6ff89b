"""Quantized tensors: codes with their scales, and the packed form a checkpoint stores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from neural_compressor.dtypes import BlockType, IntType
from neural_compressor.errors import FormatError
from neural_compressor.schemes.affine import QParams
from neural_compressor.schemes.arrays import Array
from neural_compressor.schemes.grid import code_dtype, decode, encode
from neural_compressor.schemes.mapping import element_type, from_steps, is_plain_float32, zero_points
from neural_compressor.schemes.packing import pack_bits, packed_bytes, unpack_bits
from neural_compressor.schemes.ranges import scale_granularity, scale_shape, to_parts
from neural_compressor.schemes.scheme import TensorScheme


@dataclass(frozen=True)
class QuantizedArray:
    """Codes in the tensor's shape, with the scales (float32) that give them meaning.

    The code of an integer type is the integer, of a float type its bit pattern, of a codebook the position in it.
    ``scale`` is None for fp32, fp16 and bf16, and fp32 has its values for codes.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import quantize
    >>> q = quantize(np.float32([-1.0, 0.25, 0.7]), TensorScheme(dtype("int4")))
    >>> q.codes.tolist(), q.pack().data.tolist()
    ([-7, 2, 5], [[41, 5]])
    """

    codes: Array
    scale: Array | None
    zero_point: Array | None
    scheme: TensorScheme
    shape: tuple[int, ...]
    tensor_scale: Array | None = None

    @property
    def qparams(self) -> QParams:
        """Scale and zero point as one value."""
        return QParams(self.scale, self.zero_point, self.tensor_scale)

    def dequantize(self) -> Array:
        """The values the codes stand for: float32, in the original shape."""
        if is_plain_float32(self.scheme):
            return self.codes
        steps = to_parts(decode(self.codes, element_type(self.scheme)), scale_granularity(self.scheme))
        zero_point = zero_points(self.scheme, self.qparams, self.shape)
        steps = steps if zero_point is None else steps - zero_point
        return from_steps(steps, self.scheme, self.qparams, self.shape)

    @property
    def nbytes_packed(self) -> int:
        """Bytes of the packed form, scales included."""
        stored = _stored(self.scheme, self.shape).values()
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in stored)

    def pack(self) -> PackedArray:
        """The form to store: ``bits / 8`` bytes a value, rows of the first axis packed one by one."""
        kind = element_type(self.scheme)
        xp = array_namespace(self.codes)
        if is_plain_float32(self.scheme):
            return PackedArray(self.codes, None, None, None, self.scheme, self.shape)
        data = pack_bits(xp.reshape(self.codes, _rows(self.shape)), kind.bits)
        scale, zero_point = self.scale, self.zero_point
        if isinstance(self.scheme.dtype, BlockType):
            scale = encode(scale, self.scheme.dtype.scale)
        if zero_point is not None:
            zero_point = xp.astype(zero_point, code_dtype(xp, kind))
        return PackedArray(data, scale, zero_point, self.tensor_scale, self.scheme, self.shape)


@dataclass(frozen=True)
class PackedArray:
    """What a checkpoint stores of a quantized tensor.

    ``data`` is uint8 with one row for each slice along the first axis of ``shape`` (one row in all for a vector), so
    rows can be sliced; for fp32 it is the values. The scales of a block format are codes of its scale type.
    """

    data: Array
    scale: Array | None
    zero_point: Array | None
    tensor_scale: Array | None
    scheme: TensorScheme
    shape: tuple[int, ...]

    def unpack(self) -> QuantizedArray:
        """The codes and scales this was packed from."""
        if is_plain_float32(self.scheme):
            return QuantizedArray(self.data, None, None, self.scheme, self.shape)
        xp = array_namespace(self.data)
        kind = element_type(self.scheme)
        codes = unpack_bits(self.data, kind.bits, _rows(self.shape)[1])
        if isinstance(kind, IntType) and kind.signed:
            wide = xp.astype(codes, xp.int16 if kind.bits <= 8 else xp.int32)
            sign = 1 << (kind.bits - 1)
            codes = (wide ^ sign) - sign
        codes = xp.reshape(xp.astype(codes, code_dtype(xp, kind), copy=False), self.shape)
        scale, zero_point = self.scale, self.zero_point
        if isinstance(self.scheme.dtype, BlockType):
            scale = decode(scale, self.scheme.dtype.scale)
        if zero_point is not None:
            zero_point = xp.astype(zero_point, xp.int32)
        return QuantizedArray(codes, scale, zero_point, self.scheme, self.shape, self.tensor_scale)

    def arrays(self) -> dict[str, Array]:
        """The arrays to write, by name; what the scheme does not have is left out."""
        fields = {
            "data": self.data,
            "scale": self.scale,
            "zero_point": self.zero_point,
            "tensor_scale": self.tensor_scale,
        }
        return {name: array for name, array in fields.items() if array is not None}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], scheme: TensorScheme, shape: tuple[int, ...]) -> PackedArray:
        """Read what :meth:`arrays` gave, and refuse arrays that cannot be a tensor of this scheme and shape."""
        shape = tuple(shape)
        wanted = _stored(scheme, shape)
        found = {name: (tuple(array.shape), _dtype_name(array)) for name, array in arrays.items()}
        if found != wanted:
            raise FormatError(
                f"a {scheme.dtype.name} tensor of shape {shape} is stored as arrays {wanted}, found {found}"
            )
        return cls(
            arrays["data"], arrays.get("scale"), arrays.get("zero_point"), arrays.get("tensor_scale"), scheme, shape
        )


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many rows are packed, and how many codes each has."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def _stored(scheme: TensorScheme, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each array that stores a tensor of ``shape``."""
    if is_plain_float32(scheme):
        return {"data": (shape, "float32")}
    kind, (rows, count) = scheme.dtype, _rows(shape)
    arrays: dict[str, tuple[tuple[int, ...], str]] = {"data": ((rows, packed_bytes(count, kind.bits)), "uint8")}
    if scheme.is_float:
        return arrays
    scales = scale_shape(shape, scale_granularity(scheme))
    arrays["scale"] = (scales, "uint8" if isinstance(kind, BlockType) else "float32")
    if isinstance(kind, IntType) and not (scheme.symmetric and kind.signed):
        arrays["zero_point"] = (scales, np.dtype(code_dtype(np, kind)).name)
    if isinstance(kind, BlockType) and kind.tensor_scale:
        arrays["tensor_scale"] = ((), "float32")
    return arrays


def _dtype_name(array: Array) -> str:
    """The dtype's name without that of its library: ``float32`` for ``torch.float32`` too."""
    return str(array.dtype).removeprefix("torch.")
