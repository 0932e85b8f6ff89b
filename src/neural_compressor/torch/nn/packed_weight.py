"""Packed weights as buffers of a module: what its state, and so a checkpoint, holds of them."""

from __future__ import annotations

from torch import Tensor, nn

from neural_compressor.schemes import PackedArray, TensorScheme, quantize

_PARTS = {"packed": "data", "scale": "scale", "zero_point": "zero_point", "tensor_scale": "tensor_scale"}


def buffer_names(name: str) -> tuple[str, ...]:
    """The buffers of the weight ``name``; those with a question mark depend on the scheme.

    >>> buffer_names("weight")
    ('weight_packed', 'weight_scale', 'weight_zero_point?', 'weight_tensor_scale?')
    """
    return f"{name}_packed", f"{name}_scale", f"{name}_zero_point?", f"{name}_tensor_scale?"


def keep_packed(module: nn.Module, name: str, matrix: Tensor, scheme: TensorScheme) -> None:
    """Quantize ``matrix`` and register what is stored of it."""
    arrays = quantize(matrix, scheme).pack().arrays()
    for suffix, part in _PARTS.items():
        module.register_buffer(f"{name}_{suffix}", arrays.get(part))


def packed_array(module: nn.Module, name: str, scheme: TensorScheme, shape: tuple[int, ...]) -> PackedArray:
    """The packed weight ``name``; tensors that do not fit the scheme and the shape are refused."""
    found = {part: module._buffers.get(f"{name}_{suffix}") for suffix, part in _PARTS.items()}
    arrays = {part: tensor for part, tensor in found.items() if tensor is not None}
    return PackedArray.from_arrays(arrays, scheme, shape)
