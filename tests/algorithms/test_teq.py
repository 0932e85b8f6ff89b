"""TEQ: the closed-form gradient against autograd, and training that pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import InputStatistics, awq_scale, quadratic_loss, rtn, teq_scale
from neural_compressor.algorithms.input_scaling import ScalingProblem
from neural_compressor.algorithms.teq import teq_gradient
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerGroup, TensorScheme

SCHEME = TensorScheme(dtype("int3"), True, PerGroup(32))


def autograd(
    weight: Any, scale: Any, hessian: Any, scheme: TensorScheme, size: int, full_range: bool = False
) -> tuple[float, Any]:
    """The same loss with torch's autograd, rounding straight through and the steps following the ranges."""
    torch = pytest.importorskip("torch")
    log_scale = torch.from_numpy(np.log(scale)).double().requires_grad_()
    w, h = torch.from_numpy(weight).double(), torch.from_numpy(hessian).double()
    scaled = w * torch.exp(log_scale)
    parts = scaled.split(size, dim=1) if size else [scaled]
    rounded = []
    for part in parts:
        axis = {"dim": 1, "keepdim": True} if size else {}
        if scheme.symmetric:
            step = part.abs().amax(**axis) / (-scheme.dtype.min if full_range else scheme.dtype.max)
            if full_range:
                step = torch.where(part.amax(**axis) > -part.amin(**axis), -step, step)
        else:
            low, high = part.amin(**axis).clamp(max=0), part.amax(**axis).clamp(min=0)
            step = (high - low) / (2**scheme.dtype.bits - 1)
        steps = part / step
        codes = torch.round(steps)
        if scheme.symmetric:
            codes = codes.clamp(scheme.dtype.min, scheme.dtype.max)
        rounded.append((steps + (codes - steps).detach()) * step)
    error = w - torch.cat(rounded, dim=1) / torch.exp(log_scale)
    loss = ((error @ h) * error).sum()
    loss.backward()
    return loss.item(), log_scale.grad.numpy()


@pytest.mark.parametrize(("part", "size"), [(PerGroup(32), 32), (PerGroup(40), 40), (PER_CHANNEL, 96), (PER_TENSOR, 0)])
@pytest.mark.parametrize("full_range", [True, False])
def test_the_gradient_is_that_of_autograd(
    part: Any, size: int, full_range: bool, weight: Any, statistics: InputStatistics
) -> None:
    scale = np.exp(0.3 * np.random.default_rng(0).standard_normal(96)).astype(np.float32)
    scheme = TensorScheme(dtype("int4"), True, part)
    expected_loss, expected = autograd(weight, scale, statistics.hessian, scheme, size, full_range)
    problem = ScalingProblem([weight], statistics.hessian, scheme, full_range)
    loss, gradient = teq_gradient(weight, scale, problem)
    assert loss == pytest.approx(expected_loss, rel=1e-3)
    assert loss == pytest.approx(problem.loss(weight, scale), rel=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-2, atol=2e-3 * np.abs(expected).max())


def test_the_gradient_is_that_of_autograd_on_an_asymmetric_grid(statistics: InputStatistics) -> None:
    # Ends that are whole numbers of steps, so that rounding the zero point clips nothing.
    rng = np.random.default_rng(1)
    weight = rng.uniform(-3, 3, (10, 96)).astype(np.float32)
    weight[:, ::32], weight[:, 1::32] = -5.0, 10.0
    scheme = TensorScheme(dtype("uint4"), False, PerGroup(32))
    expected_loss, expected = autograd(weight, np.ones(96, np.float32), statistics.hessian, scheme, 32)
    problem = ScalingProblem([weight], statistics.hessian, scheme)
    loss, gradient = teq_gradient(weight, np.ones(96, np.float32), problem)
    assert loss == pytest.approx(expected_loss, rel=1e-3)
    np.testing.assert_allclose(gradient, expected, rtol=1e-2, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize(("name", "symmetric"), [("int4", True), ("uint3", False), ("nf4", True), ("mxfp4", True)])
def test_a_common_factor_has_no_gradient(name: str, symmetric: bool, weight: Any, statistics: InputStatistics) -> None:
    problem = ScalingProblem([weight], statistics.hessian, TensorScheme(dtype(name), symmetric, PerGroup(40)))
    gradient = teq_gradient(weight, np.ones(96, np.float32), problem)[1]
    assert abs(gradient.sum()) < 1e-3 * np.abs(gradient).sum()


@pytest.mark.parametrize("scheme", [SCHEME, TensorScheme(dtype("nf4"), True, PER_CHANNEL)], ids=["int3", "nf4"])
def test_training_pays(scheme: TensorScheme, weight: Any, statistics: InputStatistics) -> None:
    def loss(scale: Any) -> float:
        return quadratic_loss(weight, rtn(weight * scale, scheme).dequantize() / scale, statistics.hessian)

    found = loss(teq_scale([weight], statistics, scheme))
    searched = awq_scale([weight], statistics, scheme)
    assert found < 0.9 * loss(np.float32(1))
    assert found < 1.05 * loss(searched)


def test_it_is_never_worse_than_no_scale(statistics: InputStatistics) -> None:
    for seed in range(4):
        weight = np.random.default_rng(seed).standard_normal((8, 96)).astype(np.float32)
        # A rate this wild destroys any scale.
        scale = teq_scale([weight], statistics, SCHEME, lr=50.0, steps=5)
        problem = ScalingProblem([weight], statistics.hessian, SCHEME)
        assert problem.loss(weight, scale) <= problem.loss(weight, problem.ones())


def test_bad_input_is_refused(weight: Any, statistics: InputStatistics) -> None:
    for options in ({"steps": 0}, {"lr": 0.0}):
        with pytest.raises(ConfigError, match="at least one step"):
            teq_scale([weight], statistics, SCHEME, **options)
