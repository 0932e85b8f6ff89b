"""A weight laid out input by input, quantized one input at a time for all outputs at once."""

from __future__ import annotations

from dataclasses import dataclass

from array_api_compat import device

from neural_compressor.algorithms.column_order import ColumnOrder
from neural_compressor.dtypes import IntType
from neural_compressor.schemes import PerTensor, QParams, QuantizedArray, TensorScheme
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.arrays import Array, array_namespace
from neural_compressor.schemes.grid import code_dtype, decode, encode
from neural_compressor.schemes.mapping import element_type
from neural_compressor.schemes.ranges import scale_granularity, scale_shape


@dataclass
class Columns:
    """Codes (inputs, outputs) under way, at the places of ``order``, with scales (groups, outputs).

    Rows hold inputs because each is worked on as a whole: a contiguous run in memory.
    """

    codes: Array
    scale: Array
    zero_point: Array | None
    order: ColumnOrder
    scheme: TensorScheme

    @classmethod
    def empty(cls, weight: Array, scheme: TensorScheme, order: ColumnOrder) -> Columns:
        """Nothing quantized yet of ``weight`` (outputs, inputs), and no scales chosen."""
        xp = array_namespace(weight)
        outputs, inputs = weight.shape
        groups, where = int(order.group.max()) + 1, device(weight)
        codes = xp.zeros((inputs, outputs), dtype=code_dtype(xp, element_type(scheme)), device=where)
        scale = xp.ones((groups, outputs), dtype=xp.float32, device=where)
        has_zero = isinstance(scheme.dtype, IntType) and not (scheme.symmetric and scheme.dtype.signed)
        return cls(codes, scale, xp.zeros_like(scale) if has_zero else None, order, scheme)

    def set_group(self, group: int, qparams: QParams) -> None:
        """Take over the scales chosen for one group, one an output."""
        self.scale[group, :] = array_namespace(self.scale).reshape(qparams.scale, (-1,))
        if self.zero_point is not None:
            xp = array_namespace(self.scale)
            self.zero_point[group, :] = xp.astype(xp.reshape(qparams.zero_point, (-1,)), xp.float32)

    def set_all(self, qparams: QParams) -> None:
        """Take over scales chosen beforehand, in the shape the granularity says."""
        xp = array_namespace(self.scale)
        self.scale[...] = _by_group(qparams.scale, self.scale)
        if qparams.tensor_scale is not None:
            self.scale *= qparams.tensor_scale
        if self.zero_point is not None:
            self.zero_point[...] = xp.astype(_by_group(qparams.zero_point, self.scale), xp.float32)

    def quantize(self, place: int, values: Array) -> Array:
        """Keep the codes nearest to ``values`` (one an output) and give back what they stand for."""
        xp = array_namespace(values)
        group = int(self.order.group[place])
        scale, steps = self.scale[group], values / self.scale[group]
        if not isinstance(self.scheme.dtype, IntType):
            kind = element_type(self.scheme)
            codes = encode(steps, kind)
            self.codes[place, :] = codes
            return decode(codes, kind) * scale
        zero_point = None if self.zero_point is None else self.zero_point[group]
        rounded = xp.round(steps)
        codes = xp.clip(rounded if zero_point is None else rounded + zero_point, *integer_limits(self.scheme))
        self.codes[place, :] = xp.astype(codes, self.codes.dtype)
        return (codes if zero_point is None else codes - zero_point) * scale

    def array(self, beforehand: QParams | None) -> QuantizedArray:
        """The quantized weight (outputs, inputs): at its places where groups have moved, else in its own order."""
        xp = array_namespace(self.codes)
        shape = (self.codes.shape[1], self.codes.shape[0])
        places = xp.arange(shape[1], device=device(self.codes))
        if not self.order.moved:
            places = xp.asarray(self.order.inverse, device=device(self.codes))
        codes = xp.take(self.codes.T, places, axis=1)
        if beforehand is not None:
            qparams = beforehand
        else:
            lead = scale_shape(shape, scale_granularity(self.scheme))
            zero_point = None if self.zero_point is None else xp.astype(self.zero_point, xp.int32)
            qparams = QParams(
                _by_output(self.scale, lead), None if zero_point is None else _by_output(zero_point, lead)
            )
        return QuantizedArray(codes, qparams.scale, qparams.zero_point, self.scheme, shape, qparams.tensor_scale)


def chosen_beforehand(scheme: TensorScheme) -> bool:
    """Whether scales cannot be chosen group by group, because the format ties them all together."""
    return isinstance(scale_granularity(scheme), PerTensor) or bool(getattr(scheme.dtype, "tensor_scale", False))


def _by_group(parameter: Array, like_scale: Array) -> Array:
    xp = array_namespace(parameter)
    grouped = parameter.T if parameter.ndim == 2 else parameter
    return xp.broadcast_to(grouped, like_scale.shape)


def _by_output(parameter: Array, shape: tuple[int, ...]) -> Array:
    """(groups, outputs) as the granularity wants it, in memory of its own."""
    xp = array_namespace(parameter)
    if len(shape) == 1:
        return xp.reshape(parameter, shape)
    return xp.take(parameter.T, xp.arange(parameter.shape[0], device=device(parameter)), axis=1)
