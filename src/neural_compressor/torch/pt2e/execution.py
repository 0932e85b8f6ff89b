"""A plan carried out on an exported graph, by torchao's flow: annotate and observe, let data run, convert."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

from neural_compressor.adaptor.plan_check import check_weight_range
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.observers.input_check import CalibrationInputs
from neural_compressor.registry import close_matches
from neural_compressor.schemes import OpKey, Plan, QParams, QuantizedArray
from neural_compressor.torch.executor import CORRECT_BIASES
from neural_compressor.torch.modules.relay import Relays
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.pt2e.bias_correction import correct_biases, forget_inputs, mean_errors, watch_inputs
from neural_compressor.torch.pt2e.converted_forms import keep_given_terms, widened_convolutions
from neural_compressor.torch.pt2e.exported import (
    finished,
    mark,
    require_exported,
    set_state,
    shared,
    state_of,
    without_warnings,
)
from neural_compressor.torch.pt2e.int8_forms import hide_norms, show_norms
from neural_compressor.torch.pt2e.observers import RangeObserver, WeightObserver, attribute
from neural_compressor.torch.pt2e.ops import find_graph_ops, name_layer
from neural_compressor.torch.pt2e.quantizer import Observers, PlanQuantizer
from neural_compressor.torch.quantized_model import Quantization


@dataclass(frozen=True, eq=False)
class Settled:
    """What was found elsewhere for a layer: its weight as a matrix of codes, its bias, the range of its input."""

    weight: QuantizedArray
    bias: Tensor | None
    input: QParams | None


class GraphExecution:
    """A plan on its way on an exported model, which is left as it is: :attr:`model` is a graph with observers.

    It shares the weights of the exported model. What runs through it until :meth:`stop` is observed, then comes
    :meth:`apply`. ``reasons`` say why ops that are not in the plan stay in float.
    """

    observers = Observers()
    unseen = "{} static ops need calibration: run the model that prepare returned on data before convert"

    def __init__(self, model: GraphModule, plan: Plan, reasons: Mapping[OpKey, str]) -> None:
        self._exported = require_exported(model)
        check(model, plan)
        self.plan, self.reasons = plan, dict(reasons)
        self.runs = 0
        #: What the graph starts with, whatever calibration has it write into its buffers.
        self._state = state_of(model)
        self._inputs = CalibrationInputs()
        quantizer = PlanQuantizer(plan, self.observers)
        graph = shared(model)
        hide_norms(graph)
        with without_warnings():
            prepared = prepare_pt2e(graph, quantizer)
        self._nodes = quantizer.nodes
        self.model: GraphModule = mark(prepared, self._exported)
        self._observers = list(self._named_observers())
        if CORRECT_BIASES in plan.passes:
            watch_inputs(self.model, self._nodes)
        self._settled: Mapping[OpKey, Settled] = {}
        self._listening: list[Any] = []
        if self.needs_data:
            self.listen()

    @property
    def needs_data(self) -> bool:
        """Whether the model has to run on data before :meth:`apply`."""
        return any(isinstance(observer, RangeObserver) for observer in self._observers)

    @property
    def _saw_data(self) -> bool:
        """Whether data ran through the model here, or ranges came from a checkpoint."""
        seen = (observer.seen for observer in self._observers if isinstance(observer, RangeObserver))
        return self.runs > 0 or any(seen)

    @property
    def is_listening(self) -> bool:
        """Whether what runs through the model is taken into account."""
        return bool(self._listening)

    def listen(self) -> None:
        """Take all further calls of the model into account."""
        self._listening = [self.model.register_forward_pre_hook(self._note, with_kwargs=True)]
        self._observe(True)

    def stop(self) -> None:
        """End of calibration."""
        if self._listening:
            self._listening.pop().remove()
            self._inputs.warn()
        self._observe(False)

    def settle(self, found: Mapping[OpKey, Settled]) -> None:
        """Take weights, biases and ranges that were found elsewhere; of ops that read one tensor, the range of the first."""
        self._settled = found
        for observer in self._observers:
            settled = [found[key] for key in observer.keys if key in found]
            if settled:
                observer.settled = settled[0].weight if isinstance(observer, WeightObserver) else settled[0].input

    def abandon(self) -> None:
        """End of a calibration that failed."""
        self.stop()

    def _observe(self, listening: bool) -> None:
        for observer in self._observers:
            if isinstance(observer, RangeObserver):
                observer.listening = listening

    def _note(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.runs += 1
        leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for known, leaf in zip(self._exported.tensors, leaves, strict=False):
            if leaf.is_floating_point():
                self._inputs.note(known.name, leaf.detach())

    def _named_observers(self) -> Iterator[RangeObserver | WeightObserver]:
        """The observers of the graph, each told which op it is at."""
        for node in self.model.graph.nodes:
            observer = self.model.get_submodule(node.target) if node.op == "call_module" else None
            if isinstance(observer, (RangeObserver, WeightObserver)):
                keys = [self._nodes[user.name] for user in node.users if user.name in self._nodes]
                observer.keys = keys
                observer.where = f"op {keys[0][0]!r} ({keys[0][1]})" if keys else f"the output of {node.args[0]}"
                yield observer

    def apply(self, on_block: Callable[[str, int, int], None] | None = None) -> GraphModule:
        """The quantized graph. ``on_block`` is for methods that go block by block, of which there are none here."""
        self.stop()
        if self.needs_data and not self._saw_data:
            count = sum(scheme.mode == "static" for scheme in self.plan.values())
            raise CalibrationError(self.unseen.format(count))
        errors = mean_errors(self.model) | self._bias_errors()
        graph = shared(self.model)
        forget_inputs(graph)
        for node in graph.graph.nodes:
            # Annotations name nodes of the graph they were written into, so that converting a copy would look for these.
            node.meta.pop(Q_ANNOTATION_KEY, None)
        with without_warnings():
            new = convert_pt2e(graph)
        show_norms(new)
        correct_biases(new, errors)
        keep_given_terms(new)
        widened_convolutions(new)
        _strip(new)
        set_state(new, self._state)
        for node in new.graph.nodes:
            if node.name in self._nodes:
                name_layer(node, self._nodes[node.name])
        done = {key: scheme for key, scheme in self.plan.items() if key in self._nodes.values()}
        missed = {key: "torchao's x86 quantizer knows no pattern for it" for key in self.plan if key not in done}
        plan = Plan(done, self.plan.calib_sampling_size, self.plan.passes)
        return finished(new, self._exported, Quantization(plan, Structure(), {**self.reasons, **missed}, Relays()))

    def _bias_errors(self) -> dict[str, Tensor]:
        """By the name of its node what the bias of each settled layer is too large by."""
        found = {}
        for node in self.model.graph.nodes:
            settled = self._settled.get(self._nodes.get(node.name, ("", "")))
            if settled is not None and settled.bias is not None:
                bias = node.args[2] if len(node.args) > 2 and node.args[2] is not None else None
                before = 0.0 if bias is None else attribute(self.model, str(bias.target)).detach().float()
                found[node.name] = before - settled.bias.float()
        return found


def check(model: GraphModule, plan: Plan) -> None:
    """Refuse, before any work, a plan that names what the graph does not have or what no exported graph runs."""
    ops = find_graph_ops(model)[0]
    for key, scheme in plan.items():
        if key not in ops:
            raise ConfigError(
                f"the plan names op {key[0]!r} ({key[1]}), which the graph does not have; "
                f"{close_matches(key[0], [name for name, _ in ops])}"
            )
        check_weight_range(scheme)
        sides = {"weight": scheme.weight, "activation": scheme.activation}
        floats = [name for name, side in sides.items() if side is None or side.is_float]
        if scheme.mode not in ("static", "dynamic") or floats:
            alone = f" with a float {' and '.join(floats)}" if floats else ""
            raise ConfigError(
                f"op {key[0]!r} ({key[1]}): an exported graph runs static and dynamic int8, not {scheme.mode!r}{alone}; "
                "an op in float has both in fp32"
            )


def _strip(model: GraphModule) -> None:
    """Drop tensors and modules that the graph reads no more: float weights of quantized layers, observers."""
    model.graph.eliminate_dead_code()
    read = {node.target for node in model.graph.nodes if node.op in ("get_attr", "call_module")}
    for name, module in list(model.named_modules()):
        for own in [*module._parameters, *module._buffers]:
            if (f"{name}.{own}" if name else own) not in read:
                delattr(module, own)
    for name, module in reversed(list(model.named_modules())):
        is_empty = not any(True for _ in (*module.children(), *module.parameters(False), *module.buffers(False)))
        if name and is_empty and not isinstance(module, GraphModule) and name not in read:
            owner, _, own = name.rpartition(".")
            delattr(model.get_submodule(owner), own)
    model.recompile()
