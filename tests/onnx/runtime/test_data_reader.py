"""A reader is gone over as often as it is needed, and says where it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from neural_compressor.errors import CalibrationError
from neural_compressor.onnx.runtime.batches import RecordedReader
from neural_compressor.onnx.runtime.data_reader import CalibrationDataReader, Samples, example_of


class Once(CalibrationDataReader):
    """Three samples, and no way back."""

    def __init__(self) -> None:
        self.left: list[Any] = [{"x": 1}, {"x": 2}, {"x": 3}]

    def get_next(self) -> Mapping[str, Any] | None:
        return self.left.pop(0) if self.left else None


class Again(Once):
    """The same from the start."""

    def rewind(self) -> None:
        self.__init__()  # type: ignore[misc]


class Unrelated:
    """No subclass: the interface is enough."""

    def get_next(self) -> Any:
        return None


def test_several_passes() -> None:
    samples = Samples(Again())
    assert [list(samples), list(samples)] == [[{"x": 1}, {"x": 2}, {"x": 3}]] * 2


def test_a_limit() -> None:
    samples = Samples(Again(), limit=2)
    assert list(samples) == list(samples) == [{"x": 1}, {"x": 2}]


def test_without_rewind_once_is_enough_and_twice_is_refused() -> None:
    samples = Samples(Once())
    assert len(list(samples)) == 3
    with pytest.raises(CalibrationError, match=r"Once has no rewind\(\)"):
        list(samples)


def test_no_samples() -> None:
    with pytest.raises(CalibrationError, match="gave no samples"):
        list(Samples(Unrelated()))


def test_no_reader() -> None:
    with pytest.raises(CalibrationError, match="got calibration data of type list"):
        Samples([1, 2])


def test_samples_that_are_not_by_name() -> None:
    reader = Once()
    reader.left = [[1, 2]]
    with pytest.raises(CalibrationError, match="sample 0 is of type list"):
        list(Samples(reader))


def test_an_example_can_be_given_out_again() -> None:
    reader = Again()
    assert example_of(reader) == {"x": 1}
    assert [sample["x"] for sample in Samples(reader)] == [1, 2, 3]


def test_data_that_comes_once_gives_no_example() -> None:
    reader = Once()
    assert example_of(reader) is None
    assert reader.get_next() == {"x": 1}


def test_a_calibration_function_may_be_asked_for_an_example_first() -> None:
    ran: list[Any] = []

    class Inputs:
        def feed(self, given: Any) -> Any:
            return {"x": given}

    def calibrate(model: Any) -> None:
        ran.append(model)
        model(1)
        model(2)

    reader = RecordedReader(calibrate, None, Inputs(), lambda model, feed: None)
    assert example_of(reader) == {"x": 1}
    assert [sample["x"] for sample in Samples(reader)] == [1, 2]
    assert len(ran) == 1


def test_shapes_are_known_ahead_and_no_sample_is_lost() -> None:
    class Arrays(Once):
        """One pass only, of arrays."""

        def get_next(self) -> Mapping[str, Any] | None:
            sample = super().get_next()
            return None if sample is None else {"x": [[sample["x"]] * 4]}

    samples = Samples(Arrays(), limit=2)
    assert samples.shapes() == samples.shapes() == {"x": (1, 4)}
    assert [sample["x"][0][0] for sample in samples] == [1, 2]
    assert samples.shapes() == {"x": (1, 4)}


def test_shapes_of_data_that_was_gone_over() -> None:
    samples = Samples(Again())
    list(samples)
    assert samples.shapes() == {"x": ()}
    assert [sample["x"] for sample in samples] == [1, 2, 3]
