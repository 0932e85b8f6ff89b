"""Streaming statistics equal the plain sums over all vectors."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_compressor.algorithms import InputStatistics, ScarceData
from neural_compressor.errors import CalibrationError


def seen(*batches: Any) -> InputStatistics:
    statistics = InputStatistics()
    for batch in batches:
        statistics.update(*batch) if isinstance(batch, tuple) else statistics.update(batch)
    return statistics


def numbers(count: int, inputs: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((count, inputs)).astype(np.float32)


@pytest.mark.parametrize("inputs", [1, 7, 256, 300, 2100])
def test_sums_are_those_of_all_vectors(inputs: int) -> None:
    x = numbers(40, inputs)
    statistics = seen(x[:13].reshape(1, 13, inputs), x[13:13], x[13:].reshape(3, 9, inputs))
    exact = x.astype(np.float64)
    np.testing.assert_allclose(statistics.hessian, exact.T @ exact, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(statistics.mean_abs, np.abs(exact).mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.mean_square, (exact**2).mean(0), rtol=1e-5)
    np.testing.assert_array_equal(statistics.absmax, np.abs(x).max(0))
    assert statistics.count == 40
    assert statistics.cross is None


def test_asking_does_not_disturb_what_comes_later() -> None:
    x = numbers(40, 300)
    statistics = seen(x[:13])
    np.testing.assert_array_equal(statistics.hessian, statistics.hessian.T)
    statistics.update(x[13:])
    np.testing.assert_array_equal(statistics.hessian, seen(x[:13], x[13:]).hessian)


def test_cross_is_the_sum_with_the_difference() -> None:
    x, reference = numbers(50, 300), numbers(50, 300, seed=1)
    statistics = seen((x[:20], reference[:20]), (x[20:], reference[20:]))
    exact = x.astype(np.float64).T @ (reference.astype(np.float64) - x)
    np.testing.assert_allclose(statistics.cross, exact, rtol=1e-5, atol=1e-4)


def test_a_small_difference_keeps_its_digits() -> None:
    x = numbers(500, 4) + 100
    reference = x + np.float32(2.0**-14)  # exact in float32 at this size
    cross = seen((x, reference)).cross
    np.testing.assert_allclose(cross, np.repeat(x.sum(0)[:, None], 4, axis=1) * 2.0**-14, rtol=1e-4)


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 30), max_size=4), with_reference=st.booleans())
def test_merged_parts_equal_the_whole(cuts: list[int], with_reference: bool) -> None:
    x, reference = numbers(30, 5), numbers(30, 5, seed=1)
    edges = [0, *sorted(cuts), 30]
    merged = InputStatistics()
    for start, stop in itertools.pairwise(edges):
        part = (x[start:stop], reference[start:stop]) if with_reference else x[start:stop]
        merged = merged.merge(seen(part))
    whole = seen((x, reference) if with_reference else x)
    assert merged.count == 30
    np.testing.assert_allclose(merged.hessian, whole.hessian, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(merged.mean_abs, whole.mean_abs, rtol=1e-5)
    np.testing.assert_array_equal(merged.absmax, whole.absmax)
    if with_reference:
        np.testing.assert_allclose(merged.cross, whole.cross, rtol=1e-4, atol=1e-4)


def test_merging_shares_nothing() -> None:
    first, nothing = seen((numbers(5, 3), numbers(5, 3, 1))), InputStatistics()
    hessian, cross = first.hessian.copy(), first.cross.copy()
    for merged in (first.merge(nothing), nothing.merge(first)):
        merged.update(numbers(5, 3), numbers(5, 3, 1))
        np.testing.assert_array_equal(first.hessian, hessian)
        np.testing.assert_array_equal(first.cross, cross)


def test_memory_does_not_grow_with_the_number_of_vectors() -> None:
    short, long = seen(numbers(1, 30)), seen(*(numbers(50, 30, seed) for seed in range(100)))
    assert len(pickle.dumps(long)) <= len(pickle.dumps(short)) + 64


def test_they_travel_between_processes() -> None:
    statistics = seen(numbers(9, 4))
    back = pickle.loads(pickle.dumps(statistics))
    np.testing.assert_array_equal(back.hessian, statistics.hessian)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_torch_gives_the_same_sums(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(numbers(64, 300)).to(getattr(torch, name)).requires_grad_()
    exact = x.detach().double().numpy()
    statistics = seen(x[:10], x[10:])
    assert statistics.hessian.dtype == torch.float32
    assert not statistics.hessian.requires_grad
    np.testing.assert_allclose(statistics.hessian.numpy(), exact.T @ exact, rtol=1e-5, atol=1e-4)
    merged = seen(numbers(3, 300)).merge(statistics)
    assert isinstance(merged.hessian, np.ndarray)
    assert merged.count == 67


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_are_refused_and_not_counted(bad: float) -> None:
    statistics, x = seen(numbers(4, 3)), numbers(4, 3)
    before = statistics.hessian.copy()
    spoilt = x.copy()
    spoilt[1, 2] = bad
    with pytest.raises(CalibrationError, match="NaN or Inf"):
        statistics.update(spoilt)
    with pytest.raises(CalibrationError, match="NaN or Inf"):
        statistics.update(x, spoilt)
    np.testing.assert_array_equal(statistics.hessian, before)
    assert statistics.count == 4


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(CalibrationError, match="no data reached"):
        _ = InputStatistics().mean_abs
    with pytest.raises(CalibrationError, match="keeps its width"):
        seen(numbers(4, 3), numbers(4, 5))
    with pytest.raises(CalibrationError, match="keeps its width"):
        seen(numbers(4, 3)).merge(seen(numbers(4, 5)))
    with pytest.raises(CalibrationError, match="same places"):
        seen((numbers(4, 3), numbers(5, 3)))
    with pytest.raises(CalibrationError, match="reference, or none"):
        seen(numbers(4, 3), (numbers(4, 3), numbers(4, 3)))
    with pytest.raises(CalibrationError, match="reference"):
        seen(numbers(4, 3)).merge(seen((numbers(4, 3), numbers(4, 3))))
    with pytest.raises(CalibrationError, match="single number"):
        seen(np.float32(3.0))


def test_the_pull_on_one_weight_is_that_of_all_and_smaller() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 12)).astype(np.float32)
    reference = x + 0.1 * rng.standard_normal((64, 12)).astype(np.float32)
    weight = rng.standard_normal((5, 12)).astype(np.float32)
    whole, narrow, wide = InputStatistics(), InputStatistics(weight=weight), InputStatistics(weight=weight.T[:, :5])
    for seen in (whole, narrow):
        seen.update(x[:40], reference[:40])
        seen.update(x[40:], reference[40:])
    expected = weight @ (reference - x).T @ x
    for seen in (whole, narrow, narrow.merge(InputStatistics(weight=weight))):
        np.testing.assert_allclose(seen.pull(weight), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(seen.pull(weight, slice(2, 4)), expected[2:4], rtol=1e-4, atol=1e-4)
    assert whole.cross is not None
    assert narrow.cross is None
    with pytest.raises(CalibrationError, match="kept for one weight"):
        narrow.merge(whole)
    with pytest.raises(CalibrationError, match="kept for a weight of shape"):
        narrow.pull(weight[:3])
    wide.update(x[:, :5], reference[:, :5])
    assert wide.cross is not None, "where a weight is no smaller, the sums serve any"


def test_there_is_no_pull_without_a_reference() -> None:
    seen = InputStatistics(weight=np.ones((1, 3), dtype=np.float32))
    seen.update(np.ones((2, 3), dtype=np.float32))
    assert not seen.has_reference
    with pytest.raises(CalibrationError, match="no reference"):
        seen.pull(np.ones((1, 3), dtype=np.float32))


def test_bfloat16_is_compared_in_bfloat16_where_that_is_fast() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(numbers(40, 300)).to(torch.bfloat16)
    reference = x + torch.from_numpy(0.1 * numbers(40, 300, 1)).to(torch.bfloat16)
    weight = torch.from_numpy(numbers(280, 300, 2))
    for kept in (None, weight):
        exact, fast = InputStatistics(weight=kept), InputStatistics(weight=kept, fast_bf16=True)
        for statistics in (exact, fast):
            statistics.update(x, reference)
        assert torch.equal(exact.hessian, fast.hessian), "which must stay positive definite"
        wanted, found = exact.pull(weight), fast.pull(weight)
        assert not torch.equal(wanted, found)
        assert float((wanted - found).norm() / wanted.norm()) < 0.01


def test_no_update_follows_once_the_hessian_was_taken() -> None:
    statistics = seen(numbers(5, 3))
    hessian = statistics.take_hessian()
    with pytest.raises(CalibrationError, match="was taken out"):
        statistics.update(numbers(5, 3))
    with pytest.raises(CalibrationError, match="was taken out"):
        _ = statistics.hessian
    np.testing.assert_array_equal(hessian, seen(numbers(5, 3)).hessian)
    np.testing.assert_allclose(statistics.mean_square, (numbers(5, 3) ** 2).mean(0), rtol=1e-5)


def test_layers_with_too_few_vectors_are_told_of_together(caplog: pytest.LogCaptureFixture) -> None:
    told = ScarceData()
    told.note(["enough"], "gptq", seen(numbers(16, 64)))
    told.note(["none"], "gptq", None)
    told.warn()
    assert not caplog.records
    told.note(["some"], "gptq", seen(numbers(15, 64)))
    told.note(["q", "k"], "awq", seen(numbers(1, 64)))
    told.warn()
    assert len(caplog.records) == 1
    assert "awq saw 1 vector of the 64 inputs of layer 'q' (and 2 other layers)" in caplog.text
    assert "64 vectors would do" in caplog.text
