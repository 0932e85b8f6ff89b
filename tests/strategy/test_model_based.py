"""Strategies on Optuna's samplers: they learn, and take large models in runs of ops."""

import pytest

from neural_compressor.strategy import STRATEGIES, Outcome
from neural_compressor.strategy.model_based import _Parameters
from neural_compressor.strategy.space import Grid
from neural_compressor.testing.strategy import space_of


def played(strategy, judge, limit):
    tried = []
    while len(tried) < limit and (proposals := strategy.ask()):
        tried.append((proposals[0].plan, judge(proposals[0].plan)))
        strategy.tell(proposals[0], tried[-1][1])
    return tried


def judge(plan):
    """The more of the even ops are quantized the better; an odd one breaks the promise a little each."""
    quantized = [int(name[2:]) for (name, _), scheme in plan.items() if not scheme.is_float]
    loss = 0.01 * sum(number % 2 for number in quantized)
    return Outcome(loss, loss <= 0.011, 1 + 0.1 * sum(number % 2 == 0 for number in quantized))


def test_tpe_finds_better_plans_than_chance():
    space = space_of(*((f"op{i}", "Linear") for i in range(12)))
    best = {}
    for name in ("random", "tpe"):
        found = []
        for seed in range(5):
            outcomes = [outcome for _, outcome in played(STRATEGIES[name](space, seed), judge, 80)]
            found.append(max((o.score for o in outcomes if o.passed), default=0.0))
        best[name] = sum(found) / len(found)
    assert best["tpe"] > best["random"]


def test_a_gaussian_process_proposes_and_does_not_repeat_itself():
    pytest.importorskip("torch")
    tried = played(STRATEGIES["bayesian"](space_of(("op0", "Linear"), ("op1", "Linear"))), judge, 12)
    assert len({plan.digest for plan, _ in tried}) == len(tried) == 12


def test_neighbouring_ops_share_a_parameter_in_a_large_model():
    grid = Grid(space_of(*((f"op{i}", "Linear") for i in range(100)), sizes=(10, 100)))
    parameters = _Parameters.of(grid, 24)
    assert len(parameters.runs) == 20
    assert parameters.point(parameters.default()) == grid.default()
    point = parameters.point({**parameters.default(), "op5": 3, "calibration": 1})
    assert [position for position, choice in enumerate(point.choices) if choice == 3] == [5, 6, 7, 8, 9]
    assert point.calibration == 1
