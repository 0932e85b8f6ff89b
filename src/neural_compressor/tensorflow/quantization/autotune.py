"""``autotune`` of Keras models and SavedModels: configurations tried until one keeps the accuracy promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from neural_compressor.config.process_options import options
from neural_compressor.config.tuning_config import TuningConfig
from neural_compressor.report.run_report import RunReport
from neural_compressor.strategy.base import Proposal
from neural_compressor.strategy.listed import candidates
from neural_compressor.tensorflow.adaptor.requirements import require_tensorflow
from neural_compressor.tensorflow.quantization.config import get_all_config_set
from neural_compressor.tensorflow.quantization.model import Model, ready_model
from neural_compressor.tensorflow.quantization.plans import composed, plan_for
from neural_compressor.tensorflow.quantization.quantize import check_data, samples_in_batch
from neural_compressor.tuning.evaluator import require_repeatable, with_arguments
from neural_compressor.tuning.loop import tune

__all__ = ["TuningConfig", "autotune", "get_all_config_set"]


def autotune(
    model: Any,
    tune_config: TuningConfig,
    eval_fn: Callable[..., Any],
    eval_args: Any = None,
    calib_dataloader: Iterable[Any] | None = None,
    calib_iteration: int = 100,
    calib_func: Callable[[Any], Any] | None = None,
    *,
    quiet: bool = False,
) -> Model:
    """The best model among the configurations of ``tune_config``, by the metric that ``eval_fn(model, *eval_args)`` returns.

    Where no configuration keeps the promise, single ops of the best one go back to float. A journal in
    ``tune_config.workspace`` lets a killed run go on. The result has the evidence as its attribute ``tuning``, also
    where the promise was not kept.
    """
    require_tensorflow()
    TuningConfig.require(tune_config)
    check_data(calib_dataloader, calib_iteration, calib_func)
    if calib_dataloader is not None:
        require_repeatable(calib_dataloader, "calib_dataloader")
    workspace = str(options.folder(tune_config.workspace))
    adaptor, model = ready_model(model, {"dataloader": calib_dataloader, "workspace": workspace})
    capability = adaptor.query_fw_capability(model)
    size = calib_iteration * samples_in_batch(adaptor)
    has_data = calib_dataloader is not None or calib_func is not None
    tried = candidates(
        tune_config.candidates(),
        lambda config: plan_for(capability, composed(config), size)[0],
        lambda plan: "static" in plan.modes and not has_data,
        "give calib_dataloader or calib_func",
    )
    best, result = tune(
        adaptor,
        model,
        tune_config,
        [Proposal(plan, str(config)) for config, plan in tried],
        evaluator=with_arguments(eval_fn, eval_args),
        calib_dataloader=calib_dataloader,
        calib_func=calib_func,
        workspace=tune_config.workspace,
        reporter=RunReport(quiet),
    )
    found = Model(best, adaptor)
    found.tuning = result
    return found
