"""Which strategy a configuration asks for."""

from __future__ import annotations

import logging

import pytest

from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.errors import ConfigError
from neural_compressor.strategy import STRATEGIES, strategy_for
from neural_compressor.testing.strategy import space_of

SPACE = space_of(("fc", "Linear"))


def chosen(level: str | int, seed: int = 42, **criterion: object) -> object:
    conf = PostTrainingQuantConfig(quant_level=level, tuning_criterion=TuningCriterion(**criterion), seed=seed)
    return strategy_for(conf, SPACE)


@pytest.mark.parametrize(
    ("level", "named", "expected"),
    [
        ("auto", "basic", "auto"),
        ("auto", "random", "random"),
        ("auto", "conservative", "conservative"),
        (0, "basic", "conservative"),
        (1, "basic", "basic"),
        (1, "Exhaustive", "exhaustive"),
        (1, "auto", "auto"),
    ],
)
def test_level_and_name_decide(level: str | int, named: str, expected: str) -> None:
    strategy = chosen(level, strategy=named, seed=7)
    assert type(strategy) is STRATEGIES[expected]
    assert strategy.seed == 7


def test_a_name_that_level_0_overrides_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        chosen(0, strategy="random")
    assert "random" in caplog.text


@pytest.mark.parametrize("name", ["mse_v3", "basik"])
@pytest.mark.parametrize("level", [0, 1, "auto"])
def test_an_unknown_strategy_is_an_error_with_the_known_ones(name: str, level: str | int) -> None:
    known = "auto, auto_mixed_precision, basic, bayesian, conservative, exhaustive, hawq_v2, mse, mse_v2, random, tpe"
    with pytest.raises(ConfigError, match=f"unknown strategy '{name}'.*{known}"):
        chosen(level, strategy=name)


def test_unknown_options_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"confidence_batches.*'random'"):
        chosen(1, strategy="random", strategy_kwargs={"confidence_batches": 2})
