"""Prepare a model, let calibration data run through it, convert it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.fx import GraphModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from neural_compressor.adaptor.user_code import calibrating
from neural_compressor.algorithms.qat import trained
from neural_compressor.config.base import either
from neural_compressor.config.composed import config_of
from neural_compressor.errors import ConfigError
from neural_compressor.report.terminal import print_ops
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.torch.batches import fitting
from neural_compressor.torch.checks import PREPARED, check_finite, copy_of, require_module, require_same_config
from neural_compressor.torch.executor import Execution
from neural_compressor.torch.files.streaming import WeightSource, home_of, is_empty
from neural_compressor.torch.inspection import op_records
from neural_compressor.torch.methods.qat import QatSession, check_trainable
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.function_products import close_products
from neural_compressor.torch.passes.fold import Structure, fold
from neural_compressor.torch.passes.survey import NOT_LOOKED_FOR, Survey
from neural_compressor.torch.pt2e.exported import copied, is_exported, torchao_required
from neural_compressor.torch.pt2e.records import graph_records
from neural_compressor.torch.quantization.autoround_runs import Export, NamedData, refuse_both, runs_of, target_of
from neural_compressor.torch.quantization.config.defaults import trained_scheme
from neural_compressor.torch.quantization.fp8_runs import FP8Run, fp8_run, from_files
from neural_compressor.torch.quantization.plans import plan_for
from neural_compressor.torch.quantization.products import (
    may_name_products,
    open_function_products,
)
from neural_compressor.torch.quantization.saving import save
from neural_compressor.torch.quantized_model import Quantization
from neural_compressor.torch.structure.ops import BY_FUNCTION

_FP8_RUN = "_fp8_run"
_EXPORT = "_export"
_CONFIG = "_quant_config"
_PREPARED = (PREPARED, _FP8_RUN, _EXPORT, _CONFIG)
"""What a prepared model holds beside itself."""
logger = logging.getLogger("neural_compressor")


def prepare(model: nn.Module, quant_config: Any, inplace: bool = True, example_inputs: Any = None) -> nn.Module:
    """Make ``model`` ready for calibration: run it on data next, then :func:`convert` it.

    The configuration is resolved here, so a rule that matches nothing or a value that makes no sense is said before any
    work; data that it names itself runs here. ``inplace=False`` works on a copy. With ``example_inputs`` a model with
    static ops is checked on these, and not on the first batch of the data. Of an exported model a graph of its own is
    returned in any case, which shares the weights where ``inplace`` is True.
    """
    quant_config = config_of(quant_config, "torch")
    if is_exported(model):
        if example_inputs is not None:
            raise ConfigError(
                "prepare: an exported graph has the inputs it was exported with; leave out example_inputs"
            )
        graph = _prepare_graph(*_planned(model, quant_config, inplace, "prepare"))
        setattr(graph, _CONFIG, quant_config)
        return graph
    data, export = NamedData.of(quant_config), Export.of(quant_config)
    model, plan, left = _planned(model, quant_config, inplace, "prepare", example_inputs)
    with _products_closed_on_failure(model):
        if export is not None:
            export.check(model, plan)
        run = fp8_run(model, quant_config, plan)
        if run is not None:
            run.place()
        every, ranges = (1, None) if run is None else (run.config.calibration_sample_interval, run.ranges())
        execution = Execution(
            model,
            plan,
            reasons=left,
            ranges=ranges,
            weights=_weights(model, quant_config),
            example=example_inputs,
            every=every,
        )
        if example_inputs is not None and plan.passes:
            execution.survey = _seen(model, example_inputs)
    for name, held in zip(_PREPARED, (execution, run, export, quant_config), strict=True):
        setattr(model, name, held)
    with _abandoned_on_failure(model):
        if execution.needs_data and (run is None or run.config.quantize):
            execution.listen()
        if run is not None:
            run.begin(execution)
        if data is not None and (execution.is_listening or (run is not None and run.sees_data)):
            data(model)
    return model


def prepare_qat(
    model: nn.Module,
    quant_config: Any = None,
    inplace: bool = True,
    example_inputs: Any = None,
    *,
    mapping: Any = None,
    learned_step_size: bool = False,
) -> nn.Module:
    """Make ``model`` round as the quantized model will: train it next, in a loop of your own, then :func:`convert` it.

    ``quant_config``, ``mapping`` by another name, may be a scheme of :class:`AutoRoundConfig` for linear layers but the
    output head, as in ``{nn.Linear: "MXFP4"}``; without it that is MXFP8.
    With ``example_inputs`` batch normalisation is folded first, so that the trained weights are those the kernels will see.
    ``learned_step_size`` trains the scales too (LSQ): make the optimizer after this call, so that it has them.
    :func:`finalize_calibration` keeps the ranges of activations as they are from there on.

    Of an exported model a graph of its own is returned, which shares the weights where ``inplace`` is True. Its batch
    normalisation is folded and it has no dropout: it was exported in evaluation mode.
    """
    quant_config = either(quant_config, mapping, "prepare_qat", ("quant_config", "mapping"))
    quant_config = config_of(trained_scheme(quant_config), "torch")
    is_graph = is_exported(model)
    if is_graph:
        _check_graph_training(example_inputs, learned_step_size)
    model, plan, left = _planned(model, quant_config, inplace, "prepare_qat", example_inputs)
    if is_graph:
        graph = _prepare_graph(model, plan, left, training=True)
        setattr(graph, _CONFIG, quant_config)
        return graph
    with _products_closed_on_failure(model):
        check_trainable(plan)
        structure = Structure()
        if example_inputs is not None:
            survey = _seen(model, example_inputs)
            structure = survey.structure
            fold(model, structure)
        trainable = trained(plan, learned_step_size=learned_step_size)
        setattr(model, PREPARED, QatSession(model.train(), trainable, structure, left, example_inputs))
        setattr(model, _CONFIG, quant_config)
    return model


def _planned(
    model: nn.Module, quant_config: Any, inplace: bool, function: str, example_inputs: Any = None
) -> tuple[nn.Module, Plan, dict[OpKey, str]]:
    """A float model, checked, with what the configuration makes of it and why other ops stay in float."""
    require_module(model, function)
    if _execution(model) is not None:
        raise ConfigError("the model is prepared already: calibrate and convert it, or prepare the float model again")
    if isinstance(getattr(model, "quantization", None), Quantization):
        raise ConfigError(f"the model is quantized already; {function} takes a float model")
    if function == "prepare" and (device := target_of(quant_config, model)) is not None:
        if is_exported(model):
            raise ConfigError(f"AutoRoundConfig.device_map: a graph was exported for its device; export it on {device}")
        model, inplace = (model if inplace else copy_of(model)).to(device), True
    check_finite(model)
    without_runs = "" if function == "prepare" else function
    if is_exported(model) or not may_name_products(model, quant_config):
        plan, left = plan_for(model, quant_config, without_runs)
        if not inplace:
            model = copied(model) if isinstance(model, GraphModule) and is_exported(model) else copy_of(model)
        return model, plan, left
    model = model if inplace else copy_of(model)
    looked = open_function_products(model, example_inputs)
    try:
        plan, left = plan_for(model, quant_config, without_runs)
    except BaseException as error:
        close_products(model)
        if isinstance(error, ConfigError) and not looked:
            raise ConfigError(f"{error}. {NOT_LOOKED_FOR}") from error
        raise
    close_products(model, [name for name, _ in plan])
    return model, plan, {key: why for key, why in left.items() if why != BY_FUNCTION}


@contextmanager
def _products_closed_on_failure(model: nn.Module) -> Iterator[None]:
    """Leave no modules for products by functions on a model that what is done meanwhile fails on."""
    try:
        yield
    except BaseException:
        close_products(model)
        raise


def _seen(model: nn.Module, example_inputs: Any) -> Survey:
    survey = Survey(model)
    with fitting("example_inputs", example_inputs):
        survey.see(example_inputs)
    return survey


def _check_graph_training(example_inputs: Any, learned_step_size: bool) -> None:
    if example_inputs is not None:
        raise ConfigError(
            "prepare_qat: batch normalisation of an exported graph is folded without them; leave out example_inputs"
        )
    if learned_step_size:
        raise ConfigError(
            "prepare_qat: learned_step_size is for eager models, whose layers hold the steps; what torchao's flow writes "
            "into a graph are ranges. Leave it out, or train the eager model"
        )


def _prepare_graph(model: Any, plan: Plan, left: dict[OpKey, str], training: bool = False) -> nn.Module:
    """An exported model with observers, a graph of its own over the same weights."""
    with torchao_required():
        from neural_compressor.torch.pt2e.eager_passes import execution_of
        from neural_compressor.torch.pt2e.training import GraphTraining
    execution = (GraphTraining if training else execution_of)(model, plan, left)
    setattr(execution.model, PREPARED, execution)
    return execution.model


def _execution(model: nn.Module) -> Any:
    """What :func:`prepare` left on the model: an execution of an eager model or of a graph, or a training."""
    return getattr(model, PREPARED, None)


def _weights(model: nn.Module, config: Any) -> WeightSource | None:
    """Where the weights of an empty model come from: a folder that the configuration says, or that of its config.json."""
    if not is_empty(model):
        return None
    folder = next((part.model_path for part in config.parts if getattr(part, "model_path", "")), "")
    folder = folder or home_of(model)
    if not folder:
        raise ConfigError(
            "the model has parameters without values (meta device): set model_path in the configuration to the folder "
            "of its safetensors"
        )
    return WeightSource(folder)


def finalize_calibration(model: nn.Module) -> nn.Module:
    """Stop collecting calibration data; a model in training keeps the ranges it has seen."""
    execution = _execution(model)
    if execution is None:
        raise ConfigError("the model is not prepared: call prepare(model, quant_config) first")
    _stop(model, converting=False)
    return model


def _stop(model: nn.Module, converting: bool) -> None:
    """End of calibration; statistics are written, and a model that was only measured is a float model again."""
    execution = _execution(model)
    assert execution is not None
    run: FP8Run | None = getattr(model, _FP8_RUN, None)
    try:
        if run is not None:
            run.stop()
    finally:
        execution.stop()
    if run is not None and not run.config.quantize and not converting:
        _forget(model)
        close_products(model)


@contextmanager
def _abandoned_on_failure(model: nn.Module) -> Iterator[None]:
    """Make the float model of a prepared one again where calibration fails; what that has seen is forgotten."""
    try:
        yield
    except BaseException:
        execution, run = _execution(model), getattr(model, _FP8_RUN, None)
        if run is not None:
            run.abandon()
        execution.abandon()
        _forget(model)
        close_products(model)
        raise


def _forget(model: nn.Module) -> dict[str, Any]:
    """Take off a prepared model what it holds beside itself."""
    return {name: vars(model).pop(name) for name in _PREPARED if name in vars(model)}


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
    if _execution(model) is None:
        if quant_config is None and isinstance(getattr(model, "quantization", None), Quantization):
            raise ConfigError("the model is quantized already: convert takes one that was prepared")
        if quant_config is None:
            returned = " the model that prepare returned" if is_exported(model) else "(model)"
            raise ConfigError(
                f"the model is not prepared: call prepare(model, quant_config), calibrate, then convert{returned}"
            )
        prepared = prepare(model, from_files(config_of(quant_config, "torch")), inplace=inplace)
        return _converted(prepared, True, on_block, quiet, again=False)
    if quant_config is not None:
        require_same_config(config_of(trained_scheme(quant_config), "torch"), getattr(model, _CONFIG, None))
    return _converted(model, inplace, on_block, quiet, again=True)


def _converted(
    model: nn.Module, inplace: bool, on_block: Callable[[str, int, int], None] | None, quiet: bool, again: bool
) -> nn.Module:
    """As :func:`convert`; ``again`` where the caller prepared the model, and can convert it again when that has failed."""
    prepared, execution = model, _execution(model)
    listened = not isinstance(execution, QatSession) and execution.is_listening
    _stop(model, converting=True)
    run: FP8Run | None = getattr(model, _FP8_RUN, None)
    if run is not None and run.config.mode == "NONE":
        _forget(model)
        close_products(model)
        logger.warning("FP8Config.mode is 'NONE': the model stays in float")
        return model
    if run is not None and not run.config.quantize:
        raise ConfigError(
            f"FP8Config.mode is {run.config.mode!r}, which measures: the statistics are in {run.files.own}, and "
            "convert(float_model, FP8Config(mode='QUANTIZE', ...)) quantizes with them"
        )
    model = model if inplace or is_exported(model) else copy_of(model)
    execution = _execution(model)
    assert execution is not None
    # Off the model meanwhile: copies of it would take the calibration data along.
    taken = _forget(model)
    new: nn.Module | None = None
    try:
        if run is not None:
            run.settle_caches()
        new = execution.finish() if isinstance(execution, QatSession) else execution.apply(on_block)
    finally:
        unfinished = new is None
        failed = unfinished and again and not any(isinstance(module, QuantModule) for module in model.modules())
        if failed or (is_exported(model) and not inplace):
            vars(model).update(taken)
        if failed and listened and not execution.runs:
            _execution(prepared).listen()  # data was forgotten, and can run now
        if unfinished and not again:
            close_products(model)
    if run is not None:
        run.keep_scales(new)
        run.attach_caches(new)
    is_graph = is_exported(new)
    new.save = functools.partial(save, new)
    _warn_if_training(new)
    if (export := taken.get(_EXPORT)) is not None:
        export.finish(new)
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
    if run_fn is not None and not callable(run_fn):
        raise ConfigError(f"run_fn is a {type(run_fn).__name__}; it must be a function that takes the model")
    quant_config = config_of(quant_config, "torch")
    refuse_both(runs_of(quant_config), run_fn, "run_fn")
    prepared = prepare(model, quant_config, inplace, example_inputs)
    execution, run = _execution(prepared), getattr(prepared, _FP8_RUN, None)
    sees_data = execution.is_listening or (run is not None and run.sees_data)
    if run_fn is not None and sees_data:
        arguments = run_args if isinstance(run_args, (tuple, list)) else () if run_args is None else (run_args,)
        counted = lambda: execution.runs if run is None else max(execution.runs, run.runs)  # noqa: E731
        with _abandoned_on_failure(prepared), calibrating(run_fn, "run_fn", counted):
            run_fn(prepared, *arguments)
    if run is not None and not run.config.quantize:
        return finalize_calibration(prepared)
    return _converted(prepared, True, None, quiet, again=False)
