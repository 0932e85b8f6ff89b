"""``convert``: the quantized model of a prepared one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from neural_compressor.config.composed import config_of
from neural_compressor.errors import ConfigError
from neural_compressor.report.terminal import print_ops
from neural_compressor.torch.checks import PREPARED, copy_of, require_module, require_same_config
from neural_compressor.torch.inspection import op_records
from neural_compressor.torch.methods.qat import QatSession
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.function_products import close_products
from neural_compressor.torch.pt2e.exported import is_exported
from neural_compressor.torch.pt2e.records import graph_records
from neural_compressor.torch.quantization.config.defaults import trained_scheme
from neural_compressor.torch.quantization.fp8_runs import from_files
from neural_compressor.torch.quantization.preparation import prepare
from neural_compressor.torch.quantization.prepared import Prepared, check_parts, made_float
from neural_compressor.torch.quantization.saving import save
from neural_compressor.torch.quantized_model import Quantization

logger = logging.getLogger("neural_compressor")


def convert(
    model: nn.Module,
    quant_config: Any = None,
    inplace: bool = True,
    on_block: Callable[[str, int, int], None] | None = None,
    *,
    quiet: bool = False,
) -> nn.Module:
    """Quantize a prepared and calibrated model, or one that was trained after :func:`prepare_qat`.

    With ``quant_config`` a float model is converted at once, which algorithms that need no data allow, and an
    :class:`FP8Config` whose ``dump_stats_path`` has statistics of an earlier run. ``inplace=False``
    works on a copy; calibration of the model itself ends all the same. An exported model stays as it is, and is
    prepared still with ``inplace=False``. A few lines on standard error say what runs on
    low-bit kernels, what is simulated and what stayed in float, and why; ``quiet`` leaves them out.
    """
    require_module(model, "convert")
    prepared = Prepared.of(model)
    if prepared is None:
        check_parts(model)
        if quant_config is None and isinstance(getattr(model, "quantization", None), Quantization):
            raise ConfigError("the model is quantized already: convert takes one that was prepared")
        if quant_config is None:
            returned = " the model that prepare returned" if is_exported(model) else "(model)"
            raise ConfigError(
                f"the model is not prepared: call prepare(model, quant_config), calibrate, then convert{returned}"
            )
        model = prepare(model, from_files(config_of(quant_config, "torch")), inplace=inplace)
        return convert_prepared(model, True, on_block, quiet, again=False)
    if quant_config is not None:
        require_same_config(config_of(trained_scheme(quant_config), "torch"), prepared.config)
    return convert_prepared(model, inplace, on_block, quiet, again=True)


def convert_prepared(
    model: nn.Module,
    inplace: bool = True,
    on_block: Callable[[str, int, int], None] | None = None,
    quiet: bool = False,
    *,
    again: bool,
) -> nn.Module:
    """As :func:`convert`; ``again`` where the caller prepared the model, and can convert it again when that has failed."""
    given = Prepared.of(model)
    assert given is not None
    run, listened = given.run, not isinstance(given.execution, QatSession) and given.execution.is_listening
    given.stop()
    if run is not None and run.config.mode == "NONE":
        logger.warning("FP8Config.mode is 'NONE': the model stays in float")
        return made_float(model)
    if run is not None and not run.config.quantize:
        raise ConfigError(
            f"FP8Config.mode is {run.config.mode!r}, which measures: the statistics are in {run.files.own}, and "
            "convert(float_model, FP8Config(mode='QUANTIZE', ...)) quantizes with them"
        )
    model = model if inplace or is_exported(model) else copy_of(model)
    # Off the model meanwhile: copies of it would take the calibration data along.
    prepared: Prepared = vars(model).pop(PREPARED)
    execution = prepared.execution
    new: nn.Module | None = None
    try:
        if run is not None:
            run.settle_caches()
        new = execution.finish() if isinstance(execution, QatSession) else execution.apply(on_block)
    finally:
        failed = new is None and again and not any(isinstance(module, QuantModule) for module in model.modules())
        if failed or (is_exported(model) and not inplace):
            prepared.put_on(model)
        if failed and listened and not execution.runs:
            given.execution.listen()  # data was forgotten, and can run now
        if new is None and not again:
            close_products(model)
    assert new is not None
    if run is not None:
        run.keep_scales(new)
        run.attach_caches(new)
    is_graph = is_exported(new)
    new.save = functools.partial(save, new)  # type: ignore[assignment]
    _warn_if_training(new)
    if prepared.export is not None:
        prepared.export.finish(new)
    if not quiet:
        print_ops(graph_records(new) if is_graph else op_records(new, None, None, {}))
    return new


def _warn_if_training(model: nn.Module) -> None:
    """Say so where the mode in which the model was given, and comes back, makes its outputs depend on batch or chance."""
    live = [
        name
        for name, module in model.named_modules()
        if module.training and (isinstance(module, _BatchNorm) or (isinstance(module, _DropoutNd) and module.p > 0))
    ]
    if live:
        logger.warning(
            "the quantized model is in training mode, as the float model was, in which %d of its modules (%s, a %s, first) "
            "compute with statistics of the batch or drop values at random; call .eval() on it before inference",
            len(live),
            live[0],
            type(model.get_submodule(live[0])).__name__,
        )
