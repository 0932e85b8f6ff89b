"""Passes of the eager executor in plans of exported graphs.

They look for structure in modules, and a graph has none. So they run on the model that the graph was exported from, on a
copy of it, with the calls that calibration makes of the graph. What changes the float model (smoothing, equalization, a
folded rotation) is exported again as the first was, and the rest of the plan is carried out on that graph. What chooses
codes or ranges (learned rounding, searched ranges) quantizes the eager model, and the graph takes its weights, biases and
ranges of inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.schemes import OpKey, Pass, Plan
from neural_compressor.torch.executor import CORRECT_BIASES, FOLD, Execution
from neural_compressor.torch.modules.build import replace_module
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.modules.weight_only import is_conv1d, matrix_of
from neural_compressor.torch.modules.weighted import WeightedModule
from neural_compressor.torch.passes.model_pass import read_pass
from neural_compressor.torch.passes.scaling import scale_inputs
from neural_compressor.torch.passes.survey import sharing_weights
from neural_compressor.torch.pt2e.capture import export, without_cache
from neural_compressor.torch.pt2e.execution import GraphExecution, Settled
from neural_compressor.torch.pt2e.exported import (
    is_exported,
    mark,
    require_exported,
    set_state,
    shared,
    state_of,
    unchanged_source,
)
from neural_compressor.torch.quantized_model import Quantization
from neural_compressor.torch.structure.ops import find_ops, input_axis
from neural_compressor.torch.structure.replay import call_block

logger = logging.getLogger("neural_compressor")


def execution_of(model: GraphModule, plan: Plan, reasons: Mapping[OpKey, str]) -> GraphExecution | ReexportingExecution:
    """A plan about to be carried out on an exported graph; what cannot be is refused."""
    own = all(step == CORRECT_BIASES for step in plan.passes)
    return (GraphExecution if own else ReexportingExecution)(model, plan, reasons)


class ReexportingExecution:
    """A plan with passes of the eager executor on its way, with the attributes of a :class:`GraphExecution`.

    :attr:`model` is a graph whose calls run the eager model, and are remembered up to the limit of the passes.
    """

    needs_data = True

    def __init__(self, model: GraphModule, plan: Plan, reasons: Mapping[OpKey, str]) -> None:
        self.reasons = dict(reasons)
        self._source = unchanged_source(model, [str(step) for step in plan.passes if step != CORRECT_BIASES])
        self._state = state_of(model)
        self.plan = replace(plan, passes=self._for_modules(plan))
        self._moving = tuple(step for step in self.plan.passes if read_pass(step).moves_ranges)
        #: Whether a pass acts on quantized modules, of which a graph has none.
        self._settles = any(step not in (*self._moving, CORRECT_BIASES) for step in self.plan.passes)
        self._eager = self._execution(self.plan.passes if self._settles else self._moving)
        for step in self._eager.passes:
            step.check(self._source.model, self._eager.plan)
        self.model: GraphModule = mark(shared(model), require_exported(model))
        self.model.forward = self._forward
        self.listen()

    @property
    def runs(self) -> int:
        """How many calls were taken into account."""
        return self._eager.runs

    @property
    def is_listening(self) -> bool:
        """Whether what runs through the model is taken into account."""
        return self._eager.is_listening

    def listen(self) -> None:
        """Take all further calls of the model into account."""
        self._eager.listen()

    def stop(self) -> None:
        """End of calibration."""
        self._eager.stop()

    def abandon(self) -> None:
        """End of a calibration that failed."""
        self._eager.abandon()

    @torch.no_grad()
    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        with without_cache(self._eager.model):
            return self._eager.model(*args, **kwargs)

    def apply(self, on_block: Callable[[str, int, int], None] | None = None) -> GraphModule:
        """The quantized graph of the changed model."""
        self.stop()
        calls = self._eager.calls
        if not calls:
            raise CalibrationError(
                "the passes of the plan need calibration: run the model that prepare returned on data before convert"
            )
        rest = () if self._settles else tuple(step for step in self.plan.passes if step not in self._moving)
        inner = GraphExecution(self._changed(), replace(self.plan, passes=rest), self.reasons)
        for call in calls if inner.needs_data else ():
            call_block(inner.model, call)
        if self._settles:
            inner.settle(self._settled())
        new = inner.apply(on_block)
        done = new.quantization
        assert isinstance(done, Quantization)
        new.quantization = replace(done, plan=replace(done.plan, passes=self.plan.passes))
        return new

    def _for_modules(self, plan: Plan) -> tuple[Pass, ...]:
        """The passes of the plan for those of their ops that are modules the eager executor knows; others are named."""
        modules = {name for name, _ in find_ops(self._source.model)[0]}
        found: list[Pass] = []
        left: list[tuple[Pass, str]] = []
        for step in plan.passes:
            names = step.options.get("ops")
            asked = [name for name, _ in plan] if names is None else names
            own = [name for name in asked if name in modules]
            if step == CORRECT_BIASES or len(own) == len(asked):
                found.append(step)
                continue
            left.append((step, ", ".join(name for name in asked if name not in modules)))
            if own:
                found.append(step if names is None else step.with_options(ops=own))
        for step, others in left:
            what = "functions that a forward calls or modules of other classes, and it changes layers of torch"
            if step.name not in [each.name for each in found]:
                raise ConfigError(f"the pass {step.name} has nothing to change: {others} are {what}")
            logger.warning("the pass %s leaves out %s: these are %s", step.name, others, what)
        return tuple(found)

    def _execution(self, steps: Sequence[Pass], seen: Execution | None = None) -> Execution:
        """Of the ops that are modules of the eager model, under the types that these have there, on a copy of it."""
        model = _with_linear_layers(sharing_weights(self._source.model).eval())
        schemes = {name: scheme for (name, _), scheme in self.plan.items()}
        ops = {key: schemes[key[0]] for key in find_ops(model)[0] if key[0] in schemes}
        plan = Plan(ops, passes=(FOLD, *steps))
        if seen is None:
            return Execution(model, plan)
        execution = Execution(model, plan, survey=seen.survey, ranges=seen.ranges)
        execution.calls = seen.calls
        return execution

    def _changed(self) -> GraphModule:
        """The graph of the float model behind the passes that change it."""
        execution = self._execution(self._moving, self._eager)
        with torch.no_grad(), without_cache(execution.model):
            state = execution.passed_over()
        for name, change in state.changes.items():
            _multiply_input(state.model.get_submodule(name), change)
        new = export(state.model, self._source.inputs, self._source.dynamic_shapes)
        if not isinstance(new, GraphModule) or not is_exported(new):
            raise QuantizationError("the model could be exported before its passes, and cannot be after them")
        set_state(new, self._state)
        return new

    def _settled(self) -> dict[OpKey, Settled]:
        """What passes on the quantized eager model made of each layer."""
        execution = self._execution(self.plan.passes, self._eager)
        with without_cache(execution.model):
            quantized = execution.apply()
        modules = {name: quantized.get_submodule(name) for name, _ in execution.plan}
        return {
            key: Settled(module.weight_array(), module.bias, module.qparams("input"))
            for key in self.plan
            if isinstance(module := modules.get(key[0]), WeightedModule)
        }


def _with_linear_layers(model: nn.Module) -> nn.Module:
    """``model`` with linear layers, which they are in its graph, in place of those that hold their weight transposed."""
    for name, layer in list(model.named_modules()):
        if is_conv1d(layer):
            new = nn.Linear(*layer.weight.shape, bias=False, device="meta")  # type: ignore[misc]
            new.weight = nn.Parameter(matrix_of(layer), layer.weight.requires_grad)
            new.bias = layer.bias
            replace_module(model, name, new.train(layer.training))
    return model


def _multiply_input(layer: nn.Module, change: InputChange) -> None:
    """Have a layer multiply its input, and make up for that in its weight; it keeps its name and type in a graph."""
    assert change.multiplier is not None
    scale_inputs(layer, 1 / change.multiplier)
    layer.register_buffer("input_multiplier", change.multiplier.to(next(layer.parameters()).dtype))
    layer.register_forward_pre_hook(_multiplied)


def _multiplied(layer: Any, args: tuple[Tensor, ...]) -> tuple[Any, ...]:
    change = InputChange(multiplier=layer.input_multiplier)
    return (change.on_input(args[0], axis=input_axis(layer)), *args[1:])
