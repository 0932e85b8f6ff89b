"""Experts that a checkpoint stores one by one and transformers holds in one parameter, all below each other; and back."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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
from neural_compressor.torch.modules.matrix_stack import MatrixStack, QuantMatrixStack, open_stacks

logger = logging.getLogger("neural_compressor")
_MERGES = (["MergeModulelist"], ["MergeModulelist", "Concatenate"])
"""What transformers does to experts: puts their matrices behind each other, after those of one expert below each other."""


def fused_experts(model: nn.Module, layers: Iterable[str]) -> dict[str, list[str]]:
    """Which of the ``layers`` of a checkpoint a parameter of ``model`` holds, in their order, by the parameter's name.

    A checkpoint may hold all experts as one layer, which has the name of the parameter.
    """
    layers = list(layers)
    parameters = dict(model.named_parameters())
    whole = {name: [name] for name in layers if name in parameters}
    found: dict[str, dict[tuple[int, int], str]] = {}
    for sources, target in _merges(model):
        for place, source in enumerate(sources):
            pattern = re.compile(_as_expression(source))
            for name in layers:
                if matched := pattern.fullmatch(name):
                    found.setdefault(f"{matched[1]}{target}", {})[int(matched[2]), place] = name
    merged = {name: [parts[key] for key in sorted(parts)] for name, parts in found.items() if name in parameters}
    return whole | merged


def _merges(model: nn.Module) -> Iterator[tuple[list[str], str]]:
    """The names of layers of an expert, with ``*`` for its number, and of the parameter that holds them for all experts."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:  # earlier releases have a module for each expert
        return
    if not hasattr(model, "config"):
        return
    for converter in get_model_conversion_mapping(model):  # type: ignore[arg-type]
        operations = [type(each).__name__ for each in getattr(converter, "operations", None) or ()]
        if operations in _MERGES and len(converter.target_patterns) == 1:
            yield list(converter.source_patterns), converter.target_patterns[0]


def layers_of_experts(model: nn.Module, name: str, stack: QuantMatrixStack) -> dict[str, Layer]:
    """The layers, by name, as which checkpoints hold the experts that are one parameter called ``name`` in ``model``."""
    merges = [(sources, name.removesuffix(target)) for sources, target in _merges(model) if name.endswith(target)]
    if not merges or stack.inputs_first:
        raise FormatError(
            "it holds the matrices of all experts, and transformers does not say by which names a checkpoint has each"
        )
    sources, before = merges[0]
    array, rows = stack.array_alone(), stack.shape[1] // len(sources)
    found: dict[str, Layer] = {}
    for number in range(len(stack)):
        for place, source in enumerate(sources):
            first = number * stack.shape[1] + place * rows
            part = _rows(array, slice(first, first + rows))
            layer = LinearWeight.from_quantized(part) if part.scheme.dtype.is_integer else QuantizedLinear(part)
            found[before + source.removesuffix(".weight").replace("*", str(number))] = layer
    return found


def experts_in_float(model: nn.Module) -> dict[str, list[list[str]]]:
    """The layers, by name, as which checkpoints hold what is left in float of experts in one parameter: those of each."""
    found = {}
    merges = list(_merges(model))
    for name, parameter in model.named_parameters():
        for sources, target in merges:
            if name.endswith(target) and parameter.dim() == 3 and parameter.is_floating_point():
                before, each = name.removesuffix(target), [source.removesuffix(".weight") for source in sources]
                found[name] = [[before + part.replace("*", str(n)) for part in each] for n in range(len(parameter))]
    return found


def with_experts_apart(
    tensors: Iterable[tuple[str, Tensor]], experts: dict[str, list[list[str]]]
) -> Iterator[tuple[str, Tensor]]:
    """``tensors`` of a checkpoint, with the matrices of each of the ``experts`` that :func:`experts_in_float` found."""
    for name, tensor in tensors:
        if name not in experts:
            yield name, tensor
            continue
        for layers, matrix in zip(experts[name], tensor, strict=True):
            for layer, part in zip(layers, matrix.chunk(len(layers)), strict=True):
                yield f"{layer}.weight", part


def with_experts_together(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` of a checkpoint with the weights of float experts as the parameters of ``model`` that hold them."""
    layers = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    for parameter, names in fused_experts(model, layers).items():
        parts, shape = [tensors.pop(f"{name}.weight") for name in names], tuple(model.get_parameter(parameter).shape)
        if {part.shape[1:] for part in parts} != {shape[2:]} or sum(len(part) for part in parts) != shape[0] * shape[1]:
            raise FormatError(
                f"{names[0]!r} and {len(names) - 1} others make up a parameter of shape {shape}, found the shapes "
                f"{sorted({tuple(part.shape) for part in parts})}"
            )
        tensors[parameter] = torch.cat(parts).reshape(shape)
    return tensors


def _rows(array: QuantizedArray, part: slice) -> QuantizedArray:
    """Some rows of a matrix whose scales are those of its rows."""

    def of_rows(parameter: Any) -> Any:
        return parameter if parameter is None or parameter.ndim == 0 else parameter[part]

    codes = array.codes[part]
    shape = (int(codes.shape[0]), array.shape[1])
    return replace(array, codes=codes, scale=of_rows(array.scale), zero_point=of_rows(array.zero_point), shape=shape)


def _as_expression(source: str) -> str:
    """``mlp.experts.*.up_proj.weight`` as an expression for the names of layers, with what stands before and the number."""
    before, _, behind = source.removesuffix(".weight").partition("*")
    return rf"(.*){re.escape(before)}(\d+){re.escape(behind)}"


def stack_of(
    model: nn.Module, parameter: str, names: Sequence[str], checkpoint: QuantizedCheckpoint
) -> tuple[QuantModule, Tensor | None]:
    """The packed matrices that take the place of a parameter, and the biases of a layer that holds all of them.

    Their inputs are in float, and that is said if need be.
    """
    parts, biases = [], []
    for name in names:
        layer = checkpoint.layer(name)
        parts.append(_with_row_scales(layer, name).pack())
        biases += [] if layer.bias is None else [torch.as_tensor(layer.bias)]
        if name == names[0] and isinstance(layer, QuantizedLinear) and layer.activation is not None:
            logger.warning(
                "inputs of experts that are held together stay in float here, and the checkpoint has them in %s: %s, ...",
                layer.activation.dtype.name,
                name,
            )
    schemes, rows = {part.scheme for part in parts}, sum(part.shape[0] for part in parts)
    open_stacks(model, [parameter])
    base = model.get_submodule(parameter)
    assert isinstance(base, MatrixStack)
    if len(schemes) > 1 or (rows, parts[0].shape[1]) != tuple(base.weight.shape):
        shapes = sorted({part.shape for part in parts})
        raise FormatError(
            f"{checkpoint.folder}: {names[0]!r} and {len(names) - 1} others make up a parameter of shape "
            f"{tuple(base.shape)} in one data type; found the shapes {shapes} in {len(schemes)} ways of quantizing"
        )
    state = {f"weight_{name}": torch.cat(tensors) for name, tensors in _fields(parts).items()}
    scheme = OpScheme(weight=schemes.pop(), mode="weight_only")
    bias = torch.cat(biases).reshape(len(base), -1) if biases else None
    return quantized_module(base, scheme, state=state), bias


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
