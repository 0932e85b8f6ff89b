"""AWQ: the scale found is the best of its grid, and clipping is weighed with the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import InputStatistics, awq_clip, awq_scale, quadratic_loss, round_scaled, rtn
from neural_compressor.algorithms.rtn import round_with
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme, quantize

SCHEME = TensorScheme(dtype("int3"), False, PerGroup(32))


def output_error(weights: list[Any], scale: Any, vectors: Any, scheme: TensorScheme = SCHEME) -> float:
    """What the published search measures: the squared difference of real outputs."""
    total = 0.0
    for weight in weights:
        rounded = quantize(weight * scale, scheme).dequantize()
        total += float(((vectors @ weight.T - (vectors / scale) @ rounded.T) ** 2).sum())
    return total


def published_candidates(weight: Any, statistics: InputStatistics, grid: int) -> list[Any]:
    groups = np.abs(weight).reshape(weight.shape[0], -1, 32)
    magnitude = (groups / groups.max(-1, keepdims=True)).reshape(weight.shape).mean(0)
    found = [np.ones(weight.shape[1], np.float32)]
    for alpha in np.arange(1, grid + 1) / grid:
        for scale in (statistics.mean_abs**alpha, statistics.mean_abs**alpha / magnitude ** (1 - alpha)):
            found.append((scale / np.sqrt(scale.max() * scale.min())).astype(np.float32))
    return found


def test_it_is_the_best_of_the_published_grid_measured_on_real_outputs(
    weight: Any, vectors: Any, statistics: InputStatistics
) -> None:
    candidates = published_candidates(weight, statistics, 8)
    losses = [output_error([weight], scale, vectors) for scale in candidates]
    found = awq_scale([weight], statistics, SCHEME, grid=8)
    np.testing.assert_allclose(found, candidates[int(np.argmin(losses))], rtol=1e-4)
    assert min(losses) < 0.9 * losses[0]


def test_weights_that_share_an_input_share_its_scale(weight: Any, vectors: Any, statistics: InputStatistics) -> None:
    other = weight[::-1, ::-1].copy() * 3
    together = awq_scale([weight, other], statistics, SCHEME)
    np.testing.assert_array_equal(together, awq_scale([np.concatenate([weight, other])], statistics, SCHEME))
    assert output_error([weight, other], together, vectors) < output_error([weight, other], np.float32(1), vectors)


def test_a_sample_of_the_rows_is_never_worse_than_no_scale(statistics: InputStatistics, vectors: Any) -> None:
    for seed in range(5):
        weight = np.random.default_rng(seed).standard_normal((40, 96)).astype(np.float32)
        scale = awq_scale([weight], statistics, SCHEME, rows=2, grid=5)
        assert output_error([weight], scale, vectors) <= output_error([weight], np.float32(1), vectors) * (1 + 1e-5)


def test_inputs_that_are_never_seen_do_no_harm(weight: Any, vectors: Any) -> None:
    vectors[:, 3] = 0
    seen = InputStatistics()
    seen.update(vectors)
    scale = awq_scale([weight], seen, SCHEME)
    assert np.isfinite(scale).all()
    assert (scale > 0).all()


@pytest.mark.parametrize("part", [PerGroup(32), PerGroup(40), PER_CHANNEL], ids=str)
def test_clipping_weighs_each_group_with_its_own_inputs(part: Any, weight: Any, statistics: InputStatistics) -> None:
    scheme = TensorScheme(dtype("int3"), False, part)
    size = getattr(part, "size", 96)

    def by_group(array: Any) -> Any:
        error = weight - array.dequantize()
        parts = [slice(i, i + size) for i in range(0, 96, size)]
        return np.stack([((error[:, p] @ statistics.hessian[p, p]) * error[:, p]).sum(1) for p in parts], axis=1)

    clipped = round_with(weight, scheme, awq_clip(weight, statistics.hessian, scheme))
    plain, alone = by_group(rtn(weight, scheme)), by_group(rtn(weight, scheme, statistics.mean_square, "mse"))
    assert np.all(by_group(clipped) <= plain * (1 + 1e-4))
    assert by_group(clipped).sum() < alone.sum()


@pytest.mark.parametrize("name", ["int4", "nf4", "mxfp4"])
def test_rounding_under_a_scale_says_what_the_layer_must_do(
    name: str, weight: Any, vectors: Any, statistics: InputStatistics
) -> None:
    scheme = TensorScheme(dtype(name), True, PerGroup(32))
    scale = np.exp(0.3 * np.random.default_rng(2).standard_normal(96)).astype(np.float32)
    result = round_scaled(weight, scheme, statistics.hessian, scale, clip=False)
    np.testing.assert_array_equal(result.array.dequantize(), rtn(weight * scale, scheme).dequantize())
    np.testing.assert_allclose(
        vectors @ result.dequantize().T, (vectors / scale) @ result.array.dequantize().T, rtol=1e-3, atol=1e-3
    )
    clipped = round_scaled(weight, scheme, statistics.hessian, scale)
    assert quadratic_loss(weight, clipped.dequantize(), statistics.hessian) <= quadratic_loss(
        weight, result.dequantize(), statistics.hessian
    )
    assert round_scaled(weight, scheme, statistics.hessian, np.ones(96, np.float32)).input_scale is None


def test_bad_input_is_refused(weight: Any, statistics: InputStatistics) -> None:
    with pytest.raises(ConfigError, match="at least one point"):
        awq_scale([weight], statistics, SCHEME, grid=0)
    with pytest.raises(QuantizationError, match="no weights"):
        awq_scale([], statistics, SCHEME)
    with pytest.raises(QuantizationError, match="share an input"):
        awq_scale([weight, weight[:, :50]], statistics, SCHEME)
