"""Quantized tensors, stored and read back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neural_compressor.dtypes import CodebookType, dtype
from neural_compressor.errors import FormatError
from neural_compressor.schemes import PER_CHANNEL, PackedArray, PerGroup, TensorScheme, quantize

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
