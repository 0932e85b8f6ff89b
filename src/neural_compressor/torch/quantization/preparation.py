"""Prepare a model, let calibration data run through it, convert it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.errors import ConfigError
from neural_compressor.report.terminal import print_ops
from neural_compressor.torch.batches import fitting
from neural_compressor.torch.checks import check_finite, copy_of, require_module
from neural_compressor.torch.executor import Execution
from neural_compressor.torch.files.checkpoint import save_model
from neural_compressor.torch.files.streaming import WeightSource, is_empty
from neural_compressor.torch.inspection import op_records
from neural_compressor.torch.passes.survey import Survey
from neural_compressor.torch.quantization.plans import plan_for
from neural_compressor.torch.quantized_model import Quantization

_ATTRIBUTE = "_prepared"


def prepare(model: nn.Module, quant_config: Any, inplace: bool = True, example_inputs: Any = None) -> nn.Module:
    """Make ``model`` ready for calibration: run it on data next, then :func:`convert` it.

    The configuration is resolved here, so a rule that matches nothing or a value that makes no sense is said before any
    work. ``inplace=False`` works on a copy. With ``example_inputs`` a model with static ops is checked on these,
    and not on the first batch of the data.
    """
    require_module(model, "prepare")
    if _execution(model) is not None:
        raise ConfigError("the model is prepared already: calibrate and convert it, or prepare the float model again")
    if isinstance(getattr(model, "quantization", None), Quantization):
        raise ConfigError("the model is quantized already; prepare takes a float model")
    check_finite(model)
    plan, left = plan_for(model, quant_config)
    model = model if inplace else copy_of(model)
    execution = Execution(model, plan, reasons=left, weights=_weights(model, quant_config), example=example_inputs)
    if example_inputs is not None and plan.passes:
        execution.survey = Survey(model)
        with fitting("example_inputs", example_inputs):
            execution.survey.see(example_inputs)
    if execution.needs_data:
        execution.listen()
    setattr(model, _ATTRIBUTE, execution)
    return model


def _execution(model: nn.Module) -> Execution | None:
    """What :func:`prepare` left on the model."""
    return getattr(model, _ATTRIBUTE, None)


def _weights(model: nn.Module, config: Any) -> WeightSource | None:
    """Where the weights of an empty model come from."""
    if not is_empty(model):
        return None
    folder = next((part.model_path for part in config.parts if getattr(part, "model_path", "")), "")
    if not folder:
        raise ConfigError(
            "the model has parameters without values (meta device): set model_path in the configuration to the folder "
            "of its safetensors"
        )
    return WeightSource(folder)


def finalize_calibration(model: nn.Module) -> nn.Module:
    """Stop collecting calibration data."""
    execution = _execution(model)
    if execution is None:
        raise ConfigError("the model is not prepared: call prepare(model, quant_config) first")
    execution.stop()
    return model


def convert(
    model: nn.Module,
    quant_config: Any = None,
    inplace: bool = True,
    on_block: Callable[[str, int, int], None] | None = None,
    *,
    quiet: bool = False,
) -> nn.Module:
    """Quantize a prepared and calibrated model.

    With ``quant_config`` a float model is converted at once, which algorithms that need no data allow. ``inplace=False``
    works on a copy; calibration of the model itself ends all the same. A few lines on standard error say what runs on
    low-bit kernels, what is simulated and what stayed in float, and why; ``quiet`` leaves them out.
    """
    require_module(model, "convert")
    if _execution(model) is None:
        if quant_config is None:
            raise ConfigError(
                "the model is not prepared: call prepare(model, quant_config), calibrate, then convert(model)"
            )
        model, inplace = prepare(model, quant_config, inplace=inplace), True
    finalize_calibration(model)
    model = model if inplace else copy_of(model)
    execution = _execution(model)
    assert execution is not None
    delattr(model, _ATTRIBUTE)
    new = execution.apply(on_block)
    new.save = functools.partial(save_model, new)  # type: ignore[assignment]
    if not quiet:
        print_ops(op_records(new, None, None, {}))
    return new


def quantize(
    model: nn.Module,
    quant_config: Any,
    run_fn: Callable[..., Any] | None = None,
    run_args: Any = None,
    inplace: bool = True,
    example_inputs: Any = None,
    *,
    quiet: bool = False,
) -> nn.Module:
    """:func:`prepare`, ``run_fn(model, *run_args)`` where the algorithms need data, :func:`convert`."""
    if run_fn is not None and not callable(run_fn):
        raise ConfigError(f"run_fn is a {type(run_fn).__name__}; it must be a function that takes the model")
    prepared = prepare(model, quant_config, inplace, example_inputs)
    execution = _execution(prepared)
    if run_fn is not None and execution is not None and execution.is_listening:
        arguments = run_args if isinstance(run_args, (tuple, list)) else () if run_args is None else (run_args,)
        with calibrating(run_fn, "run_fn", lambda: execution.runs):
            run_fn(prepared, *arguments)
    return convert(prepared, quiet=quiet)
