"""A quantized linear layer of any data type, with the way its inputs are quantized."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neural_compressor.errors import FormatError
from neural_compressor.schemes import OpScheme, PerGroup, QuantizedArray, TensorScheme
from neural_compressor.schemes.arrays import Array


@dataclass(frozen=True, eq=False)
class QuantizedLinear:
    """A linear layer whose weight is a :class:`QuantizedArray` of shape (out, in).

    Inputs stay in float where ``activation`` is None. They are quantized over a range known beforehand where
    ``input_scale`` is given, with ``input_zero_point`` for asymmetric integers, else over their own. Of NVFP4 it is the
    scale of the whole tensor, which multiplies those that blocks take from each input.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.schemes import quantize
    >>> eight = TensorScheme(dtype("fp8_e4m3"))
    >>> QuantizedLinear(quantize(np.ones((2, 4), np.float32), eight), eight).spec.mode
    'dynamic'
    """

    weight: QuantizedArray
    activation: TensorScheme | None = None
    input_scale: Array | None = None
    input_zero_point: Array | None = None
    bias: Array | None = None

    def __post_init__(self) -> None:
        shape = self.weight.shape
        if len(shape) != 2 or 0 in shape:
            raise FormatError(f"a linear weight has the shape (out, in), not {tuple(shape)}")
        if self.bias is not None and tuple(self.bias.shape) != (shape[0],):
            raise FormatError(
                f"a layer of {shape[0]} outputs has a bias of {shape[0]}, not of {tuple(self.bias.shape)}"
            )

    @property
    def out_features(self) -> int:
        """Rows of the weight."""
        return int(self.weight.shape[0])

    @property
    def in_features(self) -> int:
        """Columns of the weight."""
        return int(self.weight.shape[1])

    @property
    def mode(self) -> str:
        """When the range of inputs is known."""
        if self.activation is None:
            return "weight_only"
        return "dynamic" if self.input_scale is None else "static"

    @property
    def spec(self) -> OpScheme:
        """What a configuration has to say of the layer: how it computes, not how its scales were found."""
        weight, activation = (_plain(scheme) for scheme in (self.weight.scheme, self.activation))
        if activation is not None and isinstance(activation.granularity, PerGroup):
            assert self.activation is not None
            activation = replace(activation, scaling=self.activation.scaling)  # ``quant_method: fp8`` has a word for it
        return OpScheme(weight, activation, self.mode)

    def dequantize(self) -> Array:
        """The values of the weight: float32, of shape (out, in)."""
        return self.weight.dequantize()


def _plain(scheme: TensorScheme | None) -> TensorScheme | None:
    return (
        None if scheme is None else replace(scheme, algorithm="minmax", pair_safe=False, rounding="even", scaling=None)
    )
