"""Making up for upstream error: against least squares, and on what the layer really computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import InputStatistics, gptq, upstream_pull
from neural_compressor.dtypes import dtype
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme


@pytest.fixture
def disturbed(vectors: Any) -> Any:
    """What the layer sees: the inputs, damped and mixed, with noise."""
    rng = np.random.default_rng(4)
    mix = 0.9 * np.eye(96) + 0.02 * rng.standard_normal((96, 96))
    noise = 0.05 * rng.standard_normal(vectors.shape) * np.abs(vectors).mean(0)
    return (vectors @ mix + noise).astype(np.float32)


@pytest.fixture
def both(vectors: Any, disturbed: Any) -> InputStatistics:
    seen = InputStatistics()
    seen.update(disturbed[:600], vectors[:600])
    return seen


def pull(weight: Any, seen: InputStatistics) -> Any:
    assert seen.cross is not None
    return lambda rows: upstream_pull(weight[rows, :], seen.cross)


def output_error(weight: Any, found: Any, vectors: Any, disturbed: Any) -> float:
    return float(((vectors @ weight.T - disturbed @ found.T) ** 2).sum())


def test_on_a_fine_grid_it_is_least_squares(weight: Any, vectors: Any, disturbed: Any, both: InputStatistics) -> None:
    fine = TensorScheme(dtype("int16"), True, PER_CHANNEL)
    found = gptq(
        weight, both.hessian, fine, pull=pull(weight, both), cross_mix=1.0, percdamp=1e-6, act_order=True
    ).dequantize()
    x, seen = vectors[:600].astype(np.float64), disturbed[:600].astype(np.float64)
    best = np.linalg.lstsq(seen, x @ weight.T, rcond=None)[0].T
    least = output_error(weight, best, x, seen)
    assert output_error(weight, found, x, seen) == pytest.approx(least, rel=1e-3)
    assert least < 0.5 * output_error(weight, weight, x, seen)


@pytest.mark.parametrize("options", [{}, {"act_order": True}, {"hybrid_order": True}, {"static_groups": True}])
def test_the_outputs_come_closer_to_the_float_model_on_unseen_data(
    options: Any, weight: Any, vectors: Any, disturbed: Any, both: InputStatistics
) -> None:
    scheme = TensorScheme(dtype("int4"), False, PerGroup(32))
    errors = [
        output_error(
            weight,
            gptq(weight, both.hessian, scheme, pull=pull(weight, both), cross_mix=mix, **options).dequantize(),
            vectors[600:],
            disturbed[600:],
        )
        for mix in (0.0, 0.5, 1.0)
    ]
    assert errors[2] < errors[1] < errors[0]
    plain = gptq(weight, both.hessian, scheme, **options).dequantize()
    assert output_error(weight, plain, vectors[600:], disturbed[600:]) == pytest.approx(errors[0])


def test_with_few_samples_it_does_no_harm(weight: Any, vectors: Any, disturbed: Any) -> None:
    seen = InputStatistics()
    seen.update(disturbed[:8], vectors[:8])
    scheme = TensorScheme(dtype("int4"), False, PerGroup(32))
    found = [
        gptq(weight, seen.hessian, scheme, pull=each, cross_mix=1.0).dequantize() for each in (None, pull(weight, seen))
    ]
    errors = [output_error(weight, values, vectors[600:], disturbed[600:]) for values in found]
    assert errors[1] < 1.5 * errors[0]


def test_no_upstream_error_changes_nothing(weight: Any, vectors: Any) -> None:
    seen = InputStatistics()
    seen.update(vectors, vectors)
    scheme = TensorScheme(dtype("int4"), True, PerGroup(32))
    found, plain = (gptq(weight, seen.hessian, scheme, pull=each) for each in (pull(weight, seen), None))
    np.testing.assert_array_equal(found.array.codes, plain.array.codes)


def test_a_cross_of_another_layer_is_refused(weight: Any, both: InputStatistics) -> None:
    assert both.cross is not None
    with pytest.raises(QuantizationError, match="another layer"):
        upstream_pull(weight, both.cross[:9, :9])
    with pytest.raises(QuantizationError, match="pull gives an array of shape"):
        gptq(weight, both.hessian, TensorScheme(dtype("int4")), pull=pull(weight[:9], both))
