"""Parts of a model in bf16 or fp16 under an accuracy promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from neural_compressor.adaptor.contract import adaptor_for
from neural_compressor.config import MixedPrecisionConfig
from neural_compressor.config.process_options import options
from neural_compressor.errors import ConfigError
from neural_compressor.model import unwrapped
from neural_compressor.quantization import QuantizedModel, check_evaluation, check_run, evaluator_of, load
from neural_compressor.report.run_report import RunReport
from neural_compressor.strategy import mixed_precision_space, mixed_precision_strategy
from neural_compressor.tuning.loop import tune
from neural_compressor.tuning.workspace import writable_folder

__all__ = ["MixedPrecisionConfig", "fit", "load"]


def fit(
    model: Any,
    conf: MixedPrecisionConfig,
    eval_func: Callable[[Any], Any] | None = None,
    eval_dataloader: Iterable[Any] | None = None,
    eval_metric: Any = None,
    *,
    workspace: str | Path | None = None,
    storage: str | None = None,
    title: str | None = None,
    resume: bool = True,
    quiet: bool = False,
) -> QuantizedModel:
    """Run what can be of ``model`` in the precisions of ``conf``, so that the promise of its accuracy criterion holds.

    Where it does not, op types, blocks and single ops go back to fp32 until it does. Without an evaluation every op that the
    framework runs in the first of the precisions does. ``conf.example_inputs``, or the data of the evaluation, show how the
    model is called, so that speed can be measured. All else is as with :func:`neural_compressor.quantization.fit`.
    """
    workspace = options.folder(workspace)
    if not isinstance(conf, MixedPrecisionConfig):
        raise ConfigError(f"conf is a {type(conf).__name__}; mix_precision.fit takes a MixedPrecisionConfig")
    check_run(title, resume, quiet)
    check_evaluation(conf, eval_func, eval_dataloader, eval_metric)
    info = {
        "example_inputs": conf.example_inputs,
        "dataloader": eval_dataloader,
        "workspace": str(workspace),
        "device": conf.device,
        "backend": conf.backend,
        "graph_only": eval_func is None and eval_dataloader is None,
    }
    writable_folder(workspace)
    model = unwrapped(model)
    adaptor = adaptor_for(model)(info)
    adaptor.check_settings(conf)
    model = adaptor.ready(model)
    space = mixed_precision_space(adaptor.query_fw_capability(model), conf)
    best, result = tune(
        adaptor,
        model,
        conf,
        mixed_precision_strategy(conf, space),
        evaluator=evaluator_of(adaptor, eval_func, eval_dataloader, eval_metric),
        workspace=workspace,
        storage=storage,
        title=title,
        reporter=RunReport(quiet),
        resume=resume,
    )
    return QuantizedModel(best, adaptor, result)
