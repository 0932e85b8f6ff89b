"""Quantized tensors: codes with their scales, and the packed form a checkpoint stores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from neural_compressor.errors import FormatError, QuantizationError
from neural_compressor.schemes.affine import QParams, from_steps, zero_points
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.grid import code_dtype, decode, encode
from neural_compressor.schemes.packing import pack_bits, packed_bytes, unpack_bits
from neural_compressor.schemes.ranges import scale_granularity, scale_shape, to_parts
from neural_compressor.schemes.scheme import TensorScheme


@dataclass(frozen=True)
class QuantizedArray:
    """Codes in the tensor's shape, with the scales that give them meaning.

    The code of an integer type is the integer, of a float type its bit pattern, of others the position in their values.
    ``scale`` is float32, or quantized itself where ``scheme.scales`` says how: :attr:`qparams` has the numbers. It is
    None for fp32, fp16 and bf16, and fp32 has its values for codes.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import quantize
    >>> q = quantize(np.float32([-1.0, 0.25, 0.7]), TensorScheme(dtype("int4")))
    >>> q.codes.tolist(), q.pack().data.tolist()
    ([-7, 2, 5], [[41, 5]])
    """

    codes: Array
    scale: Array | QuantizedArray | None
    zero_point: Array | None
    scheme: TensorScheme
    shape: tuple[int, ...]
    tensor_scale: Array | None = None

    def __post_init__(self) -> None:
        require_stored_as("scales", self.scale, self.scheme.scales)

    @property
    def qparams(self) -> QParams:
        """Scale and zero point as one value, in numbers."""
        return QParams(parameter_values(self.scale, self.scheme, self.shape), self.zero_point, self.tensor_scale)

    def dequantize(self) -> Array:
        """The values the codes stand for: float32, in the original shape."""
        if self.scheme.dtype.is_float32:
            return self.codes
        qparams = self.qparams
        steps = to_parts(decode(self.codes, self.scheme.dtype.element_type), scale_granularity(self.scheme))
        zero_point = zero_points(self.scheme, qparams, self.shape)
        steps = steps if zero_point is None else steps - zero_point
        return from_steps(steps, self.scheme, qparams, self.shape)

    @property
    def nbytes_packed(self) -> int:
        """Bytes of the packed form, scales included."""
        stored = _stored(self.scheme, self.shape).values()
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in stored)

    def pack(self) -> PackedArray:
        """The form to store: ``bits / 8`` bytes a value, rows of the first axis packed one by one."""
        kind = self.scheme.dtype.element_type
        xp = array_namespace(self.codes)
        if self.scheme.dtype.is_float32:
            return PackedArray(self.codes, None, None, None, self.scheme, self.shape)
        data = pack_bits(xp.reshape(self.codes, _rows(self.shape)), kind.bits)
        scale, zero_point = self.scale, self.zero_point
        if isinstance(scale, QuantizedArray):
            scale = scale.pack()
        elif self.scheme.dtype.scale_type is not None:
            scale = encode(scale, self.scheme.dtype.scale_type)
        if zero_point is not None:
            zero_point = xp.astype(zero_point, code_dtype(xp, kind))
        return PackedArray(data, scale, zero_point, self.tensor_scale, self.scheme, self.shape)


@dataclass(frozen=True)
class PackedArray:
    """What a checkpoint stores of a quantized tensor.

    ``data`` is uint8 with one row for each slice along the first axis of ``shape`` (one row in all for a vector), so
    rows can be sliced; for fp32 it is the values. The scales of a block format are codes of its scale type, scales that
    are quantized are packed.
    """

    data: Array
    scale: Array | PackedArray | None
    zero_point: Array | None
    tensor_scale: Array | None
    scheme: TensorScheme
    shape: tuple[int, ...]

    def unpack(self) -> QuantizedArray:
        """The codes and scales this was packed from."""
        if self.scheme.dtype.is_float32:
            return QuantizedArray(self.data, None, None, self.scheme, self.shape)
        xp = array_namespace(self.data)
        kind = self.scheme.dtype.element_type
        codes = unpack_bits(self.data, kind.bits, _rows(self.shape)[1])
        if kind.is_integer and kind.signed:
            wide = xp.astype(codes, xp.int16 if kind.bits <= 8 else xp.int32)
            sign = 1 << (kind.bits - 1)
            codes = (wide ^ sign) - sign
        codes = xp.reshape(xp.astype(codes, code_dtype(xp, kind), copy=False), self.shape)
        scale, zero_point = self.scale, self.zero_point
        if isinstance(scale, PackedArray):
            scale = scale.unpack()
        elif self.scheme.dtype.scale_type is not None:
            scale = decode(scale, self.scheme.dtype.scale_type)
        if zero_point is not None:
            zero_point = xp.astype(zero_point, xp.int32)
        return QuantizedArray(codes, scale, zero_point, self.scheme, self.shape, self.tensor_scale)

    def arrays(self) -> dict[str, Array]:
        """The arrays to write, by name; what the scheme does not have is left out, and packed scales are several."""
        scale = {"": self.scale}
        if isinstance(self.scale, PackedArray):
            scale = {f".{name}": array for name, array in self.scale.arrays().items()}
        fields = {
            "data": self.data,
            **{f"scale{part}": array for part, array in scale.items()},
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
        scale = arrays.get("scale")
        if scheme.scales is not None:
            inner = {name.removeprefix("scale."): array for name, array in arrays.items() if name.startswith("scale.")}
            scale = cls.from_arrays(inner, scheme.scales, parameter_row(scheme, shape))
        return cls(arrays["data"], scale, arrays.get("zero_point"), arrays.get("tensor_scale"), scheme, shape)


def parameter_row(scheme: TensorScheme, shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape in which scales (and float zero points) are quantized: one long row, because a row of a weight has few.

    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import PerGroup
    >>> parameter_row(TensorScheme(dtype("int4"), granularity=PerGroup(32)), (8, 64))
    (1, 16)
    """
    return 1, math.prod(scale_shape(shape, scale_granularity(scheme)))


def parameter_values(parameter: Array | QuantizedArray, scheme: TensorScheme, shape: tuple[int, ...]) -> Array:
    """Scales or zero points of a tensor of ``shape`` as numbers, in the shape their granularity says."""
    if not isinstance(parameter, QuantizedArray):
        return parameter
    values = parameter.dequantize()
    return array_namespace(values).reshape(values, scale_shape(shape, scale_granularity(scheme)))


def require_stored_as(what: str, parameter: Array | QuantizedArray | None, scheme: TensorScheme | None) -> None:
    """Refuse scales or zero points that are not what the scheme of their tensor says of them."""
    found = parameter.scheme if isinstance(parameter, QuantizedArray) else None
    if found != scheme:
        told, given = (how.dtype.name if how else "float" for how in (scheme, found))
        raise QuantizationError(
            f"the scheme of a quantized array asks for {what} in {told}, and they are in {given}; quantize the tensor "
            "with float ones, then these with double_quant"
        )


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many rows are packed, and how many codes each has."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def _stored(scheme: TensorScheme, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each array that stores a tensor of ``shape``."""
    if scheme.dtype.is_float32:
        return {"data": (shape, "float32")}
    kind, (rows, count) = scheme.dtype, _rows(shape)
    arrays: dict[str, tuple[tuple[int, ...], str]] = {"data": ((rows, packed_bytes(count, kind.bits)), "uint8")}
    if scheme.is_float:
        return arrays
    scales = scale_shape(shape, scale_granularity(scheme))
    if scheme.scales is None:
        arrays["scale"] = (scales, "float32" if kind.scale_type is None else "uint8")
    else:
        inner = _stored(scheme.scales, parameter_row(scheme, shape))
        arrays |= {f"scale.{name}": stored for name, stored in inner.items()}
    if scheme.has_zero_point:
        arrays["zero_point"] = (scales, np.dtype(code_dtype(np, kind)).name)
    if kind.has_tensor_scale:
        arrays["tensor_scale"] = ((), "float32")
    return arrays


def _dtype_name(array: Array) -> str:
    """The dtype's name without that of its library: ``float32`` for ``torch.float32`` too."""
    return str(array.dtype).removeprefix("torch.")
