"""Linear layers with quantized weights and float activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.layer_result import LayerResult
from neural_compressor.errors import FormatError, QuantizationError
from neural_compressor.formats import LinearWeight
from neural_compressor.schemes import Method, OpScheme, PackedArray, QuantizedArray, TensorScheme
from neural_compressor.schemes.quantized_array import parameter_row
from neural_compressor.torch.modules.base import finite
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.modules.kernels.dequantized_product import dequantized_product, product_dtype
from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight
from neural_compressor.torch.modules.kernels.table import SIMULATED
from neural_compressor.torch.modules.kernels.weight_only import DEQUANTIZE, Choice, WeightOnlyKernel, choose
from neural_compressor.torch.modules.layer_operator import call_layer, is_compiled
from neural_compressor.torch.modules.packed_weight import (
    buffer_names,
    keep_array,
    keep_parameter,
    parameter_names,
    stored_parameter,
)
from neural_compressor.torch.modules.portable import makes_graph
from neural_compressor.torch.modules.shared_input import SharedInput
from neural_compressor.torch.modules.weighted import WeightedModule

if TYPE_CHECKING:
    from typing_extensions import Self


def is_conv1d(module: nn.Module) -> bool:
    """Whether ``module`` is a linear layer that holds its weight as (in, out), as transformers' ``Conv1D`` does."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and isinstance(weight, Tensor)


def matrix_of(layer: nn.Module) -> Tensor:
    """The weight of a linear layer as (outputs, inputs)."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.detach().T if is_conv1d(layer) else weight.detach()


class WeightOnlyLinear(WeightedModule):
    """Replaces ``nn.Linear`` and transformers' ``Conv1D``: packed weights of any data type, inputs and outputs in float.

    The input is multiplied by ``input_scale``, rotated and put in ``input_order`` as far as the layer has these. Then a
    low-bit kernel multiplies few rows, and a product with the dequantized weight many: :attr:`kernel` tells. Both work
    with about three decimal digits (bfloat16) whatever the type of the input; ``layer.exact = True`` makes the layer
    dequantize and multiply in float32.

    >>> layer = nn.Linear(64, 32)
    >>> scheme = OpScheme.from_dict({"weight": {"dtype": "nf4", "group_size": 32}})
    >>> WeightOnlyLinear.from_float(layer, scheme)
    WeightOnlyLinear(in_features=64, out_features=32, nf4, mode=weight_only, kernel='simulated')
    """

    replaces = nn.Linear
    inputs = ()

    weight_packed: Tensor
    input_scale: Tensor | None
    multiplier_name = "input_scale"

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        self.transposed = is_conv1d(module)
        self.channel_axis = 1 if self.transposed else 0
        super().__init__(module, scheme, relu)
        if scheme.mode != "weight_only":
            raise QuantizationError(f"a WeightOnlyLinear computes in mode weight_only, not {scheme.mode}")
        self.op_type = type(module).__name__
        self.out_features, self.in_features = self.matrix_shape
        self._exact = False
        self._low_bit: WeightOnlyKernel | None = None
        self._most_rows = 0
        self.shared_input = SharedInput()

    # -- making one -------------------------------------------------------------------------------------------------

    @classmethod
    def from_layer(
        cls,
        module: nn.Module,
        result: LayerResult,
        bias: Tensor | None = None,
        method: Method | None = None,
        output: TensorScheme | None = None,
    ) -> Self:
        """The layer that replaces ``module`` with the weight that ``method`` found; ``bias`` is the module's by default.

        Of ``module`` the shapes are read, and the bias where none is given, so that its weight may be on the meta
        device. The layer is where the arrays of ``result`` are.
        """
        new = cls(module, OpScheme(weight=result.array.scheme, mode="weight_only", method=method, output=output))
        if tuple(result.array.shape) != new.matrix_shape:
            raise QuantizationError(
                f"a quantized weight of shape {tuple(result.array.shape)} does not fit a {new.op_type} of "
                f"{new.in_features} inputs and {new.out_features} outputs"
            )
        new._keep_array(result.array)
        new._keep_input(change_of(result, new._device))
        own = getattr(module, "bias", None) if bias is None else bias
        if own is not None and own.is_meta:
            raise QuantizationError(f"the bias of this {new.op_type} is on the meta device; pass its values as bias")
        new.register_buffer("bias", None if own is None else finite(own, "the bias").to(new._device, copy=True))
        new._settle()
        return new

    def _keep_array(self, array: QuantizedArray | FloatZeroArray) -> None:
        zero = None
        if isinstance(array, FloatZeroArray):
            zero, array = array.zero, QuantizedArray(array.codes, array.scale, None, array.scheme, array.shape)
        keep_array(self, "weight", array.pack())
        keep_parameter(self, "weight_zero", zero.pack() if isinstance(zero, QuantizedArray) else zero)
        self.stored_weight().check()

    def _quantize(self, module: nn.Module) -> None:
        super()._quantize(module)
        self.register_buffer("weight_zero", None)

    def _stored(self) -> tuple[str, ...]:
        scheme = self.weight_scheme
        weight = *buffer_names("weight", scheme.scales), *parameter_names("weight_zero?", scheme.zeros)
        return *weight, "bias?", *self._stored_inputs()

    def _check_weight(self) -> None:
        super()._check_weight()
        self.stored_weight().check()

    # -- the weight -------------------------------------------------------------------------------------------------

    @property
    def matrix_shape(self) -> tuple[int, int]:
        rows, columns = self.weight_shape
        return (columns, rows) if self.transposed else (rows, columns)

    def to_matrix(self, weight: Tensor) -> Tensor:
        return weight.T.contiguous() if self.transposed else weight

    def from_matrix(self, matrix: Tensor) -> Tensor:
        return matrix.T.contiguous() if self.transposed else matrix

    def stored_weight(self) -> StoredWeight:
        """The weight as it is held, on the memory of the state; scales that are quantized are written out."""
        return StoredWeight.of(self._packed(), self._float_zero())

    def _packed(self) -> PackedArray:
        scheme, shape = self.weight_scheme, self.matrix_shape
        scale = stored_parameter(self, "weight_scale", scheme.scales, parameter_row(scheme, shape))
        zero_point, tensor_scale = (self._buffers.get(f"weight_{part}") for part in ("zero_point", "tensor_scale"))
        return PackedArray(self.weight_packed, scale, zero_point, tensor_scale, scheme, shape)

    def _float_zero(self) -> Tensor | PackedArray | None:
        scheme = self.weight_scheme
        return stored_parameter(self, "weight_zero", scheme.zeros, parameter_row(scheme, self.matrix_shape))

    def weight_array(self) -> QuantizedArray:
        if self._float_zero() is not None:
            raise QuantizationError("a weight with float zero-points is no QuantizedArray; ask for layer_result()")
        return super().weight_array()

    def layer_result(self) -> LayerResult:
        """What :meth:`from_layer` makes this layer from."""
        array: QuantizedArray | FloatZeroArray = self._packed().unpack()
        zero = self._float_zero()
        if zero is not None:
            numbers = zero.unpack() if isinstance(zero, PackedArray) else zero
            array = FloatZeroArray(array.codes, array.scale, numbers, array.scheme, array.shape)
        scale = None if self.input_scale is None else 1 / self.input_scale
        return LayerResult(array, self.input_order, scale, self._rotation)

    def linear_weight(self) -> LinearWeight:
        """The layer for a checkpoint format; one that no format can express is an error that says why."""
        return LinearWeight.from_quantized(self._plain_array(), self.input_order, self.bias)

    def array_alone(self) -> QuantizedArray:
        """The weight, where the layer does nothing to its inputs; else an error that says what it does."""
        if self.input_order is not None:
            raise FormatError("a layer with an order of its inputs fits no checkpoint format of this data type")
        return self._plain_array()

    def _plain_array(self) -> QuantizedArray:
        unknown = {
            "float zero-points": self._float_zero() is not None,
            "a scale of its inputs": self.input_scale is not None,
            "a rotation of its inputs": self._rotation is not None,
        }
        if any(unknown.values()):
            found = " and ".join(what for what, has in unknown.items() if has)
            raise FormatError(f"a layer with {found} fits no checkpoint format but the toolkit's own")
        return self.weight_array()

    def dequantized_weight(self) -> Tensor:
        """The weight the layer has in effect for inputs as they come: float32, in the layout of the float module."""
        return self.from_matrix(self.layer_result().dequantize())

    # -- the kernel -------------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        """Whether the layer multiplies with the dequantized weight in float32, whatever that costs."""
        return self._exact

    @exact.setter
    def exact(self, value: bool) -> None:
        self._exact = bool(value)
        self._settle()

    def _settle(self) -> None:
        self._settled = object()
        self.forget_prepacked()
        stored = self.stored_weight()
        self._settle_input()
        choice = Choice() if self._exact else self._choice(stored)
        self._low_bit, self._most_rows = choice.kernel, choice.most_rows
        self.kernel = SIMULATED if self._low_bit is None else f"{self._low_bit.name} (to {self._most_rows} rows)"

    def _choice(self, stored: StoredWeight) -> Choice:
        return choose(stored)

    def forget_prepacked(self) -> None:
        self.forget_own_layout()
        self.shared_input.part()
        self.shared_input = SharedInput()

    def forget_own_layout(self) -> None:
        """Free what was made for this layer alone; the next call that needs it builds it again."""
        self._prepacked = []

    @property
    def low_bit_kernel(self) -> WeightOnlyKernel | None:
        """The kernel that multiplies few rows."""
        return self._low_bit

    @property
    def most_rows(self) -> int:
        """How many rows :attr:`low_bit_kernel` multiplies at most."""
        return self._most_rows

    def _why_no_kernel(self) -> str:
        if self._exact:
            return "exact = True asks for float32 products with the dequantized weight"
        return (
            f"no low-bit kernel here multiplies with {self.weight_scheme.dtype.name} weights in this layout: they are "
            "dequantized for each product; symmetric int4 and int8 in groups of 32, 64 or 128 have one"
        )

    def kernel_for(self, rows: int) -> str:
        """What multiplies ``rows`` inputs: a low-bit kernel, or ``"dequantize"``."""
        return self._low_bit.name if self._low_bit is not None and rows <= self._most_rows else DEQUANTIZE

    def _prepack(self) -> Any:
        assert self._low_bit is not None
        return self._low_bit.pack(self.stored_weight())

    def forward(self, input: Tensor) -> Tensor:
        inputs = self.in_features
        if input.shape[-1] != inputs:
            raise QuantizationError(f"a layer of {inputs} inputs cannot take a tensor of {tuple(input.shape)}")
        # A decoding step has hundreds of such calls: what changes nothing is not asked for.
        leaving = makes_graph()
        if leaving and is_compiled():
            outputs: list[Tensor] = call_layer([input], self._number)
            return outputs[0]
        rows = input.numel() // inputs
        # Low-bit kernels have no gradients, and cannot leave this process: a trace would hold their results as constants.
        if rows > self._most_rows or leaving or not rows or (input.requires_grad and torch.is_grad_enabled()):
            y = self._float_product(input, leaving)
        else:
            shared = self.shared_input.outputs(self, input, rows)
            y = self.low_bit_product(input) if shared is None else shared
        return self.finished(y, input.dtype)

    def low_bit_product(self, input: Tensor) -> Tensor:
        """The product of at most :attr:`most_rows` rows with the weight of this layer alone."""
        assert self._low_bit is not None
        return self._low_bit.run(self.prepacked(), self.turned(input))

    def finished(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """The output of the layer, of the product."""
        if (bias := self._buffers["bias"]) is not None:
            y = y + bias
        if self.scheme.output is not None:
            y = self._as_output(y)
        if y.dtype is not dtype:
            y = y.to(dtype)
        return y.relu() if self.relu else y

    def empty_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        return [inputs[0].new_empty(*inputs[0].shape[:-1], self.out_features)]

    def input_gradients(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        (x,), (gradient,) = inputs, gradients
        gradient = gradient * (self.forward(x) > 0) if self.relu else gradient
        return [(gradient.float() @ self.dequantized_weight().float()).to(x.dtype)]

    def _float_product(self, input: Tensor, leaving: bool) -> Tensor:
        rows = input if input.dim() == 2 else input.reshape(-1, self.in_features)
        if not rows.shape[0]:
            return input.new_empty(*input.shape[:-1], self.out_features)
        if not leaving:
            self.shared_input.note(self, input)
        dtype = product_dtype(input.dtype, input.device.type, exact=self._exact or leaving)
        y = dequantized_product(self.turned(rows), self.stored_weight(), dtype)
        return y if input.dim() == 2 else y.reshape(*input.shape[:-1], self.out_features)

    @property
    def _device(self) -> torch.device:
        return self.weight_packed.device

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "shared_input": SharedInput()}

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {super().extra_repr()}"


def change_of(result: LayerResult, device: torch.device) -> InputChange:
    """What ``result`` says of inputs, in tensors on ``device``."""
    order = None if result.order is None else torch.as_tensor(result.order).to(device)
    scale = None if result.input_scale is None else 1 / torch.as_tensor(result.input_scale).to(device)
    return InputChange(scale, result.rotation, order)


def hold_scales_in(model: nn.Module, dtype: torch.dtype, method: str | None = None) -> None:
    """Round the float scales of all weight-only layers to ``dtype``: in 16 bits they take half the memory.

    With ``method`` those of layers whose weights it found, and no others.

    >>> from neural_compressor.schemes import OpScheme
    >>> scheme = OpScheme.from_dict({"weight": {"dtype": "int4", "group_size": 32}})
    >>> model = nn.Sequential(WeightOnlyLinear.from_float(nn.Linear(64, 8), scheme))
    >>> hold_scales_in(model, torch.bfloat16)
    >>> model[0].weight_scale.dtype
    torch.bfloat16
    """
    for name, layer in model.named_modules():
        if not isinstance(layer, WeightOnlyLinear):
            continue
        if method is not None and (layer.scheme.method is None or layer.scheme.method.name != method):
            continue
        scale = layer._buffers.get("weight_scale")
        if scale is None or not scale.is_floating_point():
            raise QuantizationError(f"layer {name!r} has scales of a small type already; leave out the type of scales")
        new = scale.to(dtype)
        lost = ~torch.isfinite(new) | ((new == 0) & (scale != 0))
        if bool(lost.any()):
            raise QuantizationError(
                f"layer {name!r} has scales from {float(scale.abs().min()):.3g} to {float(scale.abs().max()):.3g}, which "
                f"{dtype} cannot hold; use bf16 or fp32 for the scales"
            )
        layer.register_buffer("weight_scale", new)
        layer._settle()
