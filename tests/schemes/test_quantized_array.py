"""Quantized tensors, stored and read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from neural_compressor.dtypes import CodebookType, dtype
from neural_compressor.errors import FormatError, QuantizationError
from neural_compressor.schemes import PER_CHANNEL, PackedArray, PerGroup, QuantizedArray, TensorScheme, quantize

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (8, 3, 3, 3), (4, 1, 3, 3), (2, 3, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("name", ["int8", "int4", "uint3", "int11", "fp8_e4m3", "nf4", "bf16", "fp32"])
def test_any_shape_comes_back(shape: tuple[int, ...], name: str) -> None:
    x = np.asarray(RNG.standard_normal(shape), np.float32)
    q = quantize(x, TensorScheme(dtype(name)))
    back = q.pack().unpack()
    assert back.dequantize().shape == shape
    assert np.array_equal(back.dequantize(), q.dequantize())
    assert np.array_equal(back.codes, q.codes)


@pytest.mark.parametrize(
    ("name", "symmetric", "granularity", "expected"),
    [
        ("int8", True, PER_CHANNEL, 64 * 576 + 64 * 4),
        ("int4", True, PER_CHANNEL, 64 * 288 + 64 * 4),
        ("int2", True, PER_CHANNEL, 64 * 144 + 64 * 4),
        ("uint4", False, PER_CHANNEL, 64 * 288 + 64 * 5),
        ("uint12", False, PER_CHANNEL, 64 * 864 + 64 * 8),
        ("mxfp4", True, PER_CHANNEL, 64 * 288 + 64 * 64 * 3),
        ("fp32", True, PER_CHANNEL, 64 * 576 * 4),
        ("bf16", True, PER_CHANNEL, 64 * 576 * 2),
    ],
)
def test_a_convolution_takes_its_bits_and_no_more(
    name: str, symmetric: bool, granularity: object, expected: int
) -> None:
    x = RNG.standard_normal((64, 64, 3, 3)).astype(np.float32)
    q = quantize(x, TensorScheme(dtype(name), symmetric, granularity))  # type: ignore[arg-type]
    stored = sum(array.nbytes for array in q.pack().arrays().values())
    assert q.nbytes_packed == stored == expected


def test_packed_rows_can_be_taken_alone() -> None:
    x = RNG.standard_normal((6, 10)).astype(np.float32)
    scheme = TensorScheme(dtype("int3"), False, PER_CHANNEL)
    q = quantize(x, scheme)
    arrays = {name: array[2:4] for name, array in q.pack().arrays().items()}
    part = PackedArray.from_arrays(arrays, scheme, (2, 10)).unpack()
    assert np.array_equal(part.dequantize(), q.dequantize()[2:4])


def stored() -> tuple[dict[str, np.ndarray], TensorScheme]:
    scheme = TensorScheme(dtype("uint4"), False, PerGroup(8))
    return quantize(RNG.standard_normal((4, 16)).astype(np.float32), scheme).pack().arrays(), scheme


def test_what_is_stored_is_named() -> None:
    arrays, _ = stored()
    assert {name: array.shape for name, array in arrays.items()} == {
        "data": (4, 8),
        "scale": (4, 2),
        "zero_point": (4, 2),
    }
    assert arrays["zero_point"].dtype == np.uint8


@pytest.mark.parametrize("name", ["data", "scale", "zero_point"])
def test_missing_and_truncated_arrays_are_refused(name: str) -> None:
    arrays, scheme = stored()
    missing = {key: array for key, array in arrays.items() if key != name}
    with pytest.raises(FormatError, match=r"uint4 tensor of shape \(4, 16\)"):
        PackedArray.from_arrays(missing, scheme, (4, 16))
    with pytest.raises(FormatError, match=f"'{name}'"):
        PackedArray.from_arrays({**arrays, name: arrays[name][:-1]}, scheme, (4, 16))


def test_extra_arrays_and_other_types_are_refused() -> None:
    arrays, scheme = stored()
    with pytest.raises(FormatError, match="extra"):
        PackedArray.from_arrays({**arrays, "extra": arrays["scale"]}, scheme, (4, 16))
    for name in arrays:
        with pytest.raises(FormatError, match=f"'{name}'.*float64"):
            PackedArray.from_arrays({**arrays, name: arrays[name].astype(np.float64)}, scheme, (4, 16))


def test_codes_that_mean_nothing_do_not_pass_for_numbers() -> None:
    ternary = TensorScheme(CodebookType("ternary", (-1.0, 0.0, 1.0)))
    arrays = quantize(np.float32([-1.0, 0.0, 1.0, 1.0]), ternary).pack().arrays()
    arrays["data"] = np.full_like(arrays["data"], 0xFF)
    assert np.isnan(PackedArray.from_arrays(arrays, ternary, (4,)).unpack().dequantize()).all()


def test_torch_tensors_are_stored_as_torch_tensors() -> None:
    q = quantize(torch.randn(4, 40), TensorScheme(dtype("nvfp4")))
    arrays = q.pack().arrays()
    assert {name: str(array.dtype) for name, array in arrays.items()} == {
        "data": "torch.uint8",
        "scale": "torch.uint8",
        "tensor_scale": "torch.float32",
    }
    back = PackedArray.from_arrays(arrays, q.scheme, (4, 40)).unpack()
    assert torch.equal(back.dequantize(), q.dequantize())


# -- scales that are quantized themselves -----------------------------------------------------------------------------

SECOND = {
    "uint8 asym": TensorScheme(dtype("uint8"), False, PerGroup(16)),
    "int6 sym": TensorScheme(dtype("int6"), True, PerGroup(8)),
    "int3 in one run": TensorScheme(dtype("int3"), True, PER_CHANNEL),
    "fp8": TensorScheme(dtype("fp8_e4m3"), True, PerGroup(100)),
    "nf4": TensorScheme(dtype("nf4"), True, PerGroup(16)),
}


def nested(first: TensorScheme, second: TensorScheme) -> tuple[QuantizedArray, Any]:
    """A tensor with quantized scales, and its values by the definition."""
    plain = quantize(RNG.standard_normal((6, 40)).astype(np.float32), first)
    scale = quantize(plain.scale.reshape(1, -1), second)
    values = replace(plain, scale=scale.dequantize().reshape(plain.scale.shape)).dequantize()
    return replace(plain, scale=scale, scheme=replace(first, scales=second)), values


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
@pytest.mark.parametrize("name", ["int4", "uint3", "nf4"])
@pytest.mark.parametrize("part", [PerGroup(16), PER_CHANNEL], ids=str)
def test_quantized_scales_mean_the_numbers_they_stand_for(name: str, part: Any, second: TensorScheme) -> None:
    q, values = nested(TensorScheme(dtype(name), name != "uint3", part), second)
    assert np.array_equal(q.dequantize(), values)
    arrays = q.pack().arrays()
    assert q.nbytes_packed == sum(array.nbytes for array in arrays.values())
    back = PackedArray.from_arrays(arrays, q.scheme, q.shape).unpack()
    assert np.array_equal(back.dequantize(), values)
    assert np.array_equal(back.scale.codes, q.scale.codes)
    assert back.scheme == TensorScheme.from_dict(q.scheme.to_dict())


def test_quantized_scales_are_stored_as_arrays_of_their_own() -> None:
    q, _ = nested(TensorScheme(dtype("int4"), True, PerGroup(8)), SECOND["uint8 asym"])
    arrays = q.pack().arrays()
    assert {name: (array.shape, array.dtype.name) for name, array in arrays.items()} == {
        "data": ((6, 20), "uint8"),
        "scale.data": ((1, 30), "uint8"),
        "scale.scale": ((1, 2), "float32"),
        "scale.zero_point": ((1, 2), "uint8"),
    }
    for name in arrays:
        with pytest.raises(FormatError, match=f"'{name}'"):
            PackedArray.from_arrays({**arrays, name: arrays[name][..., :-1]}, q.scheme, q.shape)
    with pytest.raises(FormatError, match=r"'scale\.data'"):
        PackedArray.from_arrays({**arrays, "scale": q.qparams.scale}, q.scheme, q.shape)


def test_scales_are_what_the_scheme_says() -> None:
    first, second = TensorScheme(dtype("int4"), True, PerGroup(8)), SECOND["uint8 asym"]
    q, _ = nested(first, second)
    with pytest.raises(QuantizationError, match="asks for scales in uint8, and they are in float"):
        quantize(np.ones((2, 16), np.float32), q.scheme)
    with pytest.raises(QuantizationError, match="asks for scales in float, and they are in uint8"):
        replace(q, scheme=first)
