"""Quantized modules with one weight and a bias; the weight is a packed matrix with a row for each output channel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.onnx import is_in_onnx_export

from neural_compressor.algorithms import rtn
from neural_compressor.algorithms.hadamard import Rotation
from neural_compressor.errors import ConfigError, FormatError, QuantizationError
from neural_compressor.schemes import (
    PER_CHANNEL,
    OpScheme,
    PackedArray,
    PerChannel,
    QuantizedArray,
    TensorScheme,
    in_pairs,
)
from neural_compressor.torch.modules.activation import Range, calibrated_qparams
from neural_compressor.torch.modules.base import QuantModule, finite
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.modules.kernels.integer import takes_int8
from neural_compressor.torch.modules.kernels.quint8 import U8
from neural_compressor.torch.modules.packed_weight import (
    buffer_names,
    check_pairs,
    keep_array,
    packed_array,
    quantized_matrix,
)
from neural_compressor.torch.modules.portable import as_type, constant, dequantized, is_leaving

if TYPE_CHECKING:
    from typing_extensions import Self

FLOATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The types of torch by the names of data types."""


class WeightedModule(QuantModule):
    """Base of the modules that replace Linear, the convolutions and Embedding."""

    #: The axis of the float weight along which output channels lie.
    channel_axis = 0
    #: The buffer that holds by what the channels of the input are multiplied.
    multiplier_name = "input_multiplier"
    bias: Tensor | None
    input_order: Tensor | None

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__(module, scheme, relu)
        assert isinstance(module.weight, Tensor)
        self.weight_shape = tuple(module.weight.shape)
        self.weight_scheme = self._of_matrix(scheme.weight)
        self._rotation: Rotation | None = None
        self._turns = False

    def _of_matrix(self, scheme: TensorScheme | None) -> TensorScheme:
        """The scheme of the weight as a matrix, whose output channels are rows."""
        beside = self.scheme.activation  # a weight of 16 bits is for inputs that are quantized
        if scheme is None or (scheme.is_float and (scheme.dtype.is_float32 or beside is None or beside.is_float)):
            given = "none" if scheme is None else scheme.dtype.name
            raise QuantizationError(f"a quantized {self.op_type} needs a quantized weight type, got {given}")
        if not isinstance(scheme.granularity, PerChannel) or scheme.granularity.axis == 0:
            return scheme
        if scheme.granularity.axis != self.channel_axis:
            raise QuantizationError(
                f"the weight of {self.op_type} is quantized per output channel (axis {self.channel_axis}), "
                f"not along axis {scheme.granularity.axis}"
            )
        return replace(scheme, granularity=PER_CHANNEL)

    # Rows are output channels, so that groups and blocks run along what one output sums over.

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Output channels, and the weights of each."""
        return self.weight_shape[0], math.prod(self.weight_shape[1:])

    def to_matrix(self, weight: Tensor) -> Tensor:
        """A weight in the layout of the float module as a matrix."""
        return weight.reshape(self.matrix_shape)

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """What :meth:`to_matrix` undoes."""
        return matrix.reshape(self.weight_shape)

    def _keep_qparams(self, act_ranges: Sequence[Range]) -> None:
        super()._keep_qparams(act_ranges)
        scheme, found = self.scheme.activation, None
        if scheme is not None and self._is_calibrated and len(act_ranges) > len(self.inputs):
            found = calibrated_qparams(act_ranges[len(self.inputs)], scheme, "output")
        self._register_qparams("output", found)

    # -- the input --------------------------------------------------------------------------------------------------

    @property
    def input_channels(self) -> int:
        """How many channels the input has."""
        return self.weight_shape[1 - self.channel_axis]

    @property
    def input_axis(self) -> int:
        """Where the channels of the input lie, counted from the end."""
        return -1

    def _inputs_last(self, weight: Tensor) -> Tensor:
        """The weight with all input channels along its last axis."""
        return weight.movedim(1 - self.channel_axis, -1)

    def _from_inputs_last(self, weight: Tensor) -> Tensor:
        return weight.movedim(-1, 1 - self.channel_axis).contiguous()

    @property
    def input_change(self) -> InputChange:
        """What the op does to its input first; the buffers it is stored in are those of :meth:`_stored_inputs`."""
        return InputChange(*self.input_changes())

    def input_changes(self) -> tuple[Tensor | None, Rotation | None, Tensor | None]:
        """The parts of :attr:`input_change`."""
        return self._buffers.get(self.multiplier_name), self._rotation, self._buffers.get("input_order")

    def turned(self, x: Tensor) -> Tensor:
        """The input as the weight expects it."""
        if not self._turns:
            return x
        return self.input_change.on_input(x.dequantize() if x.is_quantized else x, self.input_axis)

    @property
    def input_qparams(self) -> U8 | None:
        return None if self._turns else super().input_qparams

    def _stored_inputs(self) -> tuple[str, ...]:
        return f"{self.multiplier_name}?", "input_order?", "input_rotation?"

    def _keep_input(self, change: InputChange | None) -> None:
        change, turn = change or InputChange(), None
        change.check(self.input_channels)
        if change.rotation is not None:
            seed = -1 if change.rotation.seed is None else change.rotation.seed
            packed = self._buffers.get("weight_packed")
            turn = torch.tensor([change.rotation.block_size, seed], device=None if packed is None else packed.device)
        scale = None if change.multiplier is None else finite(change.multiplier, "the scale of the inputs")
        self.register_buffer(self.multiplier_name, scale)
        self.register_buffer("input_order", None if change.order is None else change.order.to(torch.int32))
        self.register_buffer("input_rotation", turn)
        self._settle_input()

    def _settle_input(self) -> None:
        stored, self._rotation = self._buffers.get("input_rotation"), None
        if stored is not None and not stored.is_meta:
            block, seed = stored.tolist()
            try:
                self._rotation = Rotation(self.input_channels, block, None if seed < 0 else seed)
            except ConfigError as error:
                raise FormatError(f"the stored tensor 'input_rotation' is {[block, seed]}: {error}") from error
        self._turns = any(change is not None for change in self.input_changes())

    def _settle(self) -> None:
        self._settle_input()
        super()._settle()

    # -- the weight -------------------------------------------------------------------------------------------------

    def pairs(self) -> np.ndarray:
        """The columns of the matrix whose products a kernel without VNNI adds in 16 bits."""
        return in_pairs(self.matrix_shape[1])

    def _stored(self) -> tuple[str, ...]:
        weight = ("weight_packed",) if self.weight_scheme.is_float else buffer_names("weight")
        return *weight, "bias?", "output_scale?", "output_zero_point?", *self._stored_inputs()

    @classmethod
    def from_array(
        cls,
        module: nn.Module,
        scheme: OpScheme,
        array: QuantizedArray,
        act_ranges: Sequence[Range] = (),
        change: InputChange | None = None,
    ) -> Self:
        """Replace ``module`` by one with a weight that a method found for changed inputs.

        Of the module only shapes and the bias are read.
        """
        new = cls(module, scheme)
        if tuple(array.shape) != new.matrix_shape:
            raise QuantizationError(
                f"a weight of shape {tuple(array.shape)} is none of a {new.op_type} {new.matrix_shape}"
            )
        new._keep_input(change)
        new._keep_qparams(act_ranges)
        keep_array(new, "weight", array.pack())
        new._keep_bias(module)
        new._settle()
        return new.to(array.codes.device)

    def quantized_weight(self, weight: Tensor) -> QuantizedArray:
        """``weight``, in the layout of the float module for inputs as they come, rounded to nearest: a matrix of codes."""
        matrix = self.to_matrix(self.for_changed_inputs(finite(weight, "the weight")))
        # Beside float activations a scale may have either sign; kernels that multiply integers want it positive.
        alone = self.scheme.mode == "weight_only" and not self.weight_scheme.pair_safe
        return rtn(matrix, self.weight_scheme) if alone else quantized_matrix(matrix, self.weight_scheme, self.pairs())

    def for_changed_inputs(self, weight: Tensor) -> Tensor:
        """A weight for inputs as they come, in the layout of the float module, as the one for changed inputs."""
        change = self.input_change
        return self._from_inputs_last(change.on_weight(self._inputs_last(weight))) if change else weight

    def weight_error(self, weight: Tensor) -> Tensor:
        """How far the weight that is multiplied with is from the float ``weight``, in the layout of the float module."""
        return self._product_weight() - self.for_changed_inputs(weight.detach().float())

    def multiplied_input(self, x: Tensor) -> Tensor:
        """What of an input is multiplied with the weight: changed and rounded, in float."""
        return self._rounded(self.turned(x))

    def store_weight(self, array: QuantizedArray) -> None:
        """Have ``array``, which a method found, for the weight instead of the one rounded to nearest."""
        keep_array(self, "weight", array.pack())
        check_pairs(self._packed(), self.pairs())
        self._settle()

    def shift_bias(self, by: Tensor) -> None:
        """Add ``by``, a value an output channel, to the bias; it has one from now on."""
        shift = finite(by, "the shift of the bias")
        self.register_buffer("bias", shift.clone() if self.bias is None else self.bias + shift.to(self.bias))
        self._settle()

    def _quantize(self, module: nn.Module) -> None:
        assert isinstance(module.weight, Tensor)
        keep_array(self, "weight", self.quantized_weight(module.weight).pack())
        self._keep_bias(module)

    def _keep_bias(self, module: nn.Module) -> None:
        bias = getattr(module, "bias", None)
        self.register_buffer("bias", finite(bias, "the bias").clone() if isinstance(bias, Tensor) else None)

    def _restore(self, module: nn.Module, state: Mapping[str, Tensor]) -> None:
        super()._restore(module, state)
        self._check_weight()
        self._check_shape("bias", self.matrix_shape[:1])
        self._check_shape(self.multiplier_name, (self.input_channels,))
        self._check_shape("input_order", (self.input_channels,))
        self._check_shape("input_rotation", (2,))
        order = self._buffers.get("input_order")
        if order is not None and not torch.equal(order.long().sort().values, torch.arange(len(order)).to(order.device)):
            raise FormatError(f"the stored tensor 'input_order' is not an order of {self.input_channels} inputs")

    def _check_weight(self) -> None:
        check_pairs(self._packed(), self.pairs())

    def _packed(self) -> PackedArray:
        return packed_array(self, "weight", self.weight_scheme, self.matrix_shape)

    def weight_array(self) -> QuantizedArray:
        return self._packed().unpack()

    def dequantized_weight(self) -> Tensor:
        """The weight the op has in effect for inputs as they come: float32, in the layout of the float module."""
        weight = self._product_weight()
        if not self._turns:
            return weight
        return self._from_inputs_last(self.input_change.off_weight(self._inputs_last(weight)))

    def _product_weight(self) -> Tensor:
        """The weight that is multiplied with, in float32."""
        values: Tensor = self.weight_array().dequantize()
        return self.from_matrix(values)

    @property
    def weight(self) -> Tensor:
        """The dequantized weight, for model code that reads ``layer.weight``; built anew at each access."""
        return self.dequantized_weight()

    def _as_output(self, y: Tensor) -> Tensor:
        """``y`` rounded to the float type that the scheme has for outputs."""
        if self.scheme.output is None:
            return y
        return as_type(as_type(y, FLOATS[self.scheme.output.dtype.name]), y.dtype)

    def _parameters_as(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Weight and bias for a float op in ``dtype``."""
        if is_leaving() and takes_int8(self.weight_scheme):
            return self._leaving_weight(dtype)
        weight = self._product_weight().to(dtype)
        return constant(weight) if is_in_onnx_export() else weight, None if self.bias is None else self.bias.to(dtype)

    def _leaving_weight(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Weight and bias as codes and what makes floats of them."""
        codes, scale, zero = self._int8_weight()
        weight = as_type(dequantized(codes, scale, zero, self.channel_axis), dtype)
        if self.bias is None:
            return weight, None
        if not is_in_onnx_export() or "input" not in self._u8_inputs:
            return weight, as_type(self.bias, dtype)
        # Integer kernels of ONNX take the bias in the units of their sums.
        unit = scale.reshape(-1).double().expand(len(self.bias)) * self._u8("input")[0]
        sums = (self.bias.double() / unit).round().clamp(-(2**31), 2**31 - 1)
        return weight, as_type(dequantized(sums.to(torch.int32), unit.float(), None), dtype)

    def _int8_weight(self) -> tuple[Tensor, Tensor, Tensor | None]:
        codes, scale, zero = signed_codes(self.weight_array())
        return self.from_matrix(codes), scale, zero


def signed_codes(array: QuantizedArray) -> tuple[Tensor, Tensor, Tensor | None]:
    """8-bit codes as int8, scale, zero-point; unsigned codes and their zero-points are shifted by 128."""
    codes, scale, zero = array.codes, array.scale, array.zero_point
    assert isinstance(scale, Tensor)
    if array.scheme.dtype.signed:
        return codes, scale, zero
    assert isinstance(zero, Tensor)
    return (codes.to(torch.int16) - 128).to(torch.int8), scale, zero - 128
