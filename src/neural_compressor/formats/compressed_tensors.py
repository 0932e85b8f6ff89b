"""The compressed-tensors layouts of integer weights: ``pack-quantized`` (int32 words) and ``int-quantized`` (int8).

Packed: ``weight_packed`` int32 (out, in * bits / 32), ``weight_scale`` (out, groups), ``weight_zero_point`` int32
(out * bits / 32, groups) of asymmetric weights, ``weight_shape`` int64 (2). The stored numbers are signed ones plus
``2**(bits - 1)``, which are the unsigned codes of a :class:`LinearWeight`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from array_api_compat import device

from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat
from neural_compressor.formats.byte_views import contiguous
from neural_compressor.formats.config_groups import config_groups, spec_of
from neural_compressor.formats.int32_words import pack_words, unpack_words, word_count
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight, run_groups
from neural_compressor.formats.stored_tensors import (
    checked_groups,
    finite_scale,
    matrix,
    of_shape,
    required,
    whole_groups,
)
from neural_compressor.schemes.arrays import Array, array_namespace

METHOD = "compressed-tensors"


class _IntegerWeights(CheckpointFormat):
    """What the two layouts share: scales, the configuration, and what they cannot hold."""

    def why_not(self, weight: LinearWeight) -> str | None:
        """Why the format cannot store ``weight``; None where it can."""
        if weight.g_idx is not None:
            return "readers of the format no longer take activation-ordered groups (g_idx); use gptq"
        if weight.group_size != -1 and weight.in_features % weight.group_size:
            return f"its groups must divide the inputs, and {weight.group_size} does not divide {weight.in_features}"
        return None

    def config(
        self, specs: Mapping[str, LinearSpec], ignore: Iterable[str] = (), complete: bool = True
    ) -> dict[str, Any]:
        """The block. It targets every linear layer but ``ignore`` where that says it all, else the layers by name."""
        return {
            "quant_method": METHOD,
            "format": self.name,
            "quantization_status": "compressed",
            "config_groups": config_groups(specs, complete, self._format_of_groups),
            "ignore": sorted(ignore),
            "kv_cache_scheme": None,
            "global_compression_ratio": None,
        }

    #: What a config group says of its format: None where readers infer it from the bits.
    _format_of_groups: str | None = None

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


class PackQuantized(_IntegerWeights):
    """compressed-tensors ``pack-quantized``: integers of 1 to 8 bits as one stream of bits a row."""

    name = "pack-quantized"
    parts = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
    key = "weight_packed"

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


class IntQuantized(_IntegerWeights):
    """compressed-tensors ``int-quantized``: one signed byte a value, whatever the bits."""

    name = "int-quantized"
    parts = ("weight", "weight_scale", "weight_zero_point", "weight_g_idx")
    key = "weight_scale"
    # A weight-only integer group is taken for a packed one unless it says otherwise.
    _format_of_groups = name

    def _store(self, weight: LinearWeight) -> dict[str, Array]:
        tensors = {"weight": _signed(weight.codes, weight.bits), "weight_scale": weight.scale}
        if weight.zero_point is not None:
            tensors["weight_zero_point"] = _signed(weight.zero_point, weight.bits)
        return tensors

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> LinearWeight:
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


FORMATS.add(PackQuantized.name, PackQuantized())
FORMATS.add(IntQuantized.name, IntQuantized(), aliases=("naive-quantized",))
