"""Tuning strategies: each proposes the next plan from the tuning space and the results so far."""

from neural_compressor.strategy.base import STRATEGIES, Outcome, Proposal, Strategy, strategy_for
from neural_compressor.strategy.basic import AutoStrategy, BasicStrategy
from neural_compressor.strategy.build import build_space, unapplied_recipes
from neural_compressor.strategy.conservative import ConservativeStrategy
from neural_compressor.strategy.enumeration import ExhaustiveStrategy, RandomStrategy
from neural_compressor.strategy.mixed_precision import (
    AutoMixedPrecisionStrategy,
    mixed_precision_space,
    mixed_precision_strategy,
)
from neural_compressor.strategy.model_based import BayesianStrategy, TpeStrategy
from neural_compressor.strategy.sensitivity import HawqV2Strategy, MseStrategy, MseV2Strategy
from neural_compressor.strategy.space import OpSpace, TuningSpace

__all__ = [
    "STRATEGIES",
    "AutoMixedPrecisionStrategy",
    "AutoStrategy",
    "BasicStrategy",
    "BayesianStrategy",
    "ConservativeStrategy",
    "ExhaustiveStrategy",
    "HawqV2Strategy",
    "MseStrategy",
    "MseV2Strategy",
    "OpSpace",
    "Outcome",
    "Proposal",
    "RandomStrategy",
    "Strategy",
    "TpeStrategy",
    "TuningSpace",
    "build_space",
    "mixed_precision_space",
    "mixed_precision_strategy",
    "strategy_for",
    "unapplied_recipes",
]
