"""The list first, then fall-back of the best on it."""

import pytest

from neural_compressor.dtypes import dtype
from neural_compressor.errors import CalibrationError, NothingToQuantizeError
from neural_compressor.schemes import OpScheme, Pass, Plan, TensorScheme, float_op
from neural_compressor.strategy.base import Outcome, Proposal
from neural_compressor.strategy.listed import ListedFallbackStrategy, candidates, is_from

KEYS = [("a", "Conv"), ("b", "Conv"), ("c", "Relu")]
COST = {"a": 3.0, "b": 1.0, "c": 0.5}


def plan(bits, names="abc"):
    weight = TensorScheme(dtype(f"int{bits}"))
    ops = {key: OpScheme(weight, weight, "static") for key in KEYS if key[0] in names}
    return Proposal(Plan(ops, passes=[Pass("bits", {"bits": bits})]), f"{bits} bits")


def losses(proposal, scale):
    quantized = {key[0] for key, scheme in proposal.plan.items() if not scheme.is_float}
    return sum(COST[name] for name in quantized) * scale[proposal.plan.step("bits").options["bits"]]


def run(listed, scale, tolerated, scores=None):
    strategy, stages = ListedFallbackStrategy(listed), []
    while proposals := strategy.ask():
        (proposal,) = proposals
        loss = losses(proposal, scale)
        stages.append((proposal.stage, loss))
        strategy.tell(
            proposal,
            Outcome(loss, loss <= tolerated, (scores or {}).get(proposal.plan.step("bits").options["bits"], 1.0)),
        )
    return stages


def base_of_the_fallback(scale, scores):
    """The loss of the plans on the list with the first op in float says which of them it was."""
    stages = run([plan(4), plan(8)], scale, 0.0, scores)
    return {losses(plan(bits, "bc"), scale): bits for bits in (4, 8)}[dict(stages)["a to fp32"]]


def test_fall_back_starts_from_the_plan_that_gains_most_for_what_it_loses():
    # 4 bits lose twice as much and are worth four times as much: what is left of that when half is undone is more
    assert base_of_the_fallback({4: 2.0, 8: 1.0}, {4: 5.0, 8: 2.0}) == 4
    assert base_of_the_fallback({4: 2.0, 8: 1.0}, {4: 2.5, 8: 2.0}) == 8


def test_a_plan_that_loses_everything_is_no_start_however_small_it_is():
    assert base_of_the_fallback({4: 60.0, 8: 1.0}, {4: 7.0, 8: 3.5}) == 8


def test_a_plan_without_a_gain_is_a_start_only_where_none_has_one():
    assert base_of_the_fallback({4: 2.0, 8: 0.001}, {4: 1.5, 8: 0.9}) == 4
    assert base_of_the_fallback({4: 2.0, 8: 1.0}, {4: 0.9, 8: 0.8}) == 8


def test_a_list_that_keeps_the_promise_is_all():
    assert run([plan(4), plan(8)], {4: 1.0, 8: 0.1}, 1.0) == [("4 bits", 4.5), ("8 bits", 0.45)]


def test_the_best_of_the_list_falls_back_op_by_op_and_then_adds_up():
    stages = run([plan(4), plan(8)], {4: 2.0, 8: 1.0}, 0.0)
    assert stages[:2] == [("4 bits", 9.0), ("8 bits", 4.5)]
    assert stages[2:5] == [("a to fp32", 1.5), ("b to fp32", 3.5), ("c to fp32", 4.0)]
    # the first step of the sum is known, and the last one is the float model: neither is tried again
    assert stages[5:] == [("2 ops to fp32", 0.5)]


def test_ops_that_the_plan_leaves_in_float_are_not_tried():
    stages = run([plan(4, "ab")], {4: 1.0}, 0.0)
    assert [stage for stage, _ in stages] == ["4 bits", "a to fp32", "b to fp32"]


def test_ops_in_half_precision_fall_back_too():
    listed = Proposal(Plan(dict.fromkeys(KEYS, float_op("bf16"))), "bf16")
    strategy, stages = ListedFallbackStrategy([listed]), []
    while proposals := strategy.ask():
        (proposal,) = proposals
        assert is_from(proposal.plan, listed.plan)
        kept = proposal.plan["b", "Conv"].precision == "fp32"
        stages.append(proposal.stage)
        strategy.tell(proposal, Outcome(0.0 if kept else 1.0, kept, 1.0))
        if kept:
            break
    assert stages == ["bf16", "a to fp32", "b to fp32"]


def test_a_plan_in_half_precision_is_not_from_another():
    low = Plan(dict.fromkeys(KEYS, float_op("bf16")))
    assert not is_from(low, Plan(dict.fromkeys(KEYS, float_op("fp16"))))


def test_nothing_listed_is_nothing_to_try():
    assert run([], {}, 0.0) == []


def test_plans_are_from_the_one_that_falls_back():
    fewer, best, other = plan(8, "ab"), plan(8), plan(4)
    strategy, seen = ListedFallbackStrategy([fewer, best, other]), []
    while proposals := strategy.ask():
        for proposal in proposals:
            seen.append([is_from(proposal.plan, listed.plan) for listed in (fewer, best, other)])
            strategy.tell(proposal, Outcome(0.1 if proposal == best else 0.9, False, 2.0))
    assert seen[:3] == [[True, False, False], [False, True, False], [False, False, True]]
    assert len(seen) > 3
    assert all(each == [False, True, False] for each in seen[3:])


def made(config):
    if config == "idle":
        raise NothingToQuantizeError("it has no ops")
    return config.upper()


def test_candidates_that_cannot_be_tried_are_left_out_with_a_warning(caplog):
    found = candidates(["a", "idle", "b"], made, lambda each: each == "B", "give some")
    assert found == [("a", "A")]
    assert "idle is not tried: it has no ops" in caplog.text
    assert "b is not tried: it needs calibration data; give some" in caplog.text


def test_no_candidate_left_is_an_error():
    with pytest.raises(NothingToQuantizeError, match="no ops"):
        candidates(["idle"], made)
    with pytest.raises(CalibrationError, match="needs calibration data: give some"):
        candidates(["idle", "b"], made, lambda each: True, "give some")


def test_a_plan_that_is_listed_twice_is_proposed_once():
    again = Proposal(plan(4).plan, "the same by another configuration")
    assert [proposal.stage for proposal in ListedFallbackStrategy([plan(4), again, plan(8)]).ask(9)] == [
        "4 bits",
        "8 bits",
    ]
