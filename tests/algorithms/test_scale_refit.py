"""Refitted scales: against least squares solved row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import ALGORITHMS, InputStatistics, gptq, hqq, quadratic_loss, refit_scales, rtn
from neural_compressor.algorithms.scale_refit import keep_gain
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme


@pytest.mark.parametrize("part", [PerGroup(16), PerGroup(20), PER_CHANNEL], ids=str)
@pytest.mark.parametrize(("name", "symmetric"), [("int3", True), ("uint4", False), ("nf4", True)])
def test_it_is_close_to_the_least_squares_of_each_row(
    part: Any, name: str, symmetric: bool, weight: Any, statistics: InputStatistics
) -> None:
    array = rtn(weight, TensorScheme(dtype(name), symmetric, part))
    found = refit_scales(array, weight, statistics.hessian)
    np.testing.assert_array_equal(found.codes, array.codes)
    root = np.linalg.cholesky(statistics.hessian.astype(np.float64) + 1e-6 * np.eye(96))
    values = array.dequantize().astype(np.float64)
    group = np.arange(96) // getattr(part, "size", 96)
    best = 0.0
    for row in range(weight.shape[0]):
        columns = np.stack([(values[row] * (group == g)) @ root for g in range(group[-1] + 1)], axis=1)
        best += np.linalg.lstsq(columns, weight[row] @ root, rcond=None)[1].sum()
    after = quadratic_loss(weight, found.dequantize(), statistics.hessian)
    assert best * 0.999 <= after <= best * 1.02
    assert after < quadratic_loss(weight, array.dequantize(), statistics.hessian)


def test_no_row_gets_worse(weight: Any, statistics: InputStatistics) -> None:
    array = gptq(weight, statistics.hessian, TensorScheme(dtype("int2"), True, PerGroup(16)), search="mse").array
    found = refit_scales(array, weight, statistics.hessian)
    for row in range(weight.shape[0]):
        one = slice(row, row + 1)
        before = quadratic_loss(weight[one], array.dequantize()[one], statistics.hessian)
        assert quadratic_loss(weight[one], found.dequantize()[one], statistics.hessian) <= before * (1 + 1e-5)


def test_groups_without_codes_keep_their_scale(weight: Any, statistics: InputStatistics) -> None:
    array = rtn(weight, TensorScheme(dtype("int4"), True, PerGroup(16)))
    codes = array.codes.copy()
    codes[:, :16] = 0
    codes[0] = 0
    found = refit_scales(replace(array, codes=codes), weight, statistics.hessian)
    assert np.isfinite(found.scale).all()
    np.testing.assert_array_equal(found.scale[:, 0], array.scale[:, 0])
    np.testing.assert_array_equal(found.scale[0], array.scale[0])


def test_scales_that_are_not_free_are_refused(weight: Any, statistics: InputStatistics) -> None:
    for scheme in (TensorScheme(dtype("mxfp4")), TensorScheme(dtype("int8"))):
        with pytest.raises(ConfigError, match="cannot be refitted"):
            refit_scales(rtn(weight, scheme), weight, statistics.hessian)


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
