"""The contract of an observer as a test suite: subclass it, say how to make the observer, inherit the tests."""

from __future__ import annotations

import pickle
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neural_compressor.dtypes import IntType, dtype
from neural_compressor.errors import CalibrationError
from neural_compressor.observers import OBSERVERS, Observer, make_observer
from neural_compressor.schemes import PER_TENSOR, PerChannel, TensorScheme

Batch = npt.NDArray[np.float32]


class ObserverContract:
    """What every observer must do.

    Subclass it as ``class TestMyObserver(ObserverContract)``, set ``algorithm`` to the name it is registered under, and
    override :meth:`make_observer` where it takes more than an axis.
    """

    algorithm: str
    #: How far merged parts may be from the whole, relative to the range: 0 where an observer only counts and compares.
    tolerance = 1e-6

    def make_observer(self, axis: int | None = None) -> Observer:
        """A fresh observer, per tensor or along ``axis``."""
        return OBSERVERS[self.algorithm](axis)

    # -- what the tests share ---------------------------------------------------------------------------------------

    def scheme(self, name: str = "int8", symmetric: bool = True, axis: int | None = None) -> TensorScheme:
        """A scheme that asks for this observer."""
        part = PER_TENSOR if axis is None else PerChannel(axis)
        return TensorScheme(dtype(name), symmetric, part, self.algorithm)

    def batches(self, count: int = 6, shape: tuple[int, ...] = (4, 3, 50)) -> list[Batch]:
        """Batches of different spread, the widest neither first nor last."""
        rng = np.random.default_rng(11)
        spread = 1 + np.arange(count) * 7 % count
        return [(rng.standard_normal(shape) * s).astype(np.float32) for s in spread]

    def seen(self, batches: list[Any], axis: int | None = None) -> Observer:
        """An observer that has seen ``batches``."""
        observer = self.make_observer(axis)
        for batch in batches:
            observer.update(batch)
        return observer

    def assert_same(self, a: Observer, b: Observer, axis: int | None = None) -> None:
        """Both give the same range, for a few data types."""
        for name, symmetric in (("int8", True), ("uint4", False), ("nf4", True)):
            scheme = self.scheme(name, symmetric, axis)
            for x, y in zip(a.range(scheme), b.range(scheme), strict=True):
                np.testing.assert_allclose(x, y, rtol=self.tolerance, atol=0)

    # -- what a range is --------------------------------------------------------------------------------------------

    def test_a_scheme_that_names_it_gets_it(self) -> None:
        assert self.algorithm in OBSERVERS
        made = make_observer(self.scheme(axis=1))
        assert type(made) is type(self.make_observer())
        assert made.axis == 1

    @pytest.mark.parametrize("axis", [None, 1])
    @pytest.mark.parametrize(
        ("name", "symmetric"), [("int8", True), ("uint8", False), ("int2", True), ("fp8_e4m3", True)]
    )
    def test_the_range_is_in_order_and_not_wider_than_the_data(
        self, axis: int | None, name: str, symmetric: bool
    ) -> None:
        batches = self.batches()
        low, high = self.seen(batches, axis).range(self.scheme(name, symmetric, axis))
        others = None if axis is None else (0, 2)
        whole = np.concatenate(batches)
        assert low.shape == high.shape == (() if axis is None else (3,))
        assert low.dtype == high.dtype == np.float32
        assert np.all(whole.min(axis=others) <= low)
        assert np.all(low <= high)
        assert np.all(high <= whole.max(axis=others))

    @pytest.mark.parametrize("value", [0.0, 2.5, -3e-30, 1e30])
    def test_a_constant_has_the_range_of_one_value(self, value: float) -> None:
        low, high = self.seen([np.full((2, 9), value, np.float32)]).range(self.scheme())
        assert low == high == np.float32(value)

    def test_one_value_is_enough(self) -> None:
        low, high = self.seen([np.asarray(-1.5, np.float32)]).range(self.scheme())
        assert low == high == -1.5

    def test_a_huge_outlier_does_no_harm(self) -> None:
        batches = self.batches()
        batches[2][0, 0, 0] = 3e37
        low, high = self.seen(batches).range(self.scheme())
        assert np.isfinite(low)
        assert np.isfinite(high)
        assert low < high

    def test_asking_twice_gives_the_same(self) -> None:
        observer = self.seen(self.batches())
        self.assert_same(observer, observer)

    # -- parts and the whole ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("axis", [None, 1])
    @pytest.mark.parametrize("cut", [1, 3, 5])
    def test_merged_parts_equal_the_whole(self, axis: int | None, cut: int) -> None:
        batches = self.batches()
        merged = self.seen(batches[:cut], axis).merge(self.seen(batches[cut:], axis))
        self.assert_same(merged, self.seen(batches, axis), axis)

    def test_many_workers_may_be_merged_in_any_grouping(self) -> None:
        batches = self.batches()
        parts = [self.seen([batch]) for batch in batches]
        from_left = reduce(lambda a, b: a.merge(b), parts)
        from_right = reduce(lambda a, b: b.merge(a), reversed(parts))
        self.assert_same(from_left, self.seen(batches))
        self.assert_same(from_right, self.seen(batches))

    def test_merging_leaves_the_parts_alone(self) -> None:
        batches = self.batches()
        first, second = self.seen(batches[:3]), self.seen(batches[3:])
        merged = first.merge(second)
        merged.update(np.full((2, 2), 1e6, np.float32))
        self.assert_same(first, self.seen(batches[:3]))
        self.assert_same(second, self.seen(batches[3:]))

    def test_an_observer_that_saw_nothing_adds_nothing(self) -> None:
        full, empty = self.seen(self.batches()), self.make_observer()
        self.assert_same(full.merge(empty), full)
        self.assert_same(empty.merge(full), full)

    def test_it_travels_between_processes(self) -> None:
        observer = self.seen(self.batches())
        self.assert_same(pickle.loads(pickle.dumps(observer)), observer)

    def test_observers_of_different_axes_do_not_merge(self) -> None:
        with pytest.raises(CalibrationError, match="merged"):
            self.seen(self.batches()).merge(self.seen(self.batches(), axis=1))

    # -- memory -----------------------------------------------------------------------------------------------------

    def test_memory_does_not_grow_with_the_number_of_batches(self) -> None:
        batches = self.batches(count=200, shape=(4, 30))
        short, long = self.seen(batches[:1]), self.seen(batches)
        # A counter may take a few bytes more; a batch would be 480.
        assert len(pickle.dumps(long)) <= len(pickle.dumps(short)) + 64

    # -- array libraries --------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("axis", [None, 1])
    def test_torch_gives_the_same_range(self, axis: int | None) -> None:
        torch = pytest.importorskip("torch")
        batches = self.batches()
        self.assert_same(self.seen([torch.from_numpy(b) for b in batches], axis), self.seen(batches, axis), axis)

    def test_short_floats_and_gradients_are_taken(self) -> None:
        torch = pytest.importorskip("torch")
        x = torch.linspace(-2, 2, 64, requires_grad=True)
        for short in (x.to(torch.bfloat16), x.to(torch.float16), x):
            low, high = self.seen([short]).range(self.scheme())
            assert -2 <= low < high <= 2

    # -- bad input --------------------------------------------------------------------------------------------------

    def test_no_data_is_an_error(self) -> None:
        for observer in (self.make_observer(), self.seen([np.zeros((0, 3), np.float32)])):
            with pytest.raises(CalibrationError, match="no data reached"):
                observer.range(TensorScheme(IntType(8)))

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_values_that_are_no_numbers_are_refused(self, bad: float) -> None:
        x = self.batches()[0]
        x[1, 1, 1] = bad
        with pytest.raises(CalibrationError, match="NaN or Inf"):
            self.make_observer().update(x)

    def test_the_number_of_channels_may_not_change(self) -> None:
        with pytest.raises(CalibrationError, match="channels"):
            self.seen([np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)], axis=1)
