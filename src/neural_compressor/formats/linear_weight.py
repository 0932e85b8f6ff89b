"""One quantized linear layer, whatever checkpoint format it comes from or goes to."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import device

from neural_compressor.dtypes import IntType
from neural_compressor.errors import FormatError
from neural_compressor.schemes import PER_CHANNEL, PerChannel, PerGroup, QuantizedArray, TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32
from neural_compressor.schemes.grid import code_dtype


@dataclass(frozen=True)
class LinearSpec:
    """How a linear layer is quantized: what the configuration of a checkpoint says of it.

    ``group_size`` is -1 where a whole row shares one scale. ``act_order`` says that columns are assigned to groups one
    by one instead of in runs.
    """

    bits: int
    group_size: int
    symmetric: bool
    act_order: bool = False


@dataclass(frozen=True, eq=False)
class LinearWeight:
    """The weight of a linear layer as integers: ``weight[o, i] = (codes[o, i] - zero_point[o, g]) * scale[o, g]``.

    ``g`` is ``i // group_size``, or ``g_idx[i]`` where that is given. Codes are unsigned, ``0 .. 2**bits - 1``, of shape
    (out, in); ``scale`` and ``zero_point`` have the shape (out, groups). ``zero_point`` is None for a symmetric weight:
    ``2**(bits - 1)`` throughout. A ``group_size`` of -1 makes one group of the whole row.

    >>> import numpy as np
    >>> weight = LinearWeight(np.uint8([[0, 8, 15, 9]]), np.float32([[0.5, 2.0]]), None, bits=4, group_size=2)
    >>> weight.dequantize().tolist()
    [[-4.0, 0.0, 14.0, 2.0]]
    """

    codes: Array
    scale: Array
    zero_point: Array | None
    bits: int
    group_size: int
    g_idx: Array | None = None
    bias: Array | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise FormatError(f"a linear weight has codes of 1 to 8 bits, not of {self.bits}")
        if self.group_size != -1 and self.group_size < 1:
            raise FormatError(f"a group has at least one column, or all of them (-1); not {self.group_size}")
        if len(self.codes.shape) != 2 or 0 in self.codes.shape:
            raise FormatError(f"a linear weight has the shape (out, in), not {tuple(self.codes.shape)}")
        xp = array_namespace(self.codes)
        top = int(xp.max(self.codes))
        if self.codes.dtype != xp.uint8 or top >> self.bits:
            raise FormatError(
                f"codes of {self.bits} bits are uint8 numbers up to {(1 << self.bits) - 1}, "
                f"found {self.codes.dtype} up to {top}"
            )
        for name, shape in (
            ("scale", (self.out_features, self.groups)),
            ("zero_point", (self.out_features, self.groups)),
            ("g_idx", (self.in_features,)),
            ("bias", (self.out_features,)),
        ):
            array = getattr(self, name)
            if array is not None and tuple(array.shape) != shape:
                raise FormatError(
                    f"a weight of shape {tuple(self.codes.shape)} in groups of {self.group_size} has a {name} of shape "
                    f"{shape}, not {tuple(array.shape)}"
                )

    @property
    def out_features(self) -> int:
        """Rows of the weight."""
        return int(self.codes.shape[0])

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        return int(self.codes.shape[1])

    @property
    def groups(self) -> int:
        """How many scales a row has."""
        return 1 if self.group_size == -1 else -(-self.in_features // self.group_size)

    @property
    def symmetric(self) -> bool:
        """Whether the zero point is the middle code throughout."""
        return self.zero_point is None

    @property
    def spec(self) -> LinearSpec:
        """What a configuration has to say of the layer."""
        return LinearSpec(self.bits, self.group_size, self.symmetric, self.g_idx is not None)

    @property
    def zero_points(self) -> Array:
        """Zero points of the shape (out, groups), written out for a symmetric weight too; int32."""
        xp = array_namespace(self.codes)
        if self.zero_point is not None:
            return xp.astype(self.zero_point, xp.int32, copy=False)
        return xp.full(tuple(self.scale.shape), 1 << (self.bits - 1), dtype=xp.int32, device=device(self.codes))

    @property
    def column_groups(self) -> Array:
        """The group of each column; int32."""
        return run_groups(self.codes, self.group_size) if self.g_idx is None else self.g_idx

    @property
    def order(self) -> Array | None:
        """The columns group after group, where they are not so already: a kernel wants inputs in this order."""
        if self.g_idx is None:
            return None
        return array_namespace(self.g_idx).argsort(self.g_idx, stable=True)

    def dequantize(self) -> Array:
        """The values: float32, of shape (out, in), columns in the order of the layer's inputs."""
        xp = array_namespace(self.codes)
        groups = self.column_groups
        values = xp.astype(self.codes, xp.float32)
        if self.zero_point is None:
            values -= 1 << (self.bits - 1)
        else:
            values -= xp.take(xp.astype(self.zero_point, xp.float32), groups, axis=1)
        values *= xp.take(as_float32(self.scale), groups, axis=1)
        return values

    @classmethod
    def from_quantized(
        cls, array: QuantizedArray, order: Array | None = None, bias: Array | None = None
    ) -> LinearWeight:
        """The linear weight of a matrix quantized to integers, per group or per output channel.

        ``order`` says that the columns of ``array`` were rearranged before they were cut into groups: its column ``i`` is
        column ``order[i]`` of the layer.

        >>> import numpy as np
        >>> from neural_compressor.dtypes import dtype
        >>> from neural_compressor.schemes import quantize
        >>> q = quantize(np.float32([[0.7, -0.3, 5.0, 7.0]]), TensorScheme(dtype("int4"), True, PerGroup(2)))
        >>> LinearWeight.from_quantized(q).codes.tolist()
        [[15, 5, 13, 15]]
        """
        kind, part, scale = array.scheme.dtype, array.scheme.granularity, array.qparams.scale
        per_row = isinstance(part, PerChannel) and part.axis in (0, -2)
        if not kind.is_integer or kind.bits > 8 or len(array.shape) != 2 or scale is None:
            raise FormatError(
                f"a linear weight is a matrix of integers of up to 8 bits; this is {kind.name} of shape {array.shape}"
            )
        if not per_row and not isinstance(part, PerGroup):
            raise FormatError(f"a linear weight has scales per group or per output channel, not {part.name}")
        xp = array_namespace(array.codes)
        shift = 1 << (kind.bits - 1)
        codes, scale, zero_point = array.codes, as_float32(scale), array.zero_point
        if kind.signed:
            codes = xp.astype(xp.astype(codes, xp.int16) + shift, xp.uint8)
            zero_point = None if zero_point is None else zero_point + shift
        if per_row:
            scale, zero_point = scale[:, None], None if zero_point is None else zero_point[:, None]
        # Unsigned types have a zero point even where they are symmetric; formats know it from the bits alone.
        if array.scheme.symmetric and zero_point is not None and bool(xp.all(zero_point == shift)):
            zero_point = None
        size = part.size if isinstance(part, PerGroup) else -1
        if order is None:
            return cls(codes, scale, zero_point, kind.bits, size, None, bias)
        back = xp.argsort(order, stable=True)
        g_idx = xp.take(run_groups(codes, size), back, axis=0)
        return cls(xp.take(codes, back, axis=1), scale, zero_point, kind.bits, size, g_idx, bias)

    def to_quantized(self) -> QuantizedArray:
        """The same weight for the arithmetic of schemes; its columns stand in :attr:`order` where that is not None."""
        xp = array_namespace(self.codes)
        codes, order = self.codes, self.order
        if order is not None:
            if not bool(xp.all(xp.take(self.g_idx, order, axis=0) == run_groups(codes, self.group_size))):
                raise FormatError(
                    f"g_idx does not make groups of {self.group_size} columns each; dequantize the weight"
                )
            codes = xp.take(codes, order, axis=1)
        kind = IntType(self.bits, signed=self.symmetric)
        part = PER_CHANNEL if self.group_size == -1 else PerGroup(self.group_size)
        if self.symmetric:
            codes = xp.astype(codes, xp.int16) - (1 << (self.bits - 1))
        scale, zero_point = as_float32(self.scale), None if self.symmetric else self.zero_points
        if self.group_size == -1:
            scale, zero_point = scale[:, 0], None if zero_point is None else zero_point[:, 0]
        return QuantizedArray(
            xp.astype(codes, code_dtype(xp, kind), copy=False),
            scale,
            zero_point,
            TensorScheme(kind, self.symmetric, part),
            tuple(int(n) for n in self.codes.shape),
        )


def run_groups(codes: Array, group_size: int) -> Array:
    """The group of each column where groups are runs of ``group_size`` columns; int32.

    >>> import numpy as np
    >>> run_groups(np.zeros((1, 5)), 2).tolist()
    [0, 0, 1, 1, 2]
    """
    xp = array_namespace(codes)
    columns = xp.arange(codes.shape[1], dtype=xp.int32, device=device(codes))
    return columns // (codes.shape[1] if group_size == -1 else group_size)
