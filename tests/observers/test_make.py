"""From a scheme to its observer."""

from __future__ import annotations

import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.observers import OBSERVERS, make_observer
from neural_compressor.schemes import PER_TENSOR, PerChannel, PerGroup, TensorScheme


@pytest.mark.parametrize("name", ["minmax", "moving_average", "percentile", "kl", "mse"])
def test_the_algorithm_names_the_observer(name: str) -> None:
    made = make_observer(TensorScheme(dtype("int8"), algorithm=name))
    assert type(made) is OBSERVERS[name]
    assert made.axis is None
    assert make_observer(TensorScheme(dtype("int8"), True, PerChannel(2), name)).axis == 2


def test_each_call_makes_a_fresh_one() -> None:
    scheme = TensorScheme(dtype("int8"))
    assert make_observer(scheme) is not make_observer(scheme)


def test_an_unknown_algorithm_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown calibration algorithm 'minmex'; did you mean 'minmax'.*percentile"):
        make_observer(TensorScheme(dtype("int8"), algorithm="minmex"))


@pytest.mark.parametrize(
    ("name", "granularity", "what"), [("int8", PerGroup(32), "per_group"), ("mxfp4", PER_TENSOR, "mxfp4")]
)
def test_scales_that_come_from_each_tensor_are_not_observed(name: str, granularity: object, what: str) -> None:
    with pytest.raises(ConfigError, match=f"{what} takes its scales from each tensor"):
        make_observer(TensorScheme(dtype(name), True, granularity))  # type: ignore[arg-type]
