"""Parts of a model in bf16 or fp16 under an accuracy promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from neural_compressor.config import MixedPrecisionConfig
from neural_compressor.config.base import either
from neural_compressor.errors import ConfigError
from neural_compressor.quantization import FitSettings, QuantizedModel, check_evaluation, load
from neural_compressor.strategy import mixed_precision_space, mixed_precision_strategy

__all__ = ["MixedPrecisionConfig", "fit", "load"]


def fit(
    model: Any,
    conf: MixedPrecisionConfig | None = None,
    eval_func: Callable[[Any], Any] | None = None,
    eval_dataloader: Iterable[Any] | None = None,
    eval_metric: Any = None,
    *,
    config: MixedPrecisionConfig | None = None,
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
    ``config`` is another word for ``conf``.
    """
    conf = either(conf, config, "mix_precision.fit")
    if not isinstance(conf, MixedPrecisionConfig):
        raise ConfigError(f"conf is a {type(conf).__name__}; mix_precision.fit takes a MixedPrecisionConfig")
    check_evaluation(conf, eval_func, eval_dataloader, eval_metric)
    return FitSettings(workspace, storage, title, resume, quiet).tuned(
        model,
        conf,
        {"dataloader": eval_dataloader},
        lambda adaptor, capability: mixed_precision_strategy(conf, mixed_precision_space(capability, conf)),
        (eval_func, eval_dataloader, eval_metric),
    )
