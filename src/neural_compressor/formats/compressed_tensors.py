"""The compressed-tensors layouts of integer weights: ``pack-quantized`` (int32 words) and ``int-quantized`` (int8).

Packed: ``weight_packed`` int32 (out, in * bits / 32), ``weight_scale`` (out, groups), ``weight_zero_point`` int32
(out * bits / 32, groups) of asymmetric weights, ``weight_shape`` int64 (2). The stored numbers are signed ones plus
``2**(bits - 1)``, which are the unsigned codes of a :class:`LinearWeight`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from array_api_compat import device

from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat
from neural_compressor.formats.byte_views import contiguous
from neural_compressor.formats.int32_words import pack_words, unpack_words, word_count
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight, run_groups
from neural_compressor.formats.stored_tensors import (
    checked_groups,
    finite_scale,
    group_size_of,
    matrix,
    of_shape,
    option,
    required,
    whole_groups,
)
from neural_compressor.name_pattern import file_pattern
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


# -- config_groups: which layers are quantized how ---------------------------------------------------------------------


def config_groups(specs: Mapping[str, LinearSpec], complete: bool = True, layout: str | None = None) -> dict[str, Any]:
    """One group for each way of quantizing, targeting the layers by name.

    Where all are quantized alike and the list of ignored layers is ``complete``, the group targets the class instead, as
    is the custom.

    >>> groups = config_groups({"a.fc": LinearSpec(4, 128, True)})
    >>> groups["group_0"]["targets"], groups["group_0"]["weights"]["strategy"]
    (['Linear'], 'group')
    """
    if not specs:
        raise FormatError("a compressed-tensors checkpoint needs a quantized layer, and none was given")
    layers: dict[LinearSpec, list[str]] = {}
    for name, spec in specs.items():
        layers.setdefault(spec, []).append(name)
    alike = len(layers) == 1 and complete
    groups: dict[str, Any] = {}
    for number, (spec, names) in enumerate(layers.items()):
        whole_row = spec.group_size == -1
        groups[f"group_{number}"] = {
            "targets": ["Linear"] if alike else names,
            "weights": {
                "num_bits": spec.bits,
                "type": "int",
                "symmetric": spec.symmetric,
                "strategy": "channel" if whole_row else "group",
                "group_size": None if whole_row else spec.group_size,
                "dynamic": False,
            },
            "input_activations": None,
            "output_activations": None,
        }
        if layout is not None:
            groups[f"group_{number}"]["format"] = layout
    return groups


def spec_of(config: Mapping[str, Any], name: str) -> LinearSpec:
    """What the groups of a configuration say of one layer: a target that is its name, a pattern, or its class.

    >>> spec_of({"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}}}, "a.fc").bits
    4
    """
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not all(isinstance(group, Mapping) for group in groups.values()):
        raise FormatError("a compressed-tensors configuration has 'config_groups', each with 'targets' and 'weights'")
    for matches in (_by_name, _by_pattern, _by_class):
        for group in groups.values():
            if any(matches(target, name) for target in group.get("targets", ())):
                return _spec(group.get("weights"))
    raise FormatError("no group of the compressed-tensors configuration targets it")


def _by_name(target: str, name: str) -> bool:
    return target == name


def _by_pattern(target: str, name: str) -> bool:
    return target.startswith("re:") and file_pattern(target[3:], "a target of a config group").matches_start(name)


def _by_class(target: str, name: str) -> bool:
    # Classes are not known here; a stored layer that nothing names more closely is of one of them.
    return re.fullmatch(r"[A-Za-z_]\w*", target) is not None and target != name


def _spec(weights: Any) -> LinearSpec:
    if not isinstance(weights, Mapping) or weights.get("type", "int") != "int":
        raise FormatError(f"the group has no integer weights: {weights!r}")
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "channel")
    if strategy not in ("group", "channel"):
        raise FormatError(f"the weights have scales per {strategy}; group and channel are read")
    bits = option(weights, "num_bits")
    if not 1 <= bits <= 8:
        raise FormatError(f"compressed-tensors integers have 1 to 8 bits, found {bits}")
    size = group_size_of(weights, "group_size") if strategy == "group" else -1
    return LinearSpec(bits, size, bool(weights.get("symmetric", True)))


FORMATS.add(PackQuantized.name, PackQuantized())
FORMATS.add(IntQuantized.name, IntQuantized(), aliases=("naive-quantized",))
