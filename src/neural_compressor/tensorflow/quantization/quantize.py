"""Quantize a Keras model or a SavedModel as a configuration says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from neural_compressor.adaptor.user_code import require_function
from neural_compressor.config.validators import is_whole
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.report.terminal import print_ops
from neural_compressor.tensorflow.adaptor.base import GraphAdaptor
from neural_compressor.tensorflow.adaptor.requirements import require_tensorflow
from neural_compressor.tensorflow.quantization.model import Model, ready_model
from neural_compressor.tensorflow.quantization.plans import composed, plan_for

logger = logging.getLogger("neural_compressor")


def quantize_model(
    model: Any,
    quant_config: Any,
    calib_dataloader: Iterable[Any] | None = None,
    calib_iteration: int = 100,
    calib_func: Callable[[Any], Any] | None = None,
    *,
    quiet: bool = False,
) -> Model:
    """``model`` quantized as ``quant_config`` says: a configuration, or a list of them that act together.

    The model is a Keras model, the path of a file of one, or the folder of a SavedModel, which becomes a LiteRT model.

    Static ops take ranges from ``calib_iteration`` batches of ``calib_dataloader``, or from the calls that
    ``calib_func(model)`` makes. The model that was given stays as it is. A few lines on standard error say what is quantized
    and what stayed in float, and why; ``quiet`` leaves them out.
    """
    require_tensorflow()
    config = composed(quant_config)
    check_data(calib_dataloader, calib_iteration, calib_func)
    adaptor, model = ready_model(model, {"dataloader": calib_dataloader})
    capability = adaptor.query_fw_capability(model)
    plan, left = plan_for(capability, config, calib_iteration * samples_in_batch(adaptor))
    adaptor.info["reasons"] = left
    if "static" in plan.modes and calib_dataloader is None and calib_func is None:
        raise CalibrationError(
            "the configuration takes ranges from data: give calib_dataloader or calib_func, or use DynamicQuantConfig"
        )
    quantized = adaptor.quantize(plan.to_tune_cfg(), model, calib_dataloader, calib_func)
    for name, why in adaptor.shared(quantized).items():
        logger.warning("op %r has not all of its scheme: %s", name, why)
    if not quiet:
        print_ops(adaptor.summary(quantized))
    return Model(quantized, adaptor)


def check_data(loader: Any, iterations: Any, function: Any) -> None:
    """Refuse what says twice, or not in a way that makes sense, where ranges come from."""
    if loader is not None and function is not None:
        raise ConfigError("calib_func calibrates, and calib_dataloader would not be read: give one of them")
    require_function(function, "calib_func")
    if not is_whole(iterations) or iterations < 1:
        raise ConfigError(f"calib_iteration: got {iterations!r}, expected a whole number >= 1")


def samples_in_batch(adaptor: GraphAdaptor) -> int:
    """How many samples the first batch of the adaptor's data has."""
    return int(adaptor.info.get("batch_size") or 1)
