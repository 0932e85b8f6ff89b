"""What each strategy proposes, in which order, and what it makes of the outcomes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpKey, OpScheme, Plan
from neural_compressor.strategy import STRATEGIES, OpSpace, Outcome, TuningSpace
from neural_compressor.strategy.enumeration import count_points
from neural_compressor.strategy.search import rank
from neural_compressor.strategy.space import Grid
from neural_compressor.testing.strategy import op_space, space_of

CONV, MATMUL, FC, HEAD = ("conv", "Conv2d"), ("mm", "MatMul"), ("fc", "Linear"), ("head", "Linear")
FAIL = Outcome(1.0, False, 1.0)


# Samplers look at all outcomes before each proposal, and hawq_v2 at a loss: test_model_based.py, the contract.
BY_RULES = [name for name in STRATEGIES if name not in ("bayesian", "hawq_v2", "tpe")]


def drive(name: str, space: TuningSpace, judge: Callable[[Plan], Outcome], limit: int = 500) -> list[tuple[str, Plan]]:
    strategy = STRATEGIES[name](space)
    tried = []
    while len(tried) < limit and (proposals := strategy.ask()):
        (proposal,) = proposals
        tried.append((proposal.stage, proposal.plan))
        strategy.tell(proposal, judge(proposal.plan))
    return tried


def quantized(plan: Plan) -> set[str]:
    return {name for (name, _), scheme in plan.items() if not scheme.is_float}


def algorithms(plan: Plan) -> dict[str, str]:
    return {key[0]: scheme.activation.algorithm for key, scheme in plan.items()}


def with_dynamic(op: OpSpace) -> OpSpace:
    return replace(op, quantized=(*op.quantized, OpScheme(op.default.weight, op.default.activation, "dynamic")))


# -- basic ----------------------------------------------------------------------------------------------------------


def test_basic_starts_with_the_default_then_changes_all_ops_together() -> None:
    tried = drive("basic", space_of(CONV, FC), lambda plan: FAIL)
    assert tried[0][0] == "default"
    assert algorithms(tried[0][1]) == {"conv": "minmax", "fc": "minmax"}
    assert algorithms(tried[1][1]) == {"conv": "kl", "fc": "kl"}
    assert [algorithms(plan) for _, plan in tried[2:4]] == [
        {"conv": "kl", "fc": "minmax"},
        {"conv": "minmax", "fc": "kl"},
    ]


def test_basic_changes_all_ops_of_a_type_together() -> None:
    tried = drive("basic", space_of(CONV, FC, HEAD), lambda plan: FAIL)
    whole = [plan for _, plan in tried if len(quantized(plan)) == 3]
    assert len(whole) == 4
    assert all(algorithms(plan)["fc"] == algorithms(plan)["head"] for plan in whole)


def test_basic_tries_static_before_dynamic() -> None:
    ops = {CONV: op_space(), FC: with_dynamic(op_space())}
    tried = drive("basic", TuningSpace(ops), lambda plan: FAIL)
    modes = [plan[FC].mode for _, plan in tried if len(quantized(plan)) == 2]
    assert modes[:3] == ["static", "static", "dynamic"]
    assert all(plan[CONV].mode != "dynamic" for _, plan in tried)


def test_basic_tries_the_calibration_sizes() -> None:
    tried = drive("basic", space_of(CONV, sizes=(10, 100)), lambda plan: FAIL)
    assert {plan.calib_sampling_size for _, plan in tried if quantized(plan)} == {10, 100}


def test_sizes_do_not_matter_where_nothing_is_calibrated() -> None:
    op = with_dynamic(op_space())
    dynamic = replace(op, quantized=op.quantized[2:])
    for name in BY_RULES:
        sizes = {
            plan.calib_sampling_size for _, plan in drive(name, TuningSpace({FC: dynamic}, (10, 100)), lambda p: FAIL)
        }
        assert sizes == {10}, name


def test_basic_tries_recipes_one_by_one() -> None:
    space = replace(space_of(CONV), recipes={"smooth_quant": (True, False), "weight_correction": (True, False)})
    tried = drive("basic", space, lambda plan: FAIL)
    seen = [tuple(plan.step(name) is not None for name in ("smooth", "correct_weights")) for _, plan in tried]
    assert seen[0] == (True, True)
    assert {(True, True), (False, True), (True, False)} == set(seen)


def test_basic_falls_back_from_the_best_plan_cheapest_precision_first() -> None:
    blocks = ((CONV, MATMUL),)
    space = replace(space_of(CONV, MATMUL, FC), blocks=blocks)

    def judge(plan: Plan) -> Outcome:
        """kl is better than minmax; nothing is good enough."""
        return Outcome(1.0 - 0.1 * sum(s.activation.algorithm == "kl" for s in plan.values()), False, 1.0)

    tried = drive("basic", space, judge)
    fallback = [(stage, plan) for stage, plan in tried if len(quantized(plan)) < 3]
    assert fallback[0][0] == "block 1 to bf16"
    assert quantized(fallback[0][1]) == {"fc"}
    assert [stage for stage, _ in fallback[1:4]] == ["conv to bf16", "mm to bf16", "fc to bf16"]
    assert all(s.activation.algorithm == "kl" for _, plan in fallback for s in plan.values() if not s.is_float)
    precisions = [{s.precision for s in plan.values() if s.is_float}.pop() for _, plan in fallback]
    assert precisions == sorted(precisions)  # bf16, then fp32


def test_basic_adds_up_the_ops_whose_fallback_helps_most() -> None:
    harm = {"conv": 0.1, "mm": 0.4, "fc": 0.2, "head": 0.05}
    op = op_space(algorithms=1, floats=("fp32",))
    space = TuningSpace(dict.fromkeys((CONV, MATMUL, FC, HEAD), op))
    tried = drive("basic", space, lambda plan: Outcome(sum(harm[n] for n in quantized(plan)), False, 1.0))
    sizes = [len(quantized(plan)) for _, plan in tried]
    assert sizes == [4, 3, 3, 3, 3, 2, 1]  # the first of the sum was tried alone, and no op at all is the baseline
    assert quantized(tried[5][1]) == {"conv", "head"}
    assert quantized(tried[6][1]) == {"head"}


def test_an_op_that_a_rule_keeps_in_float_stays_there() -> None:
    kept = replace(op_space(), quantized=(), reason="op_name_dict rule 'fc'")
    for name in BY_RULES:
        for _, plan in drive(name, TuningSpace({CONV: op_space(), FC: kept}), lambda plan: FAIL):
            assert plan[FC].is_float


# -- conservative ---------------------------------------------------------------------------------------------------


def test_conservative_goes_by_op_type_and_keeps_what_passes() -> None:
    space = space_of(("add", "Add"), FC, ("bmm", "BatchMatMul"), HEAD, MATMUL, CONV)
    tried = drive("conservative", space, lambda plan: Outcome(0.0, "bmm" not in quantized(plan), 1.0))
    assert [quantized(plan) for _, plan in tried] == [
        {"conv"},
        {"conv", "mm"},
        {"conv", "mm", "bmm"},
        {"conv", "mm", "fc", "head"},
        {"conv", "mm", "fc", "head", "add"},
    ]


def test_conservative_asks_not_to_be_stopped_before_its_last_step() -> None:
    strategy = STRATEGIES["conservative"](space_of(CONV, FC))
    stops = []
    while proposals := strategy.ask():
        strategy.tell(proposals[0], Outcome(0.0, True, 1.0))
        stops.append(strategy.may_stop)
    assert stops == [False, True]


# -- mse ------------------------------------------------------------------------------------------------------------


def test_mse_lets_ops_fall_back_by_their_errors() -> None:
    space = TuningSpace({(name, "Linear"): op_space(1, ("fp32",)) for name in "abc"})
    strategy = STRATEGIES["mse"](space)
    strategy.op_errors = lambda plan: {("a", "Linear"): 0.1, ("b", "Linear"): 0.3}
    tried = []
    while proposals := strategy.ask():
        tried.append((proposals[0].stage, quantized(proposals[0].plan)))
        strategy.tell(proposals[0], FAIL)
    assert tried == [
        ("default", {"a", "b", "c"}),
        ("b to fp32", {"a", "c"}),
        ("a to fp32", {"b", "c"}),
        ("c to fp32", {"a", "b"}),
        ("2 ops to fp32", {"c"}),
    ]


# -- auto -----------------------------------------------------------------------------------------------------------


def test_auto_is_default_then_conservative_then_basic() -> None:
    tried = drive("auto", space_of(CONV, FC), lambda plan: Outcome(0.0, False, 1.0))
    stages = [stage for stage, _ in tried]
    assert stages[:3] == ["default", "conservative: Conv2d quantized", "conservative: Linear quantized"]
    basic = {plan.digest for _, plan in drive("basic", space_of(CONV, FC), lambda plan: Outcome(0.0, False, 1.0))}
    assert basic <= {plan.digest for _, plan in tried}


def test_auto_may_be_stopped_when_the_default_passes() -> None:
    strategy = STRATEGIES["auto"](space_of(CONV, FC))
    (proposal,) = strategy.ask()
    strategy.tell(proposal, Outcome(0.0, True, 1.0))
    assert strategy.may_stop


def test_auto_may_not_be_stopped_before_the_conservative_part_is_through() -> None:
    strategy = STRATEGIES["auto"](space_of(CONV, MATMUL, FC))
    stops = []
    while len(stops) < 4:
        (proposal,) = strategy.ask()
        good = "mm" not in quantized(proposal.plan)
        strategy.tell(proposal, Outcome(0.0 if good else 0.5, good, 1.0))
        stops.append((sorted(quantized(proposal.plan)), strategy.may_stop))
    assert stops == [
        (["conv", "fc", "mm"], False),  # the default, which failed
        (["conv"], False),  # passed, and more is to come
        (["conv", "mm"], False),
        (["conv", "fc"], True),  # passed, and is the result
    ]


def test_auto_falls_back_from_a_plan_that_quantizes_everything() -> None:
    """A passing plan of the conservative part has whole op types in float, from where single ops are not found."""

    def judge(plan: Plan) -> Outcome:
        names = quantized(plan)
        return Outcome(0.5 * ("fc" in names), "fc" not in names, float(len(names)))

    tried = drive("auto", space_of(CONV, FC, HEAD), judge)
    assert {"conv", "head"} in [quantized(plan) for _, plan in tried]


# -- random and exhaustive ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 2), st.booleans()), min_size=1, max_size=3), st.integers(1, 2))
@settings(max_examples=25)
def test_random_and_exhaustive_see_every_plan_once(ops: list[tuple[int, bool]], sizes: int) -> None:
    spaces = [with_dynamic(op_space(n, ("fp32",))) if dynamic else op_space(n, ("fp32",)) for n, dynamic in ops]
    space = TuningSpace({(f"op{i}", "Linear"): op for i, op in enumerate(spaces)}, (10, 100)[:sizes])
    every, uncalibrated = 1, 1
    for count, dynamic in ops:
        every *= count + dynamic + 1
        uncalibrated *= dynamic + 1
    expected = (every - uncalibrated) * sizes + uncalibrated - 1  # one of them is the float model
    exhaustive = [plan.digest for _, plan in drive("exhaustive", space, lambda plan: FAIL)]
    drawn = [plan.digest for _, plan in drive("random", space, lambda plan: FAIL)]
    assert len(exhaustive) == expected
    assert sorted(drawn) == sorted(exhaustive)
    assert count_points(Grid(space)) == expected + 1


@pytest.mark.parametrize("name", ["random", "exhaustive"])
def test_plans_that_depend_on_nothing_are_given_all_at_once(name: str) -> None:
    assert len(STRATEGIES[name](space_of(CONV, FC)).ask(10)) == 10


def test_ops_that_fall_back_alone_are_given_at_once_and_their_sum_is_not() -> None:
    space = TuningSpace({(f"op{i}", "Linear"): op_space(1, ("fp32",)) for i in range(4)})
    strategy = STRATEGIES["basic"](space)
    (default,) = strategy.ask(10)
    assert strategy.ask(10) == []  # what comes next depends on it
    strategy.tell(default, FAIL)
    alone = strategy.ask(10)
    assert [proposal.stage for proposal in alone] == [f"op{i} to fp32" for i in range(4)]
    for proposal in reversed(alone):
        assert strategy.ask() == []
        strategy.tell(proposal, replace(FAIL, loss=1.0 - int(proposal.stage[2]) / 10))
    best_two = strategy.ask(10)[0]
    assert (best_two.stage, quantized(best_two.plan)) == ("2 ops to fp32", {"op0", "op1"})


def test_exhaustive_starts_with_the_default() -> None:
    space = space_of(CONV, FC)
    assert drive("exhaustive", space, lambda plan: FAIL)[0][1] == space.default_plan()


def test_the_seed_decides_what_random_draws() -> None:
    space = space_of(*((f"op{i}", "Linear") for i in range(30)))

    def first(seed: int) -> list[str]:
        strategy = STRATEGIES["random"](space, seed)
        digests = []
        for _ in range(5):
            (proposal,) = strategy.ask()
            digests.append(proposal.plan.digest)
            strategy.tell(proposal, FAIL)
        return digests

    assert first(1) == first(1)
    assert set(first(1)).isdisjoint(first(2))


def test_random_draws_each_option_about_equally_often() -> None:
    space = space_of(*((f"op{i}", "Linear") for i in range(50)))
    counts: dict[OpScheme, int] = {}
    for _, plan in drive("random", space, lambda plan: FAIL, limit=100):
        for scheme in plan.values():
            counts[scheme] = counts.get(scheme, 0) + 1
    # 5000 draws of four options: 1250 each, with a standard deviation of 31
    assert len(counts) == 4
    assert all(1100 < count < 1400 for count in counts.values())


# -- all ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_RULES)
def test_nobody_proposes_the_float_model(name: str) -> None:
    for _, plan in drive(name, space_of(CONV, FC), lambda plan: FAIL):
        assert any(scheme.precision != "fp32" for scheme in plan.values())


@pytest.mark.parametrize("name", BY_RULES)
def test_five_hundred_ops_are_no_burden(name: str) -> None:
    shared: dict[OpKey, OpSpace] = {(f"op{i}", f"Type{i % 5}"): op_space(4) for i in range(500)}
    begun = time.process_time()
    assert drive(name, TuningSpace(shared), lambda plan: FAIL, limit=200)
    assert time.process_time() - begun < 5  # about 0.05 s; serialising plans to compare them would take minutes


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (Outcome(0.009, True, 2.0), Outcome(0.0, True, 1.5)),
        (Outcome(0.009, True, 0.5), Outcome(0.011, False, 9.0)),
        (Outcome(0.02, False, 3.7), Outcome(0.011, False, 1.7)),
        (Outcome(0.02, False, 3.7), Outcome(0.6, False, 3.9)),
        (Outcome(0.02, False, 3.7), Outcome(0.03, False, 3.7)),
        (Outcome(0.6, False, 1.1), Outcome(0.011, False, 1.0)),
        (Outcome(0.011, False, 1.0), Outcome(math.nan, False, 1.0)),
        (Outcome(0.011, False, 1.0), Outcome(math.inf, False, 0.0)),
    ],
    ids=[
        "passing: the score",
        "passing comes first",
        "gain for the loss",
        "a hopeless loss",
        "equal gain: the loss",
        "any gain before none",
        "no loss known",
        "failed",
    ],
)
def test_the_order_of_outcomes(better, worse):
    assert rank(better) < rank(worse)


@pytest.mark.parametrize("batches", [0, True, 1.5, "2"])
def test_mse_v2_refuses_a_number_of_batches_that_is_none_before_any_trial(batches: object) -> None:
    with pytest.raises(ConfigError, match=r"confidence_batches is .*expected a number of batches from 1 on"):
        STRATEGIES["mse_v2"](space_of(CONV), 42, {"confidence_batches": batches})


def test_mse_v2_refuses_batches_where_nobody_reads_them() -> None:
    with pytest.raises(ConfigError, match="confidence_batches are batches of the calib_dataloader"):
        STRATEGIES["mse_v2"](space_of(CONV), 42, {"confidence_batches": 3}).ask()
    assert STRATEGIES["mse_v2"](space_of(CONV)).ask()
