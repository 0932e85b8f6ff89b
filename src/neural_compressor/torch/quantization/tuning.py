"""Try configurations until one keeps the accuracy promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from neural_compressor.config import PostTrainingQuantConfig, TuningCriterion
from neural_compressor.config.objective import objectives
from neural_compressor.errors import ConfigError
from neural_compressor.report.evidence import add_evidence
from neural_compressor.report.html import keep_report
from neural_compressor.report.terminal import TuningProgress, print_result
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.strategy.base import Proposal
from neural_compressor.strategy.listed_fallback import ListedFallbackStrategy
from neural_compressor.strategy.space import TuningSpace
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.checks import require_module, require_values
from neural_compressor.torch.quantization.config import TuningConfig
from neural_compressor.torch.quantization.plans import plan_for
from neural_compressor.tuning.evaluator import Evaluator
from neural_compressor.tuning.loop import tune
from neural_compressor.tuning.result import TuningResult


def autotune(
    model: nn.Module,
    tune_config: TuningConfig,
    eval_fn: Callable[..., Any],
    eval_args: Any = None,
    run_fn: Callable[..., Any] | None = None,
    run_args: Any = None,
    example_inputs: Any = None,
    *,
    quiet: bool = False,
) -> nn.Module:
    """The best model among the configurations of ``tune_config``, by the metric that ``eval_fn(model, *eval_args)`` returns.

    ``run_fn(model, *run_args)`` feeds calibration data to algorithms that need it. Where no configuration keeps the promise,
    single ops of the best one go back to float. The float model is left untouched. A
    journal in ``tune_config.workspace`` lets a killed run go on; the returned model has the evidence as its attribute
    ``tuning``, also where the promise was not kept. ``quiet`` leaves out what the terminal shows of it.
    """
    require_module(model, "autotune")
    require_values(model)
    if not isinstance(tune_config, TuningConfig):
        raise ConfigError(
            f"tune_config is a {type(tune_config).__name__}; expected TuningConfig(config_set=...), with what is to be tried"
        )
    plans: dict[Plan, Proposal] = {}
    left: dict[OpKey, str] = {}
    for config in tune_config.candidates():
        plan, reasons = plan_for(model, config)  # what makes no sense is said before any work
        plans.setdefault(plan, Proposal(plan, str(config)))
        left |= reasons
    listed = list(plans.values())
    conf = PostTrainingQuantConfig(
        accuracy_criterion=tune_config.accuracy_criterion,
        tuning_criterion=TuningCriterion(
            max_trials=tune_config.max_trials, timeout=tune_config.timeout, objective=objectives("modelsize")
        ),
    )
    workspace = tune_config.workspace or Path("nc_workspace")
    adaptor = PyTorchAdaptor(
        {"example_inputs": example_inputs, "workspace": str(workspace), "passes": (), "reasons": left}
    )

    def conclude(result: TuningResult) -> None:
        add_evidence(result, adaptor, tune_config)
        result.report = keep_report(result, workspace)

    with TuningProgress(min(tune_config.max_trials, len(listed)), quiet=quiet) as progress:
        best, result = tune(
            adaptor,
            model,
            conf,
            space := TuningSpace({}),
            ListedFallbackStrategy(space, listed, tune_config.seed),
            evaluator=Evaluator(adaptor, eval_func=_with_arguments(eval_fn, eval_args)),
            calib_func=None if run_fn is None else _with_arguments(run_fn, run_args),
            example_batch=example_inputs,
            workspace=workspace,
            title=type(model).__name__,
            progress=progress,
            conclude=conclude,
        )
    if not quiet:
        print_result(result)
    best.tuning = result
    return best  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _WithArguments:
    """A function of a model and more as one of a model."""

    func: Callable[..., Any]
    arguments: Sequence[Any]

    @property
    def known_by(self) -> tuple[Any, ...]:
        """What a journal knows it by."""
        return self.func, self.arguments

    def __call__(self, model: Any) -> Any:
        return self.func(model, *self.arguments)


def _with_arguments(function: Callable[..., Any], arguments: Any) -> Callable[[Any], Any]:
    if arguments is None:
        return function
    return _WithArguments(function, arguments if isinstance(arguments, (tuple, list)) else (arguments,))
