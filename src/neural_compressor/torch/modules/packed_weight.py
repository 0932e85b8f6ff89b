"""Packed weights as buffers of a module: what its state, and so a checkpoint, holds of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from neural_compressor.errors import FormatError
from neural_compressor.schemes import PackedArray, QuantizedArray, TensorScheme, is_pair_safe, quantize, quantize_pairs

_PARTS = {"packed": "data", "scale": "scale", "zero_point": "zero_point", "tensor_scale": "tensor_scale"}


def buffer_names(name: str, scales: TensorScheme | None = None) -> tuple[str, ...]:
    """The buffers of the weight ``name``; those with a question mark depend on its scheme.

    ``scales`` is what the scheme says of the scales.

    >>> buffer_names("weight")
    ('weight_packed', 'weight_scale', 'weight_zero_point?', 'weight_tensor_scale?')
    """
    scale = parameter_names(f"{name}_scale", scales)
    return f"{name}_packed", *scale, f"{name}_zero_point?", f"{name}_tensor_scale?"


def quantized_matrix(matrix: Tensor, scheme: TensorScheme, pairs: np.ndarray) -> QuantizedArray:
    """``matrix`` in the codes of its scheme; ``pairs`` are the columns that kernels add in 16 bits."""
    return quantize_pairs(matrix, scheme, pairs) if scheme.pair_safe else quantize(matrix, scheme)


def keep_packed(module: nn.Module, name: str, matrix: Tensor, scheme: TensorScheme, pairs: np.ndarray) -> None:
    """Quantize ``matrix`` and register what is stored of it."""
    keep_array(module, name, quantized_matrix(matrix, scheme, pairs).pack())


def keep_array(module: nn.Module, name: str, array: PackedArray) -> None:
    """Register what is stored of ``array``."""
    for suffix, part in _PARTS.items():
        keep_parameter(module, f"{name}_{suffix}", getattr(array, part))


def packed_array(module: nn.Module, name: str, scheme: TensorScheme, shape: tuple[int, ...]) -> PackedArray:
    """The packed weight ``name``; tensors that do not fit the scheme and the shape are refused."""
    found = {part: module._buffers.get(f"{name}_{suffix}") for suffix, part in _PARTS.items()}
    arrays = {part: tensor for part, tensor in found.items() if tensor is not None}
    try:
        return PackedArray.from_arrays(arrays, scheme, shape)
    except FormatError as error:
        raise FormatError(f"{name!r}: {error}") from error


def check_pairs(array: PackedArray, pairs: np.ndarray) -> None:
    """Refuse a weight whose scheme says that it is safe in pairs and whose codes are not: a kernel would overflow."""
    if array.scheme.pair_safe and not is_pair_safe(array.unpack().codes, pairs):
        raise FormatError(
            "the stored weight is said to be safe in pairs (pair_safe), and its codes are not: it was changed"
        )


# -- scales and zero points: floats, or where a scheme says how packed themselves -----------------------------------


def parameter_names(name: str, how: TensorScheme | None) -> tuple[str, ...]:
    """The buffers of the scales or zero points ``name``.

    >>> from neural_compressor.dtypes import dtype
    >>> parameter_names("weight_scale", TensorScheme(dtype("uint8"), False))[:2]
    ('weight_scale_packed', 'weight_scale_scale')
    """
    return (name,) if how is None else buffer_names(name.removesuffix("?"), how.scales)


def keep_parameter(module: nn.Module, name: str, parameter: Tensor | PackedArray | None) -> None:
    """Register what is stored of scales or zero points."""
    if isinstance(parameter, PackedArray):
        keep_array(module, name, parameter)
    else:
        module.register_buffer(name, None if parameter is None else torch.as_tensor(parameter).contiguous())


def stored_parameter(
    module: nn.Module, name: str, how: TensorScheme | None, shape: tuple[int, ...]
) -> Tensor | PackedArray | None:
    """The scales or zero points ``name`` as they are stored, in ``shape`` where they are packed."""
    return module._buffers.get(name) if how is None else packed_array(module, name, how, shape)
