"""``prepare`` and ``prepare_qat``: a model made ready for calibration or for training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.fx import GraphModule

from neural_compressor.algorithms.qat import trained
from neural_compressor.config.base import either
from neural_compressor.config.composed import config_of
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import OpKey, Plan
from neural_compressor.torch.batches import fitting
from neural_compressor.torch.checks import check_finite, copy_of, require_module
from neural_compressor.torch.executor import Execution
from neural_compressor.torch.files.streaming import WeightSource, home_of, is_empty
from neural_compressor.torch.methods.qat import QatSession, check_trainable
from neural_compressor.torch.modules.function_products import close_products
from neural_compressor.torch.passes.fold import Structure, fold
from neural_compressor.torch.passes.survey import NOT_LOOKED_FOR, Survey
from neural_compressor.torch.pt2e.exported import copied, is_exported, torchao_required
from neural_compressor.torch.quantization.autoround_runs import Export, NamedData, target_of
from neural_compressor.torch.quantization.config.defaults import trained_scheme
from neural_compressor.torch.quantization.fp8_runs import fp8_run
from neural_compressor.torch.quantization.plans import plan_for
from neural_compressor.torch.quantization.prepared import Prepared, abandoned_on_failure, check_parts
from neural_compressor.torch.quantization.products import (
    may_name_products,
    open_function_products,
)
from neural_compressor.torch.quantized_model import Quantization
from neural_compressor.torch.structure.ops import BY_FUNCTION


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
        return _prepare_graph(quant_config, *_planned(model, quant_config, inplace, "prepare"))
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
    prepared = Prepared(execution, quant_config, run, export)
    prepared.put_on(model)
    with abandoned_on_failure(model):
        if execution.needs_data and (run is None or run.config.quantize):
            execution.listen()
        if run is not None:
            run.begin(execution)
        if data is not None and prepared.sees_data:
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
        _check_graph_training(example_inputs)
    model, plan, left = _planned(model, quant_config, inplace, "prepare_qat", example_inputs)
    with _products_closed_on_failure(model):
        check_trainable(plan)
        trainable = trained(plan, learned_step_size=learned_step_size)
        if is_graph:
            return _prepare_graph(quant_config, model, trainable, left, training=True)
        structure = Structure()
        if example_inputs is not None:
            survey = _seen(model, example_inputs)
            structure = survey.structure
            fold(model, structure)
        session = QatSession(model.train(), trainable, structure, left, example_inputs)
    return Prepared(session, quant_config).put_on(model)


def _planned(
    model: nn.Module, quant_config: Any, inplace: bool, function: str, example_inputs: Any = None
) -> tuple[nn.Module, Plan, dict[OpKey, str]]:
    """A float model, checked, with what the configuration makes of it and why other ops stay in float."""
    require_module(model, function)
    if Prepared.of(model) is not None:
        raise ConfigError("the model is prepared already: calibrate and convert it, or prepare the float model again")
    check_parts(model)
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


def _check_graph_training(example_inputs: Any) -> None:
    if example_inputs is not None:
        raise ConfigError(
            "prepare_qat: batch normalisation of an exported graph is folded without them; leave out example_inputs"
        )


def _prepare_graph(config: Any, model: Any, plan: Plan, left: dict[OpKey, str], training: bool = False) -> nn.Module:
    """An exported model with observers, a graph of its own over the same weights."""
    with torchao_required():
        from neural_compressor.torch.pt2e.eager_passes import execution_of
        from neural_compressor.torch.pt2e.training import GraphTraining
    execution = (GraphTraining if training else execution_of)(model, plan, left)
    return Prepared(execution, config).put_on(execution.model)


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
