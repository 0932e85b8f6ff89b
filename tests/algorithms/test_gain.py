"""Scales that keep the gain of a layer, against sums taken by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import ALGORITHMS, hqq, rtn
from neural_compressor.algorithms.rtn import keep_gain
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme


@pytest.mark.parametrize("part", [PerGroup(16), PerGroup(20), PER_CHANNEL], ids=str)
@pytest.mark.parametrize(("name", "symmetric"), [("int3", True), ("uint2", False), ("nf4", True)])
@pytest.mark.parametrize("algorithm", ["rtn", "hqq"])
def test_without_data_each_scale_keeps_its_gain(
    algorithm: str, part: Any, name: str, symmetric: bool, weight: Any
) -> None:
    if algorithm == "hqq" and symmetric:
        pytest.skip("hqq needs an asymmetric integer grid")
    scheme = TensorScheme(dtype(name), symmetric, part)
    options = {"search": "mse"} if algorithm == "rtn" else {}
    found = ALGORITHMS[algorithm](weight, scheme, **options)
    plain = {"rtn": rtn, "hqq": hqq}[algorithm](weight, scheme, **options)
    np.testing.assert_array_equal(found.array.codes, plain.codes)

    def gains(values: Any) -> Any:
        size = getattr(part, "size", 96)
        parts = [slice(start, start + size) for start in range(0, 96, size)]
        return np.stack([(weight * values)[:, p].sum(1) / (weight**2)[:, p].sum(1) for p in parts])

    np.testing.assert_allclose(gains(found.dequantize()), 1.0, atol=1e-4)
    assert np.abs(gains(plain.dequantize()) - 1).max() > 0.01


def test_where_no_scale_is_free_or_no_code_is_left_the_gain_stays(weight: Any) -> None:
    for scheme in (TensorScheme(dtype("mxfp4")), TensorScheme(dtype("int8"))):
        array = rtn(weight, scheme)
        assert keep_gain(array, weight) is array
    array = rtn(weight, TensorScheme(dtype("int4"), True, PerGroup(16)))
    empty = keep_gain(replace(array, codes=array.codes * 0), weight)
    np.testing.assert_array_equal(empty.scale, array.scale)


def test_a_transposed_weight_gives_the_same_bits(weight: Any) -> None:
    scheme = TensorScheme(dtype("uint4"), False, PerGroup(32))
    turned = np.ascontiguousarray(weight.T).T
    for algorithm, options in (("hqq", {}), ("rtn", {"search": "mse"})):
        found, same = (ALGORITHMS[algorithm](each, scheme, **options) for each in (turned, weight))
        np.testing.assert_array_equal(found.dequantize(), same.dequantize())
