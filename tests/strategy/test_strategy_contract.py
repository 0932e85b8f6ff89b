"""The strategies of the toolkit keep the contract that is shipped for others."""

from __future__ import annotations

import pytest

from neural_compressor.strategy import STRATEGIES, Strategy, TuningSpace
from neural_compressor.testing.strategy import StrategyContract


class Named(StrategyContract):
    name: str

    def make_strategy(self, space: TuningSpace, seed: int = 42) -> Strategy:
        return STRATEGIES[self.name](space, seed)


class TestBasic(Named):
    name = "basic"


class TestMse(Named):
    name = "mse"


class TestMseWithErrors(StrategyContract):
    def make_strategy(self, space: TuningSpace, seed: int = 42) -> Strategy:
        strategy = STRATEGIES["mse"](space, seed)
        strategy.op_errors = lambda plan: {key: len(key[0]) / 10 for key in plan}
        return strategy


class TestMseV2(Named):
    name = "mse_v2"


class TestMseV2WithErrors(StrategyContract):
    def make_strategy(self, space: TuningSpace, seed: int = 42) -> Strategy:
        strategy = STRATEGIES["mse_v2"](space, seed, {"confidence_batches": 1})
        strategy.output_errors = lambda plan, batches: {key: len(key[0]) / 10 for key in plan}
        return strategy


class TestHawqV2(Named):
    name = "hawq_v2"
    finds_the_one_op = False  # it goes by the order it is told

    def make_strategy(self, space: TuningSpace, seed: int = 42) -> Strategy:
        strategy = STRATEGIES[self.name](space, seed, {"hawq_v2_loss": lambda output, label: output})
        strategy.loss_errors = lambda plan, loss: {key: len(key[0]) / 10 for key in plan}
        return strategy


class TestTpe(Named):
    name = "tpe"


@pytest.mark.slow  # a Gaussian process is fitted before each proposal
class TestBayesian(Named):
    name = "bayesian"


class TestConservative(Named):
    name = "conservative"


class TestAuto(Named):
    name = "auto"


class TestAutoMixedPrecision(Named):
    name = "auto_mixed_precision"


class TestRandom(Named):
    name = "random"


class TestExhaustive(Named):
    name = "exhaustive"


def test_the_suite_notices_a_strategy_that_repeats_itself() -> None:
    class Repeating(StrategyContract):
        def make_strategy(self, space: TuningSpace, seed: int = 42) -> Strategy:
            class Twice(Strategy):
                def proposals(self):  # type: ignore[no-untyped-def]
                    from neural_compressor.strategy import Proposal

                    for _ in range(2):
                        yield Proposal(self.space.default_plan(), "again")

            return Twice(space, seed)

    with pytest.raises(AssertionError):
        Repeating().test_no_plan_is_proposed_twice()
    with pytest.raises(AssertionError):
        Repeating().test_it_finds_the_op_that_has_to_stay_in_float("conv")


def test_every_strategy_is_under_contract() -> None:
    assert set(STRATEGIES) == {case.name for case in Named.__subclasses__()}
