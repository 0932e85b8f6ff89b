"""Experts that a checkpoint stores one by one and transformers holds in one parameter, all below each other."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neural_compressor.errors import FormatError
from neural_compressor.formats import Layer, LinearWeight, QuantizedCheckpoint, QuantizedLinear
from neural_compressor.schemes import (
    PER_CHANNEL,
    OpScheme,
    PackedArray,
    PerGroup,
    PerTensor,
    QuantizedArray,
    TensorScheme,
)
from neural_compressor.torch.files.checkpoint_layers import in_groups
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.build import quantized_module
from neural_compressor.torch.modules.matrix_stack import MatrixStack

logger = logging.getLogger("neural_compressor")
_MERGES = (["MergeModulelist"], ["MergeModulelist", "Concatenate"])
"""What transformers does to experts: puts their matrices behind each other, after those of one expert below each other."""


def fused_experts(model: nn.Module, layers: Iterable[str]) -> dict[str, list[str]]:
    """Which of the ``layers`` of a checkpoint a parameter of ``model`` holds, in their order, by the parameter's name."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # earlier releases have a module for each expert
        return {}
    if not hasattr(model, "config"):
        return {}
    found: dict[str, dict[tuple[int, int], str]] = {}
    layers = list(layers)
    for converter in get_model_conversion_mapping(model):  # type: ignore[arg-type]
        operations = [type(each).__name__ for each in getattr(converter, "operations", None) or ()]
        if operations not in _MERGES or len(converter.target_patterns) != 1:
            continue
        for place, source in enumerate(converter.source_patterns):
            pattern = re.compile(_as_expression(source))
            for name in layers:
                if matched := pattern.fullmatch(name):
                    target = f"{matched[1]}{converter.target_patterns[0]}"
                    found.setdefault(target, {})[int(matched[2]), place] = name
    parameters = dict(model.named_parameters())
    return {name: [parts[key] for key in sorted(parts)] for name, parts in found.items() if name in parameters}


def _as_expression(source: str) -> str:
    """``mlp.experts.*.up_proj.weight`` as an expression for the names of layers, with what stands before and the number."""
    before, _, behind = source.removesuffix(".weight").partition("*")
    return rf"(.*){re.escape(before)}(\d+){re.escape(behind)}"


def stack_of(parameter: nn.Parameter, names: Sequence[str], checkpoint: QuantizedCheckpoint) -> QuantModule:
    """The packed matrices that take the place of ``parameter``. Their inputs are in float, and that is said if need be."""
    parts = []
    for name in names:
        layer = checkpoint.layer(name)
        parts.append(_with_row_scales(layer, name).pack())
        if name == names[0] and isinstance(layer, QuantizedLinear) and layer.activation is not None:
            logger.warning(
                "inputs of experts that are held together stay in float here, and the checkpoint has them in %s: %s, ...",
                layer.activation.dtype.name,
                name,
            )
    schemes, rows = {part.scheme for part in parts}, sum(part.shape[0] for part in parts)
    if len(schemes) > 1 or rows != parameter.shape[0] * parameter.shape[1] or parts[0].shape[1] != parameter.shape[2]:
        shapes = sorted({part.shape for part in parts})
        raise FormatError(
            f"{checkpoint.folder}: {names[0]!r} and {len(names) - 1} others make up a parameter of shape "
            f"{tuple(parameter.shape)} in one data type; found the shapes {shapes} in {len(schemes)} ways of quantizing"
        )
    state = {f"weight_{name}": torch.cat(tensors) for name, tensors in _fields(parts).items()}
    scheme = OpScheme(weight=schemes.pop(), mode="weight_only")
    return quantized_module(MatrixStack(parameter), scheme, state=state)


def _fields(parts: Sequence[PackedArray]) -> dict[str, list[Tensor]]:
    fields: dict[str, list[Any]] = {
        "packed": [part.data for part in parts],
        "scale": [part.scale for part in parts],
        "zero_point": [part.zero_point for part in parts],
    }
    return {name: tensors for name, tensors in fields.items() if tensors[0] is not None}


def _with_row_scales(layer: Layer, name: str) -> QuantizedArray:
    """A weight whose scales are those of its rows alone, so that it can stand below others."""
    if isinstance(layer, LinearWeight):
        if layer.order is not None:
            raise FormatError(
                f"layer {name!r} has an order of its inputs, and experts that are held together have one input"
            )
        return layer.to_quantized()
    array, part = layer.weight, layer.weight.scheme.granularity
    scale, kind = array.scale, array.scheme.dtype
    assert isinstance(scale, Tensor)
    if kind.has_tensor_scale:
        assert array.tensor_scale is not None
        scheme = TensorScheme(kind.element_type, granularity=PerGroup(kind.block_size or 1))
        return QuantizedArray(array.codes, scale * array.tensor_scale, None, scheme, array.shape)
    if isinstance(part, PerTensor) and kind.block_size is None:
        scheme = TensorScheme(kind, granularity=PER_CHANNEL)
        return QuantizedArray(array.codes, scale.expand(array.shape[0]).clone(), None, scheme, array.shape)
    return in_groups(array)
