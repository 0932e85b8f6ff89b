"""``autotune``: configurations tried one after the other until one keeps the accuracy promise."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.config.process_options import options
from neural_compressor.errors import ConfigError
from neural_compressor.report.run_report import RunReport
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.strategy.base import Proposal
from neural_compressor.strategy.listed import candidates, is_from
from neural_compressor.torch.adaptor import PyTorchAdaptor
from neural_compressor.torch.checks import require_module, require_values
from neural_compressor.torch.executor import prepare
from neural_compressor.torch.passes.model_pass import read_pass
from neural_compressor.torch.pt2e.exported import is_exported, torchao_required
from neural_compressor.torch.quantization.autoround_runs import data_for_all, export_of_all, target_of
from neural_compressor.torch.quantization.config import TuningConfig
from neural_compressor.torch.quantization.plans import plan_for
from neural_compressor.torch.quantization.products import may_name_products
from neural_compressor.torch.quantization.saving import save
from neural_compressor.torch.structure.ops import BY_FUNCTION
from neural_compressor.tuning.evaluator import with_arguments
from neural_compressor.tuning.loop import tune

logger = logging.getLogger("neural_compressor")


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

    ``run_fn(model, *run_args)`` feeds calibration data to algorithms that need it, or configurations name data themselves,
    the same for all; without any these are not tried, nor is a configuration that finds nothing in the model to quantize:
    a warning says so, and an error where none is left. Where no configuration keeps the promise, single ops of the best
    one go back to float. The float model is left untouched. A
    journal in ``tune_config.workspace`` lets a killed run go on; the returned model has the evidence as its attribute
    ``tuning``, also where the promise was not kept. ``quiet`` leaves out what the terminal shows of it.

    Of an exported model graphs are tried, and evaluated op by op; ``eval_fn`` may compile what it is given.
    """
    require_module(model, "autotune")
    is_graph = is_exported(model)
    if is_graph and example_inputs is not None:
        logger.warning(
            "autotune does not use example_inputs: they are for latency, and an exported graph is fast only when it is "
            "compiled; time torch.compile(model) in eval_fn"
        )
        example_inputs = None
    require_values(model)
    TuningConfig.require(tune_config)
    configs = list(tune_config.candidates())
    # Of all, before those are left out that differ in their data or files alone.
    asked = [each for config in tune_config.config_set for each in config.expand()]
    export = export_of_all(asked)
    if any(target_of(config, model) is not None for config in configs):
        raise ConfigError("autotune: device_map of AutoRoundConfig is of prepare; move the model before autotune")
    run_fn = data_for_all(asked, run_fn)
    workspace = str(options.folder(tune_config.workspace))
    left: dict[Plan, Mapping[OpKey, str]] = {}
    info = {
        "example_inputs": example_inputs,
        "workspace": workspace,
        "passes": (),
        "reasons": partial(_reasons, left),
    }
    adaptor = _adaptor(info, is_graph)
    planned = model
    if isinstance(adaptor, PyTorchAdaptor) and any(may_name_products(model, config) for config in configs):
        planned = adaptor.with_products(model)
    tried = candidates(
        configs,
        lambda config: plan_for(planned, config, without_runs="autotune"),
        lambda made: run_fn is None and _needs_data(planned, made[0], is_graph),
        "give a run_fn that runs the model on some",
    )
    for _, (plan, reasons) in tried:
        if export is not None:
            export.check(planned, plan)
        left.setdefault(plan, {key: why for key, why in reasons.items() if why != BY_FUNCTION})
    best, result = tune(
        adaptor,
        model,
        tune_config,
        [Proposal(plan, str(config)) for config, (plan, _) in tried],
        evaluator=with_arguments(eval_fn, eval_args),
        calib_func=None if run_fn is None else with_arguments(run_fn, run_args, "run_fn"),
        workspace=tune_config.workspace,
        reporter=RunReport(quiet),
    )
    best.tuning = result
    best.save = partial(save, best)
    if export is not None:
        export.finish(best)
    return best  # type: ignore[no-any-return]


def _reasons(left: Mapping[Plan, Mapping[OpKey, str]], plan: Plan) -> Mapping[OpKey, str]:
    """Why ops that ``plan`` does not name stay in float, by the configuration that it is from."""
    return next((reasons for listed, reasons in left.items() if is_from(plan, listed)), {})


def _needs_data(model: nn.Module, plan: Plan, is_graph: bool) -> bool:
    if is_graph:
        return "static" in plan.modes or any(read_pass(step).wants_data(plan) for step in plan.passes)
    return prepare(model, plan).needs_data


def _adaptor(info: Mapping[str, Any], is_graph: bool) -> Adaptor:
    if not is_graph:
        return PyTorchAdaptor(info)
    with torchao_required():
        from neural_compressor.torch.pt2e.adaptor import ExportedAdaptor
    return ExportedAdaptor(info)
