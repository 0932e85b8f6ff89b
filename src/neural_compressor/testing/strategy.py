"""The contract of a strategy as a test suite: subclass it, say how to make the strategy, inherit the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neural_compressor.schemes import OpKey, OpScheme, Plan, TensorScheme, float_op
from neural_compressor.strategy import OpSpace, Outcome, Proposal, Strategy, TuningSpace

Judge = Callable[[Plan], Outcome]


def op_space(algorithms: int = 2, floats: tuple[str, ...] = ("bf16", "fp32")) -> OpSpace:
    """An op with so many quantized options, which differ in the algorithm of the activation, and some floats."""
    weight = TensorScheme.from_dict({"dtype": "int8", "granularity": "per_channel"})
    names = ("minmax", "kl", "percentile", "mse")[:algorithms]
    inputs = [TensorScheme.from_dict({"dtype": "uint8", "scheme": "asym", "algorithm": name}) for name in names]
    return OpSpace(tuple(OpScheme(weight, x, "static") for x in inputs), tuple(float_op(name) for name in floats))


def space_of(*keys: OpKey, sizes: tuple[int, ...] = (100,)) -> TuningSpace:
    """A space of such ops."""
    return TuningSpace({key: op_space() for key in keys}, sizes)


class StrategyContract:
    """What every strategy must do.

    Subclass it as ``class TestMyStrategy(StrategyContract)`` and override :meth:`make_strategy`. Set
    ``finds_the_one_op`` to False for a strategy that does not promise to find the op type that has to stay in float.
    """

    finds_the_one_op = True

    def make_strategy(self, space: TuningSpace, seed: int = 42) -> Strategy:
        """The strategy over ``space``."""
        raise NotImplementedError

    # -- what the tests share ---------------------------------------------------------------------------------------

    def small_space(self) -> TuningSpace:
        """Three ops of three types, two calibration sizes: 128 plans at most."""
        ops = {("conv", "Conv2d"): op_space(), ("mm", "MatMul"): op_space(), ("fc", "Linear"): op_space()}
        return TuningSpace(ops, (10, 100), blocks=((("conv", "Conv2d"), ("mm", "MatMul")),))

    def run(self, strategy: Strategy, judge: Judge, limit: int = 1000) -> list[tuple[Plan, Outcome]]:
        """What the strategy proposes, and what came of it, until it ends."""
        tried: list[tuple[Plan, Outcome]] = []
        while len(tried) < limit and (proposals := strategy.ask()):
            tried.append((proposals[0].plan, judge(proposals[0].plan)))
            strategy.tell(proposals[0], tried[-1][1])
        return tried

    @staticmethod
    def never(plan: Plan) -> Outcome:
        """No plan passes; how much each loses depends on nothing but the plan."""
        return Outcome(loss=1 + int(plan.digest[:6], 16) / 16**6, passed=False, score=1.0)

    # -- the tests --------------------------------------------------------------------------------------------------

    def test_same_outcomes_give_the_same_proposals(self) -> None:
        first = self.run(self.make_strategy(self.small_space()), self.never)
        recorded = iter(first)
        again = self.run(self.make_strategy(self.small_space()), lambda plan: next(recorded)[1])
        assert [plan.to_json() for plan, _ in again] == [plan.to_json() for plan, _ in first]

    def test_no_plan_is_proposed_twice(self) -> None:
        digests = [plan.digest for plan, _ in self.run(self.make_strategy(self.small_space()), self.never)]
        assert len(digests) == len(set(digests))

    def test_it_proposes_something_and_ends(self) -> None:
        strategy = self.make_strategy(self.small_space())
        assert 0 < len(self.run(strategy, self.never)) <= 128
        assert strategy.ask() == []

    def test_proposals_hold_only_what_the_space_admits(self) -> None:
        space = self.small_space()
        for plan, _ in self.run(self.make_strategy(space), self.never):
            assert set(plan) == set(space.ops)
            assert all(scheme in space.ops[key].options for key, scheme in plan.items())
            assert plan.calib_sampling_size in space.calibration_sizes

    def test_proposals_say_why(self) -> None:
        (proposal,) = self.make_strategy(self.small_space()).ask()
        assert proposal.stage

    def test_what_was_given_is_not_given_again(self) -> None:
        strategy = self.make_strategy(self.small_space())
        given = [*strategy.ask(), *strategy.ask(), *strategy.ask(3)]
        assert given
        assert len({proposal.plan.digest for proposal in given}) == len(given)

    @pytest.mark.parametrize("workers", [2, 5])
    @pytest.mark.parametrize("order", ["first", "last"])
    def test_several_at_once_told_in_any_order_are_those_of_one_at_a_time(self, workers: int, order: str) -> None:
        expected = [plan.digest for plan, _ in self.run(self.make_strategy(self.small_space()), self.never)]
        strategy = self.make_strategy(self.small_space())
        pending: list[Proposal] = []
        seen: list[str] = []
        while True:
            new = strategy.ask(workers - len(pending))
            assert len(new) <= workers - len(pending)
            pending += new
            seen += [proposal.plan.digest for proposal in new]
            if not pending:
                break
            done = pending.pop(0 if order == "first" else -1)
            strategy.tell(done, self.never(done.plan))
        assert seen == expected

    def test_tell_without_ask_is_an_error(self) -> None:
        (proposal,) = self.make_strategy(self.small_space()).ask()
        strategy = self.make_strategy(self.small_space())
        with pytest.raises(RuntimeError, match="ask"):
            strategy.tell(proposal, Outcome(0.0, True, 1.0))

    def test_tell_twice_is_an_error(self) -> None:
        strategy = self.make_strategy(self.small_space())
        (proposal,) = strategy.ask()
        strategy.tell(proposal, Outcome(1.0, False, 1.0))
        with pytest.raises(RuntimeError, match="ask"):
            strategy.tell(proposal, Outcome(1.0, False, 1.0))

    def test_a_failed_trial_does_not_end_it(self) -> None:
        broken = Outcome(loss=float("nan"), passed=False, score=0.0)
        assert len(self.run(self.make_strategy(self.small_space()), lambda plan: broken)) > 1

    def test_a_large_space_is_not_enumerated(self) -> None:
        space = space_of(*((f"op{i}", ("Conv2d", "Linear", "MatMul")[i % 3]) for i in range(300)))
        assert self.run(self.make_strategy(space), self.never, limit=20)

    @pytest.mark.parametrize("sensitive", ["conv", "mm", "fc"])
    def test_it_finds_the_op_that_has_to_stay_in_float(self, sensitive: str) -> None:
        if not self.finds_the_one_op:
            pytest.skip("the strategy does not promise it")

        def judge(plan: Plan) -> Outcome:
            quantized = [name for (name, _), scheme in plan.items() if not scheme.is_float]
            loss = 0.5 * (sensitive in quantized) + 0.001 * len(quantized)
            return Outcome(loss, loss <= 0.01, 1.0 + 0.1 * len(quantized))

        passed = [plan for plan, outcome in self.run(self.make_strategy(self.small_space()), judge) if outcome.passed]
        floats = [{name for (name, _), scheme in plan.items() if scheme.is_float} for plan in passed]
        assert {sensitive} in floats
