"""The weight of a weight-only layer as it is held: packed codes with their scales, dequantized a few rows at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_compressor.dtypes import DType
from neural_compressor.errors import FormatError
from neural_compressor.schemes import PackedArray, PerGroup, PerTensor, TensorScheme
from neural_compressor.schemes.arrays import as_bits
from neural_compressor.schemes.grid import code_dtype, decode
from neural_compressor.schemes.packing import packed_bytes
from neural_compressor.schemes.ranges import scale_granularity, scale_shape


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """A matrix (outputs, inputs): ``value = (code - zero) * scale``, with scales in the shape their granularity says.

    ``data`` holds the codes of each row side by side. Zeros are ``zero_point`` (small integers) or ``float_zero``, or
    there are none. The scales of a block format are codes of its scale type; others are floats of any width.
    """

    data: Tensor
    scale: Tensor
    zero_point: Tensor | None
    tensor_scale: Tensor | None
    float_zero: Tensor | None
    scheme: TensorScheme
    shape: tuple[int, int]

    @classmethod
    def of(cls, packed: PackedArray, float_zero: Tensor | PackedArray | None = None) -> StoredWeight:
        """The weight ``packed`` on its memory; scales and zeros that are packed themselves are written out."""
        rows, columns = packed.shape
        scales = scale_shape(packed.shape, scale_granularity(packed.scheme))

        def written_out(parameter: Any) -> Any:
            return cls.of(parameter).dequantize().reshape(scales) if isinstance(parameter, PackedArray) else parameter

        scale, zero = written_out(packed.scale), written_out(float_zero)
        return cls(packed.data, scale, packed.zero_point, packed.tensor_scale, zero, packed.scheme, (rows, columns))

    def check(self) -> None:
        """Refuse tensors that cannot be a matrix of this scheme and shape."""
        kind, (rows, columns) = self.scheme.dtype, self.shape
        scales = scale_shape(self.shape, scale_granularity(self.scheme))
        zeros = self.scheme.has_zero_point
        floats = (torch.float32, torch.float16, torch.bfloat16)
        codes = (code_dtype(torch, self.scheme.dtype.element_type),)
        has_float_zero = self.float_zero is not None
        _check("packed", self.data, (rows, packed_bytes(columns, kind.bits)), (torch.uint8,))
        _check("scale", self.scale, scales, (torch.uint8,) if kind.scale_type else floats)
        _check("zero_point", self.zero_point, scales, codes, wanted=zeros and not has_float_zero)
        _check("zero", self.float_zero, scales, floats, wanted=zeros and has_float_zero)
        _check("tensor_scale", self.tensor_scale, (), floats, wanted=kind.has_tensor_scale)

    @property
    def group_size(self) -> int:
        """How many inputs share a scale."""
        part = scale_granularity(self.scheme)
        return min(part.size, self.shape[1]) if isinstance(part, PerGroup) else self.shape[1]

    @property
    def groups(self) -> int:
        """How many scales a row has."""
        return -(-self.shape[1] // self.group_size)

    def steps(self) -> Tensor:
        """The scales as float32 of shape (rows, groups), or (1, 1) for one scale in all."""
        stored_as = self.scheme.dtype.scale_type
        scale = self.scale.float() if stored_as is None else decode(self.scale, stored_as)
        scale = scale if self.tensor_scale is None else scale * self.tensor_scale
        return self._by_group(scale)

    def zeros(self) -> Tensor | None:
        """What is subtracted from the codes, as float32 in the shape of :meth:`steps`."""
        zero = self.zero_point if self.float_zero is None else self.float_zero
        return None if zero is None else self._by_group(zero.float())

    def _by_group(self, parameter: Tensor) -> Tensor:
        if isinstance(scale_granularity(self.scheme), PerTensor):
            return parameter.reshape(1, 1)
        return parameter.reshape(parameter.shape[0], -1)

    def rows(self, part: slice) -> StoredWeight:
        """Some outputs of the matrix, on the same memory."""
        data = self.data[part]
        new = replace(self, data=data, shape=(data.shape[0], self.shape[1]))
        if isinstance(scale_granularity(self.scheme), PerTensor):
            return new
        zero_point = None if self.zero_point is None else self.zero_point[part]
        float_zero = None if self.float_zero is None else self.float_zero[part]
        return replace(new, scale=self.scale[part], zero_point=zero_point, float_zero=float_zero)

    def parts(self, values: int) -> Iterator[tuple[slice, StoredWeight]]:
        """The matrix in runs of rows that hold about ``values`` values each, in multiples of 64 rows."""
        step = max(values // self.shape[1] // 64, 1) * 64
        for start in range(0, self.shape[0], step):
            rows = slice(start, min(start + step, self.shape[0]))
            yield rows, self.rows(rows)

    def numbers(self) -> Tensor:
        """What the codes say before zero and scale: float32 of the matrix's shape."""
        kind = self.scheme.dtype.element_type
        if kind.is_integer and kind.bits == 8:
            codes: Tensor = as_bits(self.data, torch.int8 if kind.signed else torch.uint8)
            return codes.float()
        if kind.bits in (1, 2, 4, 8):
            return _looked_up(self.data, _byte_table(kind, self.data.device))[:, : self.shape[1]]
        packed = PackedArray(self.data, None, None, None, TensorScheme(kind), self.shape)
        values: Tensor = decode(packed.unpack().codes, kind)
        return values

    def dequantize(self) -> Tensor:
        """The values: float32, of the matrix's shape."""
        numbers, steps, zeros = self.numbers(), self.steps(), self.zeros()
        if steps.shape[1] > 1:
            numbers, steps, zeros = self._against_groups(numbers, steps, zeros)
        numbers = numbers if zeros is None else numbers.sub_(zeros)
        return numbers.mul_(steps).reshape(self.shape)

    def _against_groups(
        self, numbers: Tensor, steps: Tensor, zeros: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        size, columns = self.group_size, self.shape[1]
        if columns % size == 0:
            return (
                numbers.reshape(len(numbers), -1, size),
                steps[..., None],
                None if zeros is None else zeros[..., None],
            )

        def spread(parameter: Tensor) -> Tensor:
            return parameter.repeat_interleave(size, 1)[:, :columns]

        return numbers, spread(steps), None if zeros is None else spread(zeros)


def stacked(weights: Sequence[StoredWeight]) -> StoredWeight | None:
    """Matrices of one scheme below each other; None where they differ in more than their outputs."""
    if not weights:
        return None
    first = weights[0]
    if isinstance(scale_granularity(first.scheme), PerTensor) or first.tensor_scale is not None:
        return None

    def kind(weight: StoredWeight) -> Any:
        tensors = (weight.data, weight.scale, weight.zero_point, weight.float_zero, weight.tensor_scale)
        return weight.scheme, weight.shape[1], [None if t is None else (t.dtype, t.device) for t in tensors]

    if any(kind(weight) != kind(first) for weight in weights):
        return None

    def joined(name: str) -> Tensor | None:
        return None if getattr(first, name) is None else torch.cat([getattr(weight, name) for weight in weights])

    data, scale = joined("data"), joined("scale")
    assert data is not None
    assert scale is not None
    shape = (sum(weight.shape[0] for weight in weights), first.shape[1])
    return StoredWeight(data, scale, joined("zero_point"), None, joined("float_zero"), first.scheme, shape)


def _check(
    name: str, tensor: Tensor | None, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], wanted: bool = True
) -> None:
    if tensor is None and not wanted:
        return
    found = "none" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
    if not wanted or tensor is None or tuple(tensor.shape) != shape or tensor.dtype not in dtypes:
        right = f"{shape} of {' or '.join(map(str, dtypes))}" if wanted else "none"
        raise FormatError(f"the stored tensor 'weight_{name}' is {found}, and {right} is needed")


def kept(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``make`` with its tensors kept, but for those made while a graph is, which have no values and are of that alone."""
    cached = functools.lru_cache(maxsize=64)(make)

    @functools.wraps(make)
    def found(*args: Any) -> Tensor:
        return make(*args) if torch.compiler.is_compiling() else cached(*args)

    return found


@kept
def _byte_table(kind: DType, device: torch.device) -> Tensor:
    """The float32 values of the codes in a byte, for each of 256 bytes."""
    every = torch.arange(256, dtype=torch.uint8, device=device)[:, None]
    packed = PackedArray(every, None, None, None, TensorScheme(kind), (256, 8 // kind.bits))
    values: Tensor = decode(packed.unpack().codes, kind)
    return values.contiguous()


_AS_ONE_NUMBER = {1: torch.float32, 2: torch.int64, 4: torch.complex128}


def _looked_up(data: Tensor, table: Tensor) -> Tensor:
    """The values of each row of bytes."""
    index, a_byte = data.reshape(-1).int(), table.shape[1]
    if a_byte not in _AS_ONE_NUMBER:
        return F.embedding(index, table).view(data.shape[0], -1)
    # Moving the values of a byte as one number is several times faster than as a row of a table.
    return table.view(_AS_ONE_NUMBER[a_byte]).flatten().index_select(0, index).view(torch.float32).view(len(data), -1)
