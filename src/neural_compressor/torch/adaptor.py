"""PyTorch, eager mode, behind the adaptor contract."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.fx import GraphModule

from neural_compressor.adaptor.contract import Adaptor
from neural_compressor.adaptor.inspection import save_inspected
from neural_compressor.adaptor.records import Node, OpRecord, with_time_shares
from neural_compressor.algorithms.qat import untrained
from neural_compressor.config.exporting import Torch2ONNXConfig
from neural_compressor.config.op_rule import read_rules
from neural_compressor.config.process_options import options
from neural_compressor.config.recipes import with_recipes
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.schemes import OpKey, OpScheme, Plan, float_op
from neural_compressor.torch.batches import (
    ReadAgain,
    batch_size,
    feed,
    split_batch,
    tensors_in,
)
from neural_compressor.torch.capability import PyTorchQuery, opwise
from neural_compressor.torch.checks import copy_of
from neural_compressor.torch.executor import USUAL_PASSES, prepare
from neural_compressor.torch.files.checkpoint import load_model, save_model, unique_state
from neural_compressor.torch.files.onnx_export import call_arguments, export_model, to_onnx
from neural_compressor.torch.files.streaming import WeightSource, home_of, is_empty
from neural_compressor.torch.float_model import FloatModel
from neural_compressor.torch.inspection import (
    fingerprint,
    inspect_tensors,
    model_sqnr,
    op_records,
    set_tensors,
    time_shares,
)
from neural_compressor.torch.methods.qat import QatSession, check_trainable
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.function_products import (
    opened_products,
    product_ops,
)
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.passes.survey import NOT_LOOKED_FOR
from neural_compressor.torch.plan_check import check
from neural_compressor.torch.quantized_model import build
from neural_compressor.torch.sensitivity import op_curvatures, op_errors, op_gains
from neural_compressor.torch.structure.int8_race import slower_in_integers
from neural_compressor.torch.structure.ops import BY_FUNCTION, find_functions, find_ops, ops_by_block

RECIPES: Mapping[str, tuple[str, ...]] = {
    "smooth_quant": ("static", "dynamic"),
    "smooth_quant_args": ("static", "dynamic"),
    "fast_bias_correction": ("static",),
    "weight_correction": ("static",),
    "equalization": ("static", "dynamic"),
    "range_search": ("static",),
    "learned_rounding": ("static",),
}
"""The recipes that are applied, with the modes of quantization they are about."""

logger = logging.getLogger("neural_compressor")


class PyTorchAdaptor(Adaptor):
    """Quantizes eager ``torch.nn.Module`` models.

    ``framework_specific_info`` may hold ``dataloader`` (calibration batches), ``example_inputs``, ``calib_func`` (whose
    first inputs are the example where there is no other), ``framework_yaml`` (over the built-in capability), ``workspace``;
    ``passes`` of plans that say nothing of them (batch normalisation is folded), ``op_type_dict`` and ``op_name_dict``,
    rules that make ops of the products by functions that they name, and ``reasons``, which says of a plan why ops that it
    does not name stay in float.
    """

    def __init__(self, framework_specific_info: Mapping[str, Any] | None = None) -> None:
        super().__init__(framework_specific_info)
        self.query_handler = PyTorchQuery(self.info.get("framework_yaml"))
        self.example: Any = None
        self._known: FloatModel | None = None
        self._floats: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()
        self._skipped: dict[OpKey, str] = {}

    @classmethod
    def handles(cls, model: Any) -> bool:
        return "torch" in sys.modules and isinstance(model, nn.Module)

    def query_fw_capability(self, model: nn.Module) -> dict[str, Any]:
        known = self._watched(model, self.info.get("dataloader"))
        traces = known.survey.traces
        rules = [read_rules(source, self.info.get(source)) for source in ("op_type_dict", "op_name_dict")]
        opened, named = known.with_named_products(*rules)
        found, self._skipped = find_ops(opened, self.query_handler.quantizable_types(), traces)
        left = product_ops(opened_products(opened)) - named
        ops = {key: module for key, module in found.items() if key[0] not in left}
        self._skipped |= dict.fromkeys(found.keys() - ops.keys(), BY_FUNCTION)
        self._skipped |= find_functions(known.folded, traces, [*ops, *self._skipped])
        details = {key: copy.deepcopy(configs) for key, configs in opwise(self.query_handler, ops).items()}
        return {
            "opwise": details,
            "optypewise": self.get_optype_wise_ability(details),
            "blocks": ops_by_block(model, list(ops)),
            "skipped": dict(self._skipped),
            "recipes": RECIPES,
            "done_anyway": ("layer_wise_quant",),
            "passes": USUAL_PASSES,
            "in_float_unless_named": slower_in_integers(opened, ops, self.example, traces[0] if traces else None),
            "unseen": "" if traces else f". {NOT_LOOKED_FOR}",
        }

    def with_products(self, model: nn.Module) -> nn.Module:
        """A copy with the weights of ``model`` in which products by functions are modules, as far as these are known."""
        return self._float_model(model).with_products()

    def quantize(
        self,
        tune_cfg: Mapping[str, Any],
        model: nn.Module,
        dataloader: Iterable[Any] | None = None,
        q_func: Callable[[nn.Module], Any] | None = None,
    ) -> nn.Module:
        data = self.data_or_own(dataloader)
        new = self._executed(self._plan(tune_cfg), model, data, q_func, with_example=True)
        self.tuning_cfg_to_fw(tune_cfg)
        return new

    def _executed(
        self,
        plan: Plan,
        model: nn.Module,
        data: Iterable[Any] | None,
        q_func: Callable[[nn.Module], Any] | None = None,
        with_example: bool = False,
    ) -> nn.Module:
        known = self._float_model(model, data)
        new = copy_of(model).eval()
        plan, reasons = known.opened(plan, new)
        source = known.number_of(q_func if q_func is not None else data, new)
        execution = prepare(
            new,
            plan,
            reasons=self._reasons(plan) | reasons,
            survey=known.survey,
            ranges=known.ranges,
            source=source,
            example=self.example,
            keeps_floats=True,
        )
        place = (source, plan.calib_sampling_size, execution.limit)
        execution.calls = list(known.calls.get(place, ()))
        if execution.needs_data:
            execution.calls = []
            with execution.listening():
                execution.calibrate(data, q_func)
            self.samples_seen[plan.calib_sampling_size] = execution.samples_seen
            known.calls = {place: execution.calls}  # for the next plan, which often asks for the same
        execution.reasons = self._reasons(plan) | reasons
        if not with_example:
            execution.example = None
        new = execution.apply()
        if execution.floats is not None:
            self._floats[new] = execution.floats
        return new

    def _reasons(self, plan: Plan) -> dict[OpKey, str]:
        return dict(self.info["reasons"](plan)) if "reasons" in self.info else self._skipped

    def predict(self, model: nn.Module, inputs: Any) -> Any:
        with torch.no_grad():
            return feed(model, inputs)

    def save(self, model: nn.Module, path: str | Path) -> None:
        save_model(model, path)

    def load(self, path: str | Path, model: nn.Module) -> nn.Module:
        return load_model(path, model)

    def model_size(self, model: nn.Module) -> int:
        return sum(t.numel() * t.element_size() for t in unique_state(model)[0].values())

    def output_sqnr(self, model: nn.Module) -> float | None:
        """On the first batch of the calibration data, or the example inputs."""
        known = self._known
        if known is None or self.example is None or model is known.model:
            return None
        return model_sqnr(known.outputs, self.predict(model, self.example))

    def summary(self, model: nn.Module) -> list[OpRecord]:
        floats = self._floats.get(model, None if self._known is None else self._known.folded)
        return self._timed(op_records(model, floats, self.example, self._skipped), model)

    def nodes(self, model: nn.Module) -> list[Node]:
        """The modules without others inside, by the names of their classes; of a graph, what it calls."""
        if isinstance(model, GraphModule):
            return [Node(node.name, str(node.target)) for node in model.graph.nodes if node.op == "call_function"]
        leaves = {name: each for name, each in model.named_modules() if not any(True for _ in each.children())}
        return [Node(name, type(each).__name__) for name, each in leaves.items()]

    def _timed(self, records: list[OpRecord], model: nn.Module) -> list[OpRecord]:
        if self._known is None or self.example is None:
            return records
        return with_time_shares(records, *(time_shares(each, self.example) for each in (self._known.model, model)))

    def op_errors(self, plan: Plan, model: nn.Module, dataloader: Iterable[Any] | None = None) -> dict[OpKey, float]:
        """Each op alone."""
        data = self._data_for("op_errors", dataloader)
        floats, quantized = self._side_by_side(plan, model, data)
        return op_errors(floats, quantized, plan, data, plan.calib_sampling_size)

    def op_gains(self, model: nn.Module, dataloader: Iterable[Any] | None = None) -> dict[OpKey, float]:
        data = self._data_for("op_gains", dataloader)
        known = self._float_model(model, data)
        found, _ = find_ops(known.folded, self.query_handler.quantizable_types(), known.survey.traces)
        ops = [key for key, module in found.items() if type(module).__name__ == key[1]]
        samples = self.info.get("calibration_sampling_size", Plan({}).calib_sampling_size)
        return op_gains(known.folded, ops, data, samples)

    def op_curvatures(
        self, plan: Plan, model: nn.Module, loss: Callable[..., Any], dataloader: Iterable[Any] | None = None
    ) -> dict[OpKey, float]:
        data = self._data_for("op_curvatures", dataloader)
        floats, quantized = self._side_by_side(plan, model, data)
        done: Any = quantized.quantization
        return op_curvatures(floats, quantized, done.plan, data, loss, plan.calib_sampling_size)

    def _side_by_side(self, plan: Plan, model: nn.Module, data: Iterable[Any]) -> tuple[nn.Module, nn.Module]:
        """The float model as ``plan`` folds it, and the quantized one, whose ops hand on floats as they do there."""
        quantized = self._executed(self._with_passes(plan), model, data)
        return self._floats.get(quantized, self._float_model(model).folded), quantized

    def _data_for(self, what: str, dataloader: Iterable[Any] | None) -> Iterable[Any]:
        """The data to measure on."""
        data = self.data_or_own(dataloader)
        if data is None:
            raise CalibrationError(f"{what} runs the model on data: pass a dataloader")
        return ReadAgain(data) if isinstance(data, Iterator) else data

    def ready(self, model: nn.Module) -> nn.Module:
        if is_empty(model) and home_of(model):  # what is evaluated has all its weights
            model = copy_of(model).eval()
            source = WeightSource(home_of(model))
            source.fill(model)
            source.finish(model)
        return copy_of(model).eval() if model.training else model

    def settle(self, model: nn.Module) -> None:
        model.eval()

    @contextmanager
    def on_one_thread(self, models: Sequence[nn.Module]) -> Iterator[bool]:
        """Not where a model is on a GPU."""
        tensors = chain.from_iterable(chain(model.parameters(), model.buffers()) for model in models)
        if any(tensor.device.type != "cpu" for tensor in tensors):
            yield False
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield True
        finally:
            torch.set_num_threads(threads)

    def batch_inputs(self, model: nn.Module, batch: Any) -> tuple[Any, int]:
        inputs = split_batch(model, batch)
        return inputs, batch_size(inputs)

    def finish(self, outputs: Any) -> Any:
        for device in {tensor.device for tensor in tensors_in(outputs) if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return outputs

    def fingerprint(self, model: nn.Module) -> str:
        return fingerprint(model)

    def inspect_tensor(
        self,
        model: nn.Module,
        dataloader: Iterable[Any],
        op_list: Sequence[Any] = (),
        iteration_list: Sequence[int] = (1,),
        inspect_type: str = "activation",
        save_to_disk: bool = False,
    ) -> dict[str, Any]:
        found = inspect_tensors(model, dataloader, op_list, iteration_list, inspect_type)
        if save_to_disk:
            save_inspected(found, options.folder(self.info.get("workspace")))
        return found

    def set_tensor(self, model: nn.Module, tensor_dict: Mapping[str, Any]) -> nn.Module:
        return set_tensors(model, tensor_dict)

    def prepare_training(self, tune_cfg: Mapping[str, Any], model: nn.Module) -> QatSession:
        """Start quantization-aware training of a copy of ``model``."""
        known = self._float_model(model)
        plan = self._plan(tune_cfg)
        check(known.survey.model, untrained(plan))
        check_trainable(plan)
        self.tuning_cfg_to_fw(tune_cfg)
        floats = copy_of(known.folded).train()
        return QatSession(floats, plan, known.survey.structure, self._skipped, self.example)

    def train(
        self,
        model: nn.Module,
        dataloader: Iterable[Any],
        tune_cfg: Mapping[str, Any],
        criterion: Callable[[Any, Any], torch.Tensor],
        optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
        epochs: int = 1,
    ) -> nn.Module:
        """Quantization-aware training over (inputs, labels) batches; returns the quantized model."""
        session = self.prepare_training(tune_cfg, model)
        session.train(dataloader, criterion, optimizer or torch.optim.AdamW, epochs)
        return session.finish()

    def convert_bf16(self, model: nn.Module) -> nn.Module:
        done = {name for name, module in model.named_modules() if isinstance(module, QuantModule)}
        ops: dict[OpKey, OpScheme] = {key: float_op("bf16") for key in self.bf16_ops if key[0] not in done}
        if not ops:
            return model
        return build(copy_of(model).eval(), Plan(ops), {}, Structure(), {})

    def quantize_input(self, model: nn.Module) -> tuple[nn.Module, tuple[float, int]]:
        """The model itself takes quint8 input where its first op runs in int8; returns it and that scale and zero-point."""
        first = next((m for m in model.modules() if isinstance(m, QuantModule)), None)
        if self._known is not None and (traces := self._known.survey.traces):
            names = {call.module for trace in traces for call in trace.calls if trace.inputs & set(call.reads)}
            readers = [model.get_submodule(name) if name is not None else None for name in names]
            first = readers[0] if len(readers) == 1 and isinstance(readers[0], QuantModule) else None
        if first is None or first.input_qparams is None:
            raise QuantizationError(
                "the model's input is not read by a single op in static int8: it cannot take int8 input"
            )
        return model, first.input_qparams

    def convert(self, model: nn.Module, source: str = "eager", destination: str = "exported") -> Any:
        """Convert an eager model to an exported program, or to an ONNX model (``destination="onnx"``).

        Quantized ops are in it as float ops between rounding to codes and back, with their weights as codes.
        """
        if source != "eager" or destination not in ("exported", "onnx"):
            raise ConfigError(f"cannot convert {source!r} to {destination!r}; known: eager to exported, eager to onnx")
        args, kwargs = call_arguments(self.example)
        if destination == "onnx":
            return to_onnx(model, args, kwargs)
        return torch.export.export(model, args, kwargs)

    def export(self, model: nn.Module, conf: Torch2ONNXConfig) -> Any:
        return export_model(self.ready(model), conf, self.example)

    # -- preparation ------------------------------------------------------------------------------------------------

    def _plan(self, tune_cfg: Mapping[str, Any]) -> Plan:
        """``tune_cfg`` as a plan, with what its recipes stand for beside the usual passes."""
        return with_recipes(self._with_passes(Plan.from_tune_cfg(tune_cfg)), tune_cfg.get("recipe_cfgs") or {})

    def _with_passes(self, plan: Plan) -> Plan:
        return plan if plan.passes else replace(plan, passes=self.info.get("passes", USUAL_PASSES))

    def _float_model(self, model: nn.Module, data: Iterable[Any] | None = None) -> FloatModel:
        """What is known of ``model``; it is watched, on ``data`` first of all, where that is nothing yet."""
        if self._known is not None and self._known.model is model:
            return self._known
        return self._watched(model, self.data_or_own(data))

    def _watched(self, model: nn.Module, data: Iterable[Any] | None) -> FloatModel:
        self._known = FloatModel(model, self.info, data)
        self.example = self._known.example
        return self._known
