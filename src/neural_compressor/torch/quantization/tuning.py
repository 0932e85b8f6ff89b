"""Try configurations until one keeps the accuracy promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from neural_compressor.config.composition import Composition
from neural_compressor.errors import ConfigError
from neural_compressor.report.run_report import RunReport
from neural_compressor.schemes import Plan
from neural_compressor.strategy.base import Proposal
from neural_compressor.strategy.listed import ListedStrategy
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.checks import copy_of, require_module, require_values
from neural_compressor.torch.inspection import op_records
from neural_compressor.torch.quantization.config import TuningConfig
from neural_compressor.torch.quantization.layer_jobs import jobs_for
from neural_compressor.torch.quantization.preparation import quantize
from neural_compressor.tuning.evaluator import with_arguments
from neural_compressor.tuning.loop import tune
from neural_compressor.tuning.workspace import DEFAULT_WORKSPACE

_RECIPE = "config"


class ConfigAdaptor(PyTorchAdaptor):
    """PyTorch for plans that carry a whole configuration instead of a scheme for each op."""

    def __init__(self, model: nn.Module, example_inputs: Any, workspace: str) -> None:
        super().__init__({"example_inputs": example_inputs, "workspace": workspace})
        self._source, self.example = model, example_inputs

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: nn.Module,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[nn.Module], Any] | None = None,
    ) -> nn.Module:
        config = Composition.from_dict(tune_cfg["recipe_cfgs"][_RECIPE])
        return quantize(copy_of(model), config, run_fn=q_func, quiet=True)

    def summary(self, model: nn.Module) -> list[Any]:
        return self._timed(op_records(model, self._source, self.example, {}), model)


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

    ``run_fn(model, *run_args)`` feeds calibration data to algorithms that need it. The float model is left untouched. A
    journal in ``tune_config.workspace`` lets a killed run go on; the returned model has the evidence as its attribute
    ``tuning``, also where the promise was not kept. ``quiet`` leaves out what the terminal shows of it.
    """
    require_module(model, "autotune")
    require_values(model)
    if not isinstance(tune_config, TuningConfig):
        raise ConfigError(
            f"tune_config is a {type(tune_config).__name__}; expected TuningConfig(config_set=...), with what is to be tried"
        )
    configs = tune_config.candidates()
    for config in configs:
        jobs_for(model, config)  # what makes no sense is said before any work
    listed = [Proposal(Plan({}, recipes={_RECIPE: config.to_dict()}), str(config)) for config in configs]
    best, result = tune(
        ConfigAdaptor(model, example_inputs, str(tune_config.workspace or DEFAULT_WORKSPACE)),
        model,
        tune_config,
        # Plans with a scheme for each op can be given as they are, so that single ops fall back to float.
        ListedStrategy(listed, tune_config.seed),
        evaluator=with_arguments(eval_fn, eval_args),
        calib_func=None if run_fn is None else with_arguments(run_fn, run_args, "run_fn"),
        workspace=tune_config.workspace,
        reporter=RunReport(quiet),
    )
    best.tuning = result
    return best  # type: ignore[no-any-return]
