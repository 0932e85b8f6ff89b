"""The compressed-tensors layouts of integer weights: ``pack-quantized`` (int32 words) and ``int-quantized`` (int8).

``int-quantized`` is that of 8-bit integer inputs too: ``weight`` int8 (out, in), ``weight_scale`` (out, 1) or (1), and
``input_scale`` (1) where the range of inputs is known beforehand, with ``input_zero_point`` (1) where it is asymmetric.

Packed: ``weight_packed`` int32 (out, in * bits / 32), ``weight_scale`` (out, groups), ``weight_zero_point`` int32
(out * bits / 32, groups) of asymmetric weights, ``weight_shape`` int64 (2). The stored numbers are signed ones plus
``2**(bits - 1)``, which are the unsigned codes of a :class:`LinearWeight`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from array_api_compat import device

from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat, L, Layer, Spec
from neural_compressor.formats.byte_views import contiguous
from neural_compressor.formats.compressed_tensors_config import (
    FLOATS,
    METHOD,
    block,
    group_of,
    layout_of,
    op_scheme_of,
    spec_of,
)
from neural_compressor.formats.int32_words import pack_words, unpack_words, word_count
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight, run_groups
from neural_compressor.formats.quantized_linear import QuantizedLinear
from neural_compressor.formats.stored_tensors import (
    checked_groups,
    finite_scale,
    matrix,
    of_shape,
    one_number,
    required,
    whole_groups,
    with_checked_scales,
)
from neural_compressor.schemes import OpScheme, PerChannel, PerTensor, PerToken, QuantizedArray, TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace, as_float32
from neural_compressor.schemes.ranges import scale_shape


class _IntegerWeights(CheckpointFormat[L]):
    """What the two layouts share: scales, the configuration, and what they cannot hold."""

    def _why_no_weight(self, weight: LinearWeight) -> str | None:
        if weight.g_idx is not None:
            return "readers of the format no longer take activation-ordered groups (g_idx); use gptq"
        if weight.group_size != -1 and weight.in_features % weight.group_size:
            return f"its groups must divide the inputs, and {weight.group_size} does not divide {weight.in_features}"
        return None

    def config(self, specs: Mapping[str, Spec], ignore: Iterable[str] = (), complete: bool = True) -> dict[str, Any]:
        """The block. It targets every linear layer but ``ignore`` where that says it all, else the layers by name."""
        return block(specs, ignore, complete, self.name)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says compressed-tensors, in this layout."""
        return config.get("quant_method") == METHOD and config.get("format") == self.name

    def _scale(self, tensors: Mapping[str, Array], spec: LinearSpec, shape: tuple[int, int]) -> Array:
        groups = whole_groups(shape[1], spec.group_size)
        scale = finite_scale(required(tensors, "weight_scale"), "weight_scale")
        if groups == 1 and len(scale.shape) == 1:
            scale = scale[:, None]
        return of_shape(scale, (shape[0], groups), "weight_scale")

    def _groups(self, tensors: Mapping[str, Array], codes: Array, spec: LinearSpec) -> Array | None:
        """The activation order of older checkpoints; -1 in it says that there is none."""
        g_idx = tensors.get("weight_g_idx")
        if g_idx is None or bool(array_namespace(g_idx).any(g_idx == -1)):
            return None
        groups = whole_groups(int(codes.shape[1]), spec.group_size)
        return checked_groups(g_idx, run_groups(codes, spec.group_size), groups, "weight_g_idx")


class PackQuantized(_IntegerWeights[LinearWeight]):
    """compressed-tensors ``pack-quantized``: integers of 1 to 8 bits as one stream of bits a row."""

    name = "pack-quantized"
    parts = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
    key = "weight_packed"

    def _why_not(self, weight: LinearWeight) -> str | None:
        return self._why_no_weight(weight)

    def _store(self, weight: LinearWeight) -> dict[str, Array]:
        xp = array_namespace(weight.codes)
        tensors = {
            "weight_packed": pack_words(weight.codes, weight.bits),
            "weight_scale": weight.scale,
            "weight_shape": xp.asarray(list(weight.codes.shape), dtype=xp.int64, device=device(weight.codes)),
        }
        if weight.zero_point is not None:
            zeros = xp.astype(xp.matrix_transpose(weight.zero_point), xp.uint8)
            tensors["weight_zero_point"] = contiguous(xp.matrix_transpose(pack_words(zeros, weight.bits)))
        return tensors

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> LinearWeight:
        spec = spec_of(config, name)
        packed = matrix(tensors, "weight_packed", "int32")
        xp = array_namespace(packed)
        outputs, inputs = _shape(tensors)
        of_shape(packed, (outputs, word_count(inputs, spec.bits)), "weight_packed")
        codes = unpack_words(packed, spec.bits, inputs)
        scale = self._scale(tensors, spec, (outputs, inputs))
        zeros = None
        if not spec.symmetric:
            stored = matrix(tensors, "weight_zero_point", "int32")
            of_shape(stored, (word_count(outputs, spec.bits), int(scale.shape[1])), "weight_zero_point")
            zeros = unpack_words(xp.matrix_transpose(stored), spec.bits, outputs)
            zeros = contiguous(xp.astype(xp.matrix_transpose(zeros), xp.int32))
        g_idx = self._groups(tensors, codes, spec)
        return LinearWeight(codes, scale, zeros, spec.bits, spec.group_size, g_idx, tensors.get("bias"))


class IntQuantized(_IntegerWeights[Layer]):
    """compressed-tensors ``int-quantized``: one signed byte a value, whatever the bits, with float or int8 inputs."""

    name = "int-quantized"
    parts = ("weight", "weight_scale", "weight_zero_point", "weight_g_idx", "input_scale", "input_zero_point")
    key = "weight_scale"
    takes = (LinearWeight, QuantizedLinear)

    def _why_not(self, weight: Layer) -> str | None:
        return self._why_no_weight(weight) if isinstance(weight, LinearWeight) else _why_not_int8(weight)

    def _store(self, weight: Layer) -> dict[str, Array]:
        if isinstance(weight, QuantizedLinear):
            return _store_int8(weight)
        tensors = {"weight": _signed(weight.codes, weight.bits), "weight_scale": weight.scale}
        if weight.zero_point is not None:
            tensors["weight_zero_point"] = _signed(weight.zero_point, weight.bits)
        return tensors

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> Layer:
        if group_of(config, name).get("input_activations"):
            return _read_int8(tensors, op_scheme_of(config, name))
        spec = spec_of(config, name)
        weight = matrix(tensors, "weight", "int8")
        xp, shift = array_namespace(weight), 1 << (spec.bits - 1)
        if int(xp.min(weight)) < -shift or int(xp.max(weight)) >= shift:
            raise FormatError(f"'weight' holds numbers of more than {spec.bits} bits")
        codes = xp.astype(xp.astype(weight, xp.int16) + shift, xp.uint8)
        scale = self._scale(tensors, spec, (int(weight.shape[0]), int(weight.shape[1])))
        zeros = None
        if not spec.symmetric:
            stored = required(tensors, "weight_zero_point", "int8")
            stored = stored[:, None] if len(stored.shape) == 1 else stored
            zeros = xp.astype(of_shape(stored, tuple(scale.shape), "weight_zero_point"), xp.int32) + shift
        g_idx = self._groups(tensors, codes, spec)
        return LinearWeight(codes, scale, zeros, spec.bits, spec.group_size, g_idx, tensors.get("bias"))

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says compressed-tensors with plain integers, under either of its names."""
        names = (self.name, "naive-quantized")
        return config.get("quant_method") == METHOD and config.get("format") in names


# -- int8 weights and inputs ------------------------------------------------------------------------------------------


def _why_not_int8(layer: QuantizedLinear) -> str | None:
    weight, activation = layer.weight.scheme, layer.activation
    if (
        weight.dtype.name != "int8"
        or not weight.symmetric
        or not isinstance(weight.granularity, (PerTensor, PerChannel))
    ):
        return (
            f"beside quantized inputs it takes int8 weights, symmetric, with a scale a channel or tensor, not "
            f"{weight.to_dict()}"
        )
    if activation is None:
        return None
    if not activation.dtype.is_integer or activation.dtype.bits != 8 or activation.reduce_range:
        return f"its inputs are 8-bit integers that use all their codes, not {activation.to_dict()}"
    if layer.mode == "dynamic" and (
        not isinstance(activation.granularity, (PerToken, PerTensor)) or not activation.symmetric
    ):
        return (
            "inputs whose range is taken from each of them are symmetric, with a scale a token: "
            "act_dtype='int8', act_sym=True, act_granularity='per_token'"
        )
    if layer.mode == "static" and not isinstance(activation.granularity, PerTensor):
        return f"inputs whose range is known beforehand have one scale, not {activation.granularity.name}"
    return None


def _store_int8(layer: QuantizedLinear) -> dict[str, Array]:
    tensors = {"weight": layer.weight.codes, "weight_scale": scale_column(layer.weight)}
    if layer.input_scale is not None:
        xp = array_namespace(layer.input_scale)
        tensors["input_scale"] = xp.reshape(as_float32(layer.input_scale), (1,))
        if layer.activation is not None and not layer.activation.symmetric:
            # The codes of an unsigned integer are those of a signed one, moved by half the range.
            shift = 0 if layer.activation.dtype.signed else 128
            tensors["input_zero_point"] = xp.astype(xp.reshape(layer.input_zero_point, (1,)) - shift, xp.int8)
    return tensors


def _read_int8(tensors: Mapping[str, Array], scheme: OpScheme) -> QuantizedLinear:
    weight, activation = scheme.weight, scheme.activation
    assert weight is not None
    assert activation is not None
    if weight.dtype.name != "int8" or not weight.symmetric:
        raise FormatError(f"beside quantized inputs symmetric int8 weights are read, not {weight.to_dict()}")
    codes = matrix(tensors, "weight", "int8")
    layer = QuantizedLinear(weight_array(codes, tensors, weight), activation, bias=tensors.get("bias"))
    if reason := _why_not_int8(layer if scheme.mode == "dynamic" else replace(layer, input_scale=codes)):
        raise FormatError(reason)
    if scheme.mode == "dynamic":
        return layer
    zero = None
    if not activation.symmetric:
        stored = required(tensors, "input_zero_point", "int8")
        xp = array_namespace(stored)
        zero = xp.reshape(xp.astype(of_shape(stored, (1,), "input_zero_point"), xp.int32), ())
    return replace(layer, input_scale=one_number(tensors, "input_scale"), input_zero_point=zero)


def scale_column(array: QuantizedArray) -> Array:
    """The scales of a weight as they are stored: (1) of a tensor, (out, 1) of channels, blocks as they are."""
    xp, scale = array_namespace(array.codes), as_float32(array.qparams.scale)
    return scale if scale.ndim == 2 else xp.reshape(scale, (-1, 1) if scale.ndim else (1,))


def weight_array(codes: Array, tensors: Mapping[str, Array], scheme: TensorScheme) -> QuantizedArray:
    """``codes`` with the scales of ``tensors``, which have to fit them."""
    xp, shape = array_namespace(codes), (int(codes.shape[0]), int(codes.shape[1]))
    scale = finite_scale(required(tensors, "weight_scale"), "weight_scale")
    wanted = scale_shape(shape, scheme.granularity)
    if len(wanted) < 2:
        stored = (1,) if not wanted else (shape[0], 1)
        if tuple(scale.shape) != wanted:  # older files have no axis where nothing varies along it
            of_shape(scale, stored, "weight_scale")
        scale = xp.reshape(scale, wanted)
    array = QuantizedArray(codes, as_float32(of_shape(scale, wanted, "weight_scale")), None, scheme, shape)
    return with_checked_scales(array, "weight_scale")


def _signed(codes: Array, bits: int) -> Array:
    xp = array_namespace(codes)
    return xp.astype(xp.astype(codes, xp.int16) - (1 << (bits - 1)), xp.int8)


def _shape(tensors: Mapping[str, Array]) -> tuple[int, int]:
    """The shape of the unpacked weight, which the packed one does not tell where the last word has room left."""
    stored = of_shape(required(tensors, "weight_shape"), (2,), "weight_shape")
    outputs, inputs = (int(stored[0]), int(stored[1]))
    if outputs < 1 or inputs < 1:
        raise FormatError(f"'weight_shape' is not a shape: {(outputs, inputs)}")
    return outputs, inputs


class CompressedTensors(CheckpointFormat[Layer]):
    """compressed-tensors with each layer in the layout made for it: ``mixed-precision`` where there are several."""

    name = "mixed-precision"
    parts = tuple(
        dict.fromkeys(
            [*PackQuantized.parts, *IntQuantized.parts, "weight_global_scale", "input_global_scale", "input_scale"]
        )
    )
    # Every layout has scales under this name.
    key = "weight_scale"
    takes = (LinearWeight, QuantizedLinear)

    def _why_not(self, weight: Layer) -> str | None:
        if isinstance(weight, QuantizedLinear) and not weight.weight.scheme.dtype.is_integer:
            name = weight.weight.scheme.dtype.name
            if layout_of(weight.spec) == IntQuantized.name:
                return f"it has no layout for {name} weights; it has {', '.join(FLOATS)}, and integers"
        return self._layout(weight).why_not(weight)

    def _store(self, weight: Layer) -> dict[str, Array]:
        return self._layout(weight)._store(weight)

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> Layer:
        told = group_of(config, name).get("format") or config.get("format")
        if told is None or told == self.name or told not in FORMATS:
            raise FormatError(f"its group has the format {told!r}; in a mixed-precision checkpoint each group has one")
        read: Layer = FORMATS[told]._read(tensors, config, name)
        return read

    def config(self, specs: Mapping[str, Spec], ignore: Iterable[str] = (), complete: bool = True) -> dict[str, Any]:
        """The block; its format is that of the layers where they all have the same."""
        return block(specs, ignore, complete)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says compressed-tensors, in several layouts."""
        return config.get("quant_method") == METHOD and config.get("format") == self.name

    @staticmethod
    def _layout(weight: Layer) -> CheckpointFormat[Any]:
        return FORMATS[layout_of(weight.spec)]


FORMATS.add(PackQuantized.name, PackQuantized())
FORMATS.add(IntQuantized.name, IntQuantized(), aliases=("naive-quantized",))
FORMATS.add(CompressedTensors.name, CompressedTensors())
