"""The compressed-tensors layouts of small floats: fp8 with float scales, and the blocks of MX and NVFP4.

``float-quantized``: ``weight`` e4m3 (out, in); ``weight_scale`` (1) of a tensor, (out, 1) of channels, (ceil(out / r),
in / c) of blocks; ``input_scale`` (1) where the range of inputs is known beforehand.
``mxfp8-quantized``: ``weight`` e4m3, ``weight_scale`` uint8 (out, in / 32), exponents less 127.
``mxfp4-pack-quantized``: ``weight_packed`` uint8 (out, in / 2), even elements in the low nibbles; ``weight_scale`` as above.
``nvfp4-pack-quantized``: ``weight_packed``; ``weight_scale`` e4m3 (out, in / 16); ``weight_global_scale`` (1), by which
these are divided; ``input_global_scale`` (1) where inputs are NVFP4 too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat, Spec
from neural_compressor.formats.byte_views import as_float8, float8_codes
from neural_compressor.formats.compressed_tensors import scale_column, weight_array
from neural_compressor.formats.compressed_tensors_config import METHOD, block, op_scheme_of
from neural_compressor.formats.quantized_linear import QuantizedLinear
from neural_compressor.formats.stored_tensors import matrix, of_shape, one_number, with_checked_scales
from neural_compressor.schemes import (
    OpScheme,
    PackedArray,
    PerBlock,
    PerChannel,
    PerGroup,
    PerTensor,
    PerToken,
    QuantizedArray,
    TensorScheme,
)
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32


class _Floats(CheckpointFormat[QuantizedLinear]):
    """What the layouts share: one data type of weights, and the configuration."""

    takes = (QuantizedLinear,)
    #: The data type of its weights.
    kind: ClassVar[str]

    def _why_not(self, weight: QuantizedLinear) -> str | None:
        if weight.weight.scheme.dtype.name != self.kind:
            return f"its weights are {self.kind}, not {weight.weight.scheme.dtype.name}"
        if weight.weight.scheme.scales is not None:
            return "its scales are stored as they are, and these are quantized (double quantization)"
        return self._why_no_layer(weight)

    @abstractmethod
    def _why_no_layer(self, layer: QuantizedLinear) -> str | None:
        """Why a layer with weights of :attr:`kind` cannot be stored; None where it can."""

    def config(self, specs: Mapping[str, Spec], ignore: Iterable[str] = (), complete: bool = True) -> dict[str, Any]:
        """The block. It targets every linear layer but ``ignore`` where that says it all, else the layers by name."""
        return block(specs, ignore, complete, self.name)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says compressed-tensors, in this layout."""
        return config.get("quant_method") == METHOD and config.get("format") == self.name

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> QuantizedLinear:
        scheme = op_scheme_of(config, name, in_exponents=self.kind.startswith("mx"))
        if scheme.weight is None or scheme.weight.dtype.name != self.kind:
            raise FormatError(f"its group speaks of {scheme.precision} weights, and the format has {self.kind}")
        activation = scheme.activation
        if scheme.mode == "static" and activation is not None and not _has_one_scale(activation):
            raise FormatError(f"inputs whose range is known beforehand have one scale, not {activation.to_dict()}")
        return self._read_layer(tensors, scheme)

    @abstractmethod
    def _read_layer(self, tensors: Mapping[str, Array], scheme: OpScheme) -> QuantizedLinear:
        """The layer that ``tensors`` store, quantized as ``scheme`` says."""


class FloatQuantized(_Floats):
    """compressed-tensors ``float-quantized``: fp8 e4m3 with a scale a tensor, channel or block."""

    name = "float-quantized"
    kind = "fp8_e4m3"
    parts = ("weight", "weight_scale", "input_scale")
    key = "weight_scale"

    def _why_no_layer(self, layer: QuantizedLinear) -> str | None:
        return why_not_fp8(layer)

    def _store(self, weight: QuantizedLinear) -> dict[str, Array]:
        tensors = {"weight": as_float8(weight.weight.codes), "weight_scale": scale_column(weight.weight)}
        if weight.input_scale is not None:
            tensors["input_scale"] = array_namespace(weight.input_scale).reshape(as_float32(weight.input_scale), (1,))
        return tensors

    def _read_layer(self, tensors: Mapping[str, Array], scheme: OpScheme) -> QuantizedLinear:
        assert scheme.weight is not None
        array = weight_array(e4m3_codes(tensors, "weight"), tensors, scheme.weight)
        static = scheme.mode == "static"
        scale = one_number(tensors, "input_scale") if static else None
        return QuantizedLinear(array, scheme.activation, scale, bias=tensors.get("bias"))


class _Blocks(_Floats):
    """Weights in the blocks of a data type that has its own."""

    def _why_no_layer(self, layer: QuantizedLinear) -> str | None:
        size = layer.weight.scheme.dtype.block_size or 1
        if layer.in_features % size:
            return f"its blocks of {size} must divide the inputs, and {layer.in_features} are not made of these"
        if layer.activation is None:
            return None
        if layer.activation.dtype.name != self.kind:
            return f"its inputs are in float or {self.kind}, not {layer.activation.dtype.name}"
        if layer.activation.dtype.has_tensor_scale != (layer.mode == "static"):
            return (
                "its inputs have a scale of the whole tensor that is known beforehand; quantize them statically, or give "
                "save() batches to find it: input_data=batches"
                if layer.mode == "dynamic"
                else "its inputs take all scales from themselves; quantize them dynamically"
            )
        return None

    def _stored(self, layer: QuantizedLinear) -> PackedArray:
        return layer.weight.pack()


class MXFP8Quantized(_Blocks):
    """compressed-tensors ``mxfp8-quantized``: fp8 e4m3 in blocks of 32 that share a power of two."""

    name = "mxfp8-quantized"
    kind = "mxfp8_e4m3"
    parts = ("weight", "weight_scale")
    key = "weight_scale"

    def _store(self, weight: QuantizedLinear) -> dict[str, Array]:
        packed = self._stored(weight)
        return {"weight": as_float8(packed.data), "weight_scale": packed.scale}

    def _read_layer(self, tensors: Mapping[str, Array], scheme: OpScheme) -> QuantizedLinear:
        codes, scale = e4m3_codes(tensors, "weight"), matrix(tensors, "weight_scale", "uint8")
        return QuantizedLinear(block_array(codes, scale, _weight(scheme)), scheme.activation, bias=tensors.get("bias"))


class MXFP4Packed(_Blocks):
    """compressed-tensors ``mxfp4-pack-quantized``: fp4 e2m1 in blocks of 32 that share a power of two."""

    name = "mxfp4-pack-quantized"
    kind = "mxfp4"
    parts = ("weight_packed", "weight_scale")
    key = "weight_packed"

    def _store(self, weight: QuantizedLinear) -> dict[str, Array]:
        packed = self._stored(weight)
        return {"weight_packed": packed.data, "weight_scale": packed.scale}

    def _read_layer(self, tensors: Mapping[str, Array], scheme: OpScheme) -> QuantizedLinear:
        data, scale = matrix(tensors, "weight_packed", "uint8"), matrix(tensors, "weight_scale", "uint8")
        return QuantizedLinear(block_array(data, scale, _weight(scheme)), scheme.activation, bias=tensors.get("bias"))


class NVFP4Packed(_Blocks):
    """compressed-tensors ``nvfp4-pack-quantized``: fp4 e2m1 in blocks of 16 with e4m3 scales, and a scale a tensor."""

    name = "nvfp4-pack-quantized"
    kind = "nvfp4"
    parts = ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
    key = "weight_packed"

    def _store(self, weight: QuantizedLinear) -> dict[str, Array]:
        packed = self._stored(weight)
        tensors = {
            "weight_packed": packed.data,
            "weight_scale": as_float8(packed.scale),
            "weight_global_scale": _divisor(packed.tensor_scale),
        }
        if weight.input_scale is not None:
            tensors["input_global_scale"] = _divisor(weight.input_scale)
        return tensors

    def _read_layer(self, tensors: Mapping[str, Array], scheme: OpScheme) -> QuantizedLinear:
        data, scale = matrix(tensors, "weight_packed", "uint8"), e4m3_codes(tensors, "weight_scale")
        array = block_array(data, scale, _weight(scheme), as_float32(1 / one_number(tensors, "weight_global_scale")))
        static = scheme.mode == "static"
        of_inputs = as_float32(1 / one_number(tensors, "input_global_scale")) if static else None
        return QuantizedLinear(array, scheme.activation, of_inputs, bias=tensors.get("bias"))


def block_array(data: Array, scale: Array, scheme: TensorScheme, tensor_scale: Array | None = None) -> QuantizedArray:
    """A weight of a block format from its packed codes and the codes of its scales, which have to fit."""
    size = scheme.dtype.block_size or 1
    rows, inputs = int(data.shape[0]), int(data.shape[1]) * 8 // scheme.dtype.bits
    if inputs % size:
        raise FormatError(f"{inputs} inputs are not made of whole blocks of {size}")
    of_shape(scale, (rows, inputs // size), "weight_scale")
    array = PackedArray(data, scale, None, tensor_scale, scheme, (rows, inputs)).unpack()
    xp = array_namespace(array.codes)
    if not bool(xp.all(xp.isfinite(array.scale))):
        raise FormatError("'weight_scale' holds NaN: the file is damaged")
    return with_checked_scales(array, "weight_scale")


def _weight(scheme: OpScheme) -> TensorScheme:
    assert scheme.weight is not None
    return scheme.weight


def why_not_fp8(layer: QuantizedLinear) -> str | None:
    """Why no engine takes fp8 weights and inputs quantized like these; None where they do."""
    part, activation = layer.weight.scheme.granularity, layer.activation
    if isinstance(part, PerGroup):
        return (
            "its weights have a scale a tensor, channel or block of rows and columns, not a group: use group_size=-1 "
            "(a channel), or w_granularity='per_block'"
        )
    if isinstance(part, PerBlock) and layer.in_features % part.columns:
        return f"its blocks of {part.columns} columns must divide the inputs, and {layer.in_features} are not made of these"
    if isinstance(part, PerChannel) and part.axis not in (0, -2):
        return "its weights have a scale an output channel, not an input channel"
    if activation is None:
        return None
    if activation.dtype != dtype("fp8_e4m3"):
        return f"its inputs are in float or fp8_e4m3, not {activation.dtype.name}"
    if isinstance(part, PerBlock):
        if layer.mode != "dynamic" or activation.granularity != PerGroup(part.columns):
            return (
                f"beside weights in blocks its inputs are in groups of {part.columns} with scales of their own: "
                "a dynamic scheme with act_granularity='per_group'"
            )
    elif layer.mode == "static" and not isinstance(activation.granularity, PerTensor):
        return f"inputs whose range is known beforehand have one scale, not {activation.granularity.name}"
    elif not isinstance(activation.granularity, (PerTensor, PerToken)):
        return f"its inputs have a scale a tensor or token, not {activation.granularity.name}; use 'per_token'"
    return None


def e4m3_codes(tensors: Mapping[str, Array], part: str) -> Array:
    """The bytes of a matrix of e4m3 numbers; NaN is refused."""
    codes = float8_codes(matrix(tensors, part, "float8_e4m3fn"))
    if bool(array_namespace(codes).any((codes & 0x7F) == 0x7F)):
        raise FormatError(f"{part!r} holds NaN: the file is damaged")
    return codes


def _has_one_scale(scheme: TensorScheme) -> bool:
    if scheme.dtype.block_size is not None:
        return scheme.dtype.has_tensor_scale
    return isinstance(scheme.granularity, PerTensor)


def _divisor(scale: Array) -> Array:
    """A scale that multiplies as one that divides, (1)."""
    return 1 / as_float32(array_namespace(scale).reshape(scale, (1,)))


for _layout in (FloatQuantized(), MXFP8Quantized(), MXFP4Packed(), NVFP4Packed()):
    FORMATS.add(_layout.name, _layout)
