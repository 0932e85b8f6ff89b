"""``quantize``: prepare, calibrate and convert in one call; existing programs import the three from here too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from neural_compressor.adaptor.user_code import calibrating, require_function
from neural_compressor.config.composed import config_of
from neural_compressor.torch.quantization.autoround_runs import refuse_both, runs_of
from neural_compressor.torch.quantization.conversion import convert, convert_prepared
from neural_compressor.torch.quantization.preparation import prepare, prepare_qat
from neural_compressor.torch.quantization.prepared import Prepared, abandoned_on_failure, finalize_calibration

__all__ = ["convert", "finalize_calibration", "prepare", "prepare_qat", "quantize"]


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
    """:func:`prepare`, ``run_fn(model, *run_args)`` where the algorithms need data, :func:`convert`.

    Where ``run_fn`` raises, the model is the float model that it was.
    A mode of :class:`FP8Config` that only measures writes its statistics and returns the float model.
    """
    require_function(run_fn, "run_fn")
    quant_config = config_of(quant_config, "torch")
    refuse_both(runs_of(quant_config), run_fn, "run_fn")
    model = prepare(model, quant_config, inplace, example_inputs)
    prepared = Prepared.of(model)
    assert prepared is not None
    if run_fn is not None and prepared.sees_data:
        arguments = run_args if isinstance(run_args, (tuple, list)) else () if run_args is None else (run_args,)
        with abandoned_on_failure(model), calibrating(run_fn, "run_fn", lambda: prepared.runs):
            run_fn(model, *arguments)
    if prepared.run is not None and not prepared.run.config.quantize:
        return finalize_calibration(model)
    return convert_prepared(model, quiet=quiet, again=False)
