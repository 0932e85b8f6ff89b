"""Every weight-only algorithm keeps the contract that is shipped for others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import ALGORITHMS, LayerResult, Rotation, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme
from neural_compressor.testing import AlgorithmContract

ASYMMETRIC = tuple(
    TensorScheme(dtype(name), False, part)
    for name, part in (("int4", PerGroup(16)), ("uint3", PerGroup(16)), ("int8", PER_CHANNEL), ("uint2", PerGroup(20)))
)


class TestRTN(AlgorithmContract):
    algorithm, slack, differing = "rtn", 1.0, 0.0


class TestRTNSearch(AlgorithmContract):
    # The search does not know what inputs have in common.
    algorithm, options, slack = "rtn", {"search": "mse"}, 1.3


class TestGPTQ(AlgorithmContract):
    algorithm = "gptq"
    # Scales are searched before errors are passed on: on three inputs that move together rounding may do without.
    slack = 1.1


class TestGPTQAsPublished(AlgorithmContract):
    algorithm, options = "gptq", {"search": None}


class TestGPTQActOrder(AlgorithmContract):
    algorithm, options = "gptq", {"act_order": True, "search": None}


class TestGPTQActOrderStaticGroups(AlgorithmContract):
    algorithm, options = "gptq", {"act_order": True, "static_groups": True}


class TestGPTQHybridOrder(AlgorithmContract):
    algorithm, options = "gptq", {"hybrid_order": True}


class TestGPTQRotated(AlgorithmContract):
    algorithm = "gptq"

    def run(self, weight: Any, scheme: TensorScheme, statistics: Any) -> LayerResult:
        if weight.ndim != 2:
            return super().run(weight, scheme, statistics)
        return ALGORITHMS["gptq"](
            weight, scheme, statistics, rotation=Rotation(weight.shape[1], seed=3), **self.options
        )


class TestAWQ(AlgorithmContract):
    algorithm = "awq"


class TestTEQ(AlgorithmContract):
    # Training magnifies what differs in the last digit: nothing is seen of it after ten steps, 8% of the codes after twenty.
    algorithm, options = "teq", {"steps": 10}


class TestHQQ(AlgorithmContract):
    # It sees no data, and makes a heavy-tailed error small, not the squared one.
    algorithm, schemes, slack = "hqq", ASYMMETRIC, 1.6


class TestHQQIntegerZero(AlgorithmContract):
    algorithm, schemes, slack, options = "hqq", ASYMMETRIC, 1.6, {"integer_zero": True}


def test_every_registered_algorithm_is_tested_here() -> None:
    suites = (TestRTN, TestGPTQ, TestAWQ, TestTEQ, TestHQQ)
    on_layers = {name for name in ALGORITHMS.names() if ALGORITHMS[name].scope == "layer"}
    assert {suite.algorithm for suite in suites} == on_layers


class Broken(AlgorithmContract):
    """The suite, run by hand on an algorithm that does something wrong."""

    algorithm, schemes = "rtn", (TensorScheme(dtype("int4"), granularity=PerGroup(16)),)

    def __init__(self, spoil: Any) -> None:
        self.spoil = spoil

    def run(self, weight: Any, scheme: TensorScheme, statistics: Any) -> LayerResult:
        return self.spoil(weight, scheme)


def test_the_suite_notices_an_algorithm_that_is_worse_than_rounding() -> None:
    suite = Broken(lambda weight, scheme: LayerResult(rtn(weight * 1.5, scheme)))
    with pytest.raises(AssertionError):
        suite.test_outputs_move_no_further_than_with_rounding()


def test_the_suite_notices_an_algorithm_that_writes_into_its_input() -> None:
    def spoil(weight: Any, scheme: TensorScheme) -> LayerResult:
        weight *= 2
        return LayerResult(rtn(weight, scheme))

    with pytest.raises(AssertionError):
        Broken(spoil).test_what_it_was_given_is_left_alone()


def test_the_suite_notices_an_algorithm_that_loses_the_order() -> None:
    def spoil(weight: Any, scheme: TensorScheme) -> LayerResult:
        result = LayerResult(rtn(weight[:, ::-1].copy(), scheme), order=np.arange(weight.shape[1])[::-1].copy())
        return replace(result, order=None)

    with pytest.raises(AssertionError):
        Broken(spoil).test_outputs_move_no_further_than_with_rounding()
