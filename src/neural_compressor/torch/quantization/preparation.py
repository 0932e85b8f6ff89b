"""Prepare a model, let calibration data run through it, convert it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.observers.input_check import CalibrationInputs
from neural_compressor.report.terminal import print_ops
from neural_compressor.schemes import OpScheme, Plan
from neural_compressor.torch.batches import batch_size, note_inputs
from neural_compressor.torch.checks import check_finite, copy_of, require_module
from neural_compressor.torch.files.checkpoint import save_model
from neural_compressor.torch.files.streaming import WeightSource, is_empty
from neural_compressor.torch.inspection import op_records
from neural_compressor.torch.methods.weight_only.jobs import LayerJob
from neural_compressor.torch.methods.weight_only.quantizer import WeightOnlyQuantizer
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.quantization.deferred import Deferred
from neural_compressor.torch.quantization.layer_jobs import jobs_for
from neural_compressor.torch.quantized_model import Quantization
from neural_compressor.torch.structure.ops import op_type
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit, is_plain, remembered

logger = logging.getLogger("neural_compressor")
_ATTRIBUTE = "_prepared"


@dataclass
class Preparation:
    """What :func:`prepare` found out and calibration adds to; an attribute of the prepared model."""

    config: Any
    jobs: dict[str, LayerJob]
    left: dict[tuple[str, str], str]
    flags: dict[str, bool]
    calls: list[Arguments] = field(default_factory=list)
    samples: int = 0
    runs: int = 0
    inputs: CalibrationInputs = field(default_factory=CalibrationInputs)
    hook: Any = None
    own_forward: Any = None

    def listen(self, model: nn.Module) -> None:
        """Remember what the model is called with; that is all block-by-block calibration needs.

        The first call runs, so that data that does not fit the model is seen at once. Later ones run when their output is
        looked at, which calibration loops seldom do: a run of the whole model costs as much as one of the algorithm's own.
        """
        limit = CalibrationLimit.covering(job.limit for job in self.jobs.values() if job.needs_data)

        def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = remembered(module, args, kwargs)
            self.runs += 1
            note_inputs(self.inputs, module, args, kwargs)
            if batch_size(call) == 0:
                return
            used = limit.cut(call, self.samples)
            if used is not None:
                self.calls.append(used)
            if self.samples <= limit.samples < self.samples + batch_size(call):
                logger.warning("calibration data behind the first %d samples is not used (nsamples)", limit.samples)
            self.samples += batch_size(call)

        self.hook = model.register_forward_pre_hook(remember, with_kwargs=True)
        self.own_forward = model.__dict__.get("forward")
        # A model without weights has no outputs to give: calls are remembered and return None.
        model.forward = (lambda *args, **kwargs: None) if is_empty(model) else self._deferring(model, model.forward)

    def _deferring(self, model: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        tried = False

        def run_or_defer(*args: Any, **kwargs: Any) -> Any:
            nonlocal tried
            if not tried or not is_plain((args, kwargs)):
                tried = True
                return forward(*args, **kwargs)
            gradients = torch.is_grad_enabled()

            def run() -> Any:
                if preparation_of(model) is not self:
                    raise CalibrationError(
                        "the output of a calibration run was looked at after convert, when the float model was gone; "
                        "look at it before"
                    )
                with torch.set_grad_enabled(gradients):
                    return forward(*args, **kwargs)

            return Deferred(run)

        return functools.wraps(forward)(run_or_defer)

    def stop_listening(self, model: nn.Module) -> None:
        """End of calibration."""
        if self.hook is not None:
            self.hook.remove()
            self.hook = None
            self.inputs.warn()
            del model.forward
            if self.own_forward is not None:
                model.forward = self.own_forward

    def source(self, model: nn.Module) -> WeightSource | None:
        """Where the weights of an empty model come from."""
        if not is_empty(model):
            return None
        folder = next((part.model_path for part in self.config.parts if getattr(part, "model_path", "")), "")
        if not folder:
            raise ConfigError(
                "the model has parameters without values (meta device): set model_path in the configuration to the folder "
                "of its safetensors"
            )
        return WeightSource(folder)


def prepare(model: nn.Module, quant_config: Any, inplace: bool = True, example_inputs: Any = None) -> nn.Module:
    """Make ``model`` ready for calibration: run it on data next, then :func:`convert` it.

    The configuration is resolved here, so a rule that matches nothing or a value that makes no sense is said before any
    work. ``inplace=False`` works on a copy.
    """
    require_module(model, "prepare")
    if preparation_of(model) is not None:
        raise ConfigError("the model is prepared already: calibrate and convert it, or prepare the float model again")
    if isinstance(getattr(model, "quantization", None), Quantization):
        raise ConfigError("the model is quantized already; prepare takes a float model")
    check_finite(model)
    jobs, left, flags = jobs_for(model, quant_config)
    model = model if inplace else copy_of(model)
    preparation = Preparation(quant_config, jobs, left, flags)
    if any(job.needs_data for job in jobs.values()):
        preparation.listen(model)
    setattr(model, _ATTRIBUTE, preparation)
    return model


def preparation_of(model: nn.Module) -> Preparation | None:
    """What :func:`prepare` left on the model."""
    return getattr(model, _ATTRIBUTE, None)


def finalize_calibration(model: nn.Module) -> nn.Module:
    """Stop collecting calibration data."""
    preparation = preparation_of(model)
    if preparation is None:
        raise ConfigError("the model is not prepared: call prepare(model, quant_config) first")
    preparation.stop_listening(model)
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

    With ``quant_config`` a float model is converted at once, which algorithms that need no data allow. A few lines on
    standard error say what runs on low-bit kernels, what is simulated and what stayed in float, and why; ``quiet`` leaves
    them out.
    """
    require_module(model, "convert")
    if preparation_of(model) is None:
        if quant_config is None:
            raise ConfigError(
                "the model is not prepared: call prepare(model, quant_config), calibrate, then convert(model)"
            )
        model, inplace = prepare(model, quant_config, inplace=inplace), True
    model = model if inplace else copy_of(model)
    preparation = preparation_of(model)
    assert preparation is not None
    preparation.stop_listening(model)
    source = preparation.source(model)
    delattr(model, _ATTRIBUTE)
    training = model.training
    model.eval()
    kinds = {name: op_type(model, name) for name in preparation.jobs}
    quantizer = WeightOnlyQuantizer(
        model,
        preparation.jobs,
        upstream=preparation.flags["upstream"],
        true_sequential=preparation.flags["true_sequential"],
        amp=preparation.flags["amp"],
        source=source,
        on_block=on_block,
    )
    missed = quantizer.run(preparation.calls)
    new = quantizer.model.train(training)
    schemes = {
        (name, kinds[name]): OpScheme(weight=job.scheme, mode="weight_only")
        for name, job in preparation.jobs.items()
        if name not in missed
    }
    reasons = {**preparation.left, **{(name, kinds[name]): why for name, why in missed.items()}}
    new.quantization = Quantization(Plan(schemes), Structure(), reasons)  # type: ignore[assignment]
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
    found = preparation_of(prepared)
    if run_fn is not None and found is not None and found.hook is not None:
        arguments = run_args if isinstance(run_args, (tuple, list)) else () if run_args is None else (run_args,)
        with calibrating(run_fn, "run_fn", lambda: found.runs):
            run_fn(prepared, *arguments)
    return convert(prepared, quiet=quiet)
