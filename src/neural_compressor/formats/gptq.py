"""The GPTQ checkpoint layout: codes packed along the inputs, zero points along the outputs, a group for each input.

``qweight`` int32 (in * bits / 32, out), ``qzeros`` int32 (groups, out * bits / 32), ``scales`` float16 (groups, out),
``g_idx`` int32 (in). The first version stores zero points less one, the second as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from neural_compressor.errors import FormatError
from neural_compressor.formats.base import FORMATS, CheckpointFormat
from neural_compressor.formats.byte_views import contiguous
from neural_compressor.formats.compressed_tensors_config import all_experts, is_output_head
from neural_compressor.formats.int32_words import pack_words, unpack_words
from neural_compressor.formats.linear_weight import LinearSpec, LinearWeight, run_groups
from neural_compressor.formats.stored_tensors import (
    checked_groups,
    finite_scale,
    group_size_of,
    half_scale,
    matrix,
    of_shape,
    option,
    required,
    why_no_half_scale,
)
from neural_compressor.name_pattern import file_pattern
from neural_compressor.schemes.arrays import Array, array_namespace

_BITS = (2, 3, 4, 8)
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""What engines call layers that they multiply as one, by whose name they look for exceptions."""


class GPTQ(CheckpointFormat[LinearWeight]):
    """GPTQ with zero points stored less one: ``checkpoint_format: gptq``, which every reader knows.

    A zero point of zero has no code of its own there, and readers disagree about it; such a weight is refused.
    """

    name = "gptq"
    parts = ("qweight", "qzeros", "scales", "g_idx")
    key = "qweight"
    #: What is taken from a zero point before it is stored.
    zero_offset = 1

    def _why_not(self, weight: LinearWeight) -> str | None:
        xp = array_namespace(weight.codes)
        if weight.bits not in _BITS:
            return f"it takes 2, 3, 4 or 8 bits, not {weight.bits}"
        if weight.in_features % 32 or weight.out_features % 32:
            return (
                "it packs 32 values at a time along inputs and outputs, and the weight has the shape "
                f"{tuple(weight.codes.shape)}; leave the layer in float or use pack-quantized"
            )
        if self.zero_offset and weight.zero_point is not None and bool(xp.any(weight.zero_point == 0)):
            return "it has zero points of 0, which readers of this version misread; use gptq_v2"
        return why_no_half_scale(weight.scale)

    def _store(self, weight: LinearWeight) -> dict[str, Array]:
        xp = array_namespace(weight.codes)
        zeros = xp.astype((weight.zero_points - self.zero_offset) & ((1 << weight.bits) - 1), xp.uint8)
        return {
            "qweight": contiguous(xp.matrix_transpose(pack_words(weight.codes, weight.bits))),
            "qzeros": pack_words(xp.matrix_transpose(zeros), weight.bits),
            "scales": contiguous(xp.matrix_transpose(half_scale(weight.scale))),
            "g_idx": weight.column_groups,
        }

    def _read(self, tensors: Mapping[str, Array], config: Mapping[str, Any], name: str) -> LinearWeight:
        options = {**config, **_override(config, name)}
        bits, size = option(options, "bits"), group_size_of(options, "group_size")
        if bits not in _BITS:
            raise FormatError(f"a GPTQ checkpoint has 2, 3, 4 or 8 bits, found {bits}")
        qweight = matrix(tensors, "qweight", "int32")
        xp = array_namespace(qweight)
        inputs, outputs = qweight.shape[0] * 32 // bits, int(qweight.shape[1])
        of_shape(qweight, (inputs * bits // 32, outputs), "qweight")
        groups = 1 if size == -1 else -(-inputs // size)
        scales = of_shape(finite_scale(required(tensors, "scales"), "scales"), (groups, outputs), "scales")
        qzeros = matrix(tensors, "qzeros", "int32")
        of_shape(qzeros, (groups, outputs * bits // 32), "qzeros")
        codes = unpack_words(xp.matrix_transpose(qweight), bits, inputs)
        zeros = xp.astype(xp.matrix_transpose(unpack_words(qzeros, bits, outputs)), xp.int32)
        zeros = (zeros + self.zero_offset) & ((1 << bits) - 1)
        if options.get("sym", True) and bool(xp.all(zeros == 1 << (bits - 1))):
            zeros = None
        g_idx = tensors.get("g_idx")
        if g_idx is not None:
            g_idx = checked_groups(g_idx, run_groups(codes, size), groups, "g_idx")
        return LinearWeight(
            codes, contiguous(xp.matrix_transpose(scales)), zeros, bits, size, g_idx, tensors.get("bias")
        )

    def config(
        self, specs: Mapping[str, LinearSpec], ignore: Iterable[str] = (), complete: bool = True
    ) -> dict[str, Any]:
        """The block, with the commonest spec as the rule and others, and layers left in float, as exceptions to it."""
        if not specs:
            raise FormatError("a GPTQ checkpoint needs a quantized layer, and none was given")
        common = Counter((s.bits, s.group_size, s.symmetric) for s in specs.values()).most_common(1)[0][0]
        exceptions: dict[str, dict[str, Any]] = {layer: {} for layer in ignore}
        for layer, spec in specs.items():
            if (spec.bits, spec.group_size, spec.symmetric) != common:
                exceptions[layer] = {"bits": spec.bits, "group_size": spec.group_size, "sym": spec.symmetric}
        exceptions |= _of_fused(exceptions)
        dynamic = _patterns(exceptions, specs)
        block: dict[str, Any] = {
            "quant_method": "gptq",
            "checkpoint_format": self.name,
            "bits": common[0],
            "group_size": common[1],
            "sym": common[2],
            "desc_act": any(spec.act_order for spec in specs.values()),
            "lm_head": any(map(is_output_head, specs)),
            "pack_dtype": "int32",
            "meta": {"quantizer": ["open-neural-compressor"]},
        }
        if dynamic:
            block["dynamic"] = dynamic
        modules = _modules_in_blocks(specs) if dynamic else None
        if modules:
            block["modules_in_block_to_quantize"] = [modules]
        return block

    def files(self, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Older readers look for the block in a file of its own."""
        return {"quantize_config.json": dict(config)}

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether the block says GPTQ, in this version of it."""
        return config.get("quant_method") == "gptq" and config.get("checkpoint_format", "gptq") == self.name


class GPTQv2(GPTQ):
    """GPTQ with zero points as they are: ``checkpoint_format: gptq_v2``, for asymmetric weights."""

    name = "gptq_v2"
    zero_offset = 0


def _override(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What the ``dynamic`` part of a block says of one layer: the first pattern that its name begins with."""
    dynamic = config.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise FormatError(f"'dynamic' in the quantization config maps patterns to options, found {dynamic!r}")
    for pattern, options in dynamic.items():
        if file_pattern(pattern.removeprefix("+:").removeprefix("-:"), "'dynamic'").matches_start(name):
            return options if isinstance(options, Mapping) else {}
    return {}


def _patterns(exceptions: Mapping[str, dict[str, Any]], layers: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The ``dynamic`` part of a block. Experts have one pattern where it is the same for all: readers try one after another.

    >>> _patterns({"a.experts.0.up": {}, "a.experts.1.up": {}, "o": {"bits": 8}}, ["o", "q"])
    {'-:^a\\\\.experts\\\\.\\\\d+\\\\.up$': {}, '+:^o$': {'bits': 8}}
    """
    alike: dict[str, list[dict[str, Any] | None]] = {}
    for layer in {*layers, *exceptions}:
        alike.setdefault(all_experts(layer), []).append(exceptions.get(layer))
    found = {}
    for layer, own in exceptions.items():
        shared = all_experts(layer)
        is_one = shared and all(each == own for each in alike[shared])
        found[f"{'+' if own else '-'}:^{shared if is_one else re.escape(layer) + '$'}"] = own
    return found


def _of_fused(exceptions: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same for layers that engines multiply as one, where it is the same for all of them.

    >>> _of_fused({"mlp.gate_proj": {"bits": 8}, "mlp.up_proj": {"bits": 8}, "attn.q_proj": {}})
    {'mlp.gate_up_proj': {'bits': 8}}
    """
    found = {}
    for fused, parts in _FUSED.items():
        for layer in [layer for layer in exceptions if layer.endswith(f".{parts[0]}") and not all_experts(layer)]:
            before = layer.removesuffix(parts[0])
            each = [exceptions.get(f"{before}{part}") for part in parts]
            if each[0] is not None and all(own == each[0] for own in each):
                found[f"{before}{fused}"] = each[0]
    return found


def _modules_in_blocks(layers: Iterable[str]) -> list[str] | None:
    """The quantized layers by their names inside a block, where every block has the same; else None."""
    blocks: dict[str, set[str]] = {}
    for layer in layers:
        match = re.fullmatch(r"(.*?\.\d+)\.(.+)", layer)
        if match:
            blocks.setdefault(match[1], set()).add(match[2])
    inside = list(blocks.values())
    return sorted(inside[0]) if inside and all(names == inside[0] for names in inside) else None


FORMATS.add(GPTQ.name, GPTQ())
FORMATS.add(GPTQv2.name, GPTQv2())
