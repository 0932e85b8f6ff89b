"""Quantization-aware training: a model that rounds in its forward pass, from before training to the quantized one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from neural_compressor.algorithms.qat import check_learnable, qat_options
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.schemes import (
    PER_TENSOR,
    OpKey,
    OpScheme,
    Pass,
    Plan,
    QuantizedArray,
)
from neural_compressor.torch.batches import feed
from neural_compressor.torch.methods.qat_rounding import (
    ActivationRounding,
    LearnedActivationRounding,
    LearnedWeightRounding,
    WeightRounding,
)
from neural_compressor.torch.modules.activation import has_fixed_range
from neural_compressor.torch.modules.base import quant_class
from neural_compressor.torch.modules.build import replacing_class
from neural_compressor.torch.modules.weighted import WeightedModule
from neural_compressor.torch.passes.fold import Structure
from neural_compressor.torch.quantized_model import build, computes_in_float32, hand_on_integers
from neural_compressor.torch.structure.ops import FUNCTIONAL

logger = logging.getLogger("neural_compressor")
_ROUNDING = "activation_rounding"


def check_trainable(plan: Plan) -> None:
    """Refuse what a training does not do: passes, but for corrections that are made only where they can be, and methods
    that find weights otherwise."""
    if others := [step for step in plan.passes if step not in (Pass("fold"), Pass("correct_biases"))]:
        raise ConfigError(
            f"the pass {others[0]} is for quantization after training; in a training weights find their own place"
        )
    qat_options(plan)


class QatSession:
    """A model on its way through quantization-aware training: :attr:`model` is trained, :meth:`finish` converts it.

    ``example`` are inputs to check the result on.
    """

    def __init__(
        self, model: nn.Module, plan: Plan, structure: Structure, reasons: Mapping[OpKey, str], example: Any = None
    ) -> None:
        self.model, self.plan, self.structure = model, plan, structure
        self.reasons, self.example, self.options = dict(reasons), example, qat_options(plan)
        self._activations: dict[OpKey, ActivationRounding] = {}
        self._handles: list[Any] = []
        self._later: list[OpKey] = []
        try:
            for key, op in plan.items():
                if not op.is_float:
                    self._round(key, model.get_submodule(key[0]), op)
        except BaseException:
            self._release()
            raise
        if self._later:
            logger.warning(
                "not rounded in training, but when it ends: the weights of %s, which are no linear layers, convolutions or "
                "embeddings; keep them in float with a rule if that costs too much",
                ", ".join(f"{name!r} ({kind})" for name, kind in self._later),
            )

    def _round(self, key: OpKey, module: nn.Module, op: OpScheme) -> None:
        where = f"op {key[0]!r} ({key[1]})"
        try:
            for scheme in (op.weight, op.activation) if self.options.learned_step_size else ():
                check_learnable(scheme)
            if op.weight is not None:
                self._round_weight(key, where, module, op)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if op.activation is None or op.mode == "weight_only":
            return
        fixed, with_output = op.mode == "static" and has_fixed_range(op.activation), isinstance(module, FUNCTIONAL)
        single = op.activation.granularity == PER_TENSOR and op.activation.dtype.scale_type is None
        if fixed and self.options.learned_step_size and single:
            device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
            count = len(quant_class(module).inputs)
            rounding: ActivationRounding = LearnedActivationRounding(op.activation, where, count, with_output, device)
        else:
            rounding = ActivationRounding(op.activation, where, fixed, with_output)
        self._activations[key] = rounding
        module.add_module(_ROUNDING, rounding)  # so that an optimizer sees its parameters
        self._handles.append(module.register_forward_pre_hook(rounding.inputs, with_kwargs=True))
        if rounding.with_output:
            self._handles.append(module.register_forward_hook(rounding.output))

    def _round_weight(self, key: OpKey, where: str, module: nn.Module, op: OpScheme) -> None:
        if not isinstance(getattr(module, "weight", None), nn.Parameter):
            self._later.append(key)
            return
        layout = replacing_class(module, op)(module, op)
        weight = module.weight
        assert isinstance(layout, WeightedModule)
        assert isinstance(weight, Tensor)
        learned = self.options.learned_step_size
        rounding = LearnedWeightRounding(layout, where, weight) if learned else WeightRounding(layout, where)
        parametrize.register_parametrization(module, "weight", rounding, unsafe=True)

    def train(
        self,
        dataloader: Iterable[Any],
        criterion: Callable[[Any, Any], Tensor],
        optimizer: Callable[[Any], torch.optim.Optimizer],
        epochs: int,
    ) -> None:
        """Train over (inputs, labels) batches with the optimizer that ``optimizer`` makes of the parameters."""
        steps = optimizer(self.model.parameters())
        for epoch in range(epochs):
            self.begin_epoch(epoch)
            for inputs, labels in dataloader:
                steps.zero_grad()
                torch.autograd.backward(criterion(feed(self.model, inputs), labels))
                steps.step()

    def begin_epoch(self, epoch: int) -> None:
        """The training loop is about to go through its data for the time ``epoch``, counted from 0."""
        if self.options.freeze_after is not None and epoch >= self.options.freeze_after:
            self.stop()

    def stop(self) -> None:
        """Keep the ranges of activations as they are from now on."""
        for rounding in self._activations.values():
            rounding.freeze()

    def finish(self) -> nn.Module:
        """The quantized model with the trained weights and the ranges seen in training."""
        fixed = {key: rounding for key, rounding in self._activations.items() if rounding.fixed_range}
        if fixed and not any(rounding.is_seen(0) for rounding in fixed.values()):
            raise CalibrationError(
                f"the ranges of {len(fixed)} ops are learnt in training, and no batch has run through the model "
                "that is to be trained: call it (the manager's model, not the one given to it) in training mode before "
                "training ends"
            )
        weights: dict[OpKey, QuantizedArray] = {}
        for key in self.plan:
            module = self.model.get_submodule(key[0])
            if parametrize.is_parametrized(module, "weight"):
                held: Any = module.parametrizations
                found = held["weight"][0].array(held["weight"].original)
                weights |= {} if found is None else {key: found}
        self._release()
        ranges = {key: rounding.ranges() for key, rounding in fixed.items() if rounding.is_seen(0)}
        single = computes_in_float32(self.model)
        new = build(self.model.eval(), self.plan, ranges, self.structure, self.reasons, weights=weights)
        return hand_on_integers(new, self.example) if self.example is not None and single else new

    def _release(self) -> None:
        """Make the model a float one again, with the weights as they were trained."""
        for handle in self._handles:
            handle.remove()
        for key in self.plan:
            module = self.model.get_submodule(key[0])
            if key in self._activations:
                delattr(module, _ROUNDING)
            if parametrize.is_parametrized(module, "weight"):
                _own_class(module)
                parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)


def _own_class(module: nn.Module) -> None:
    """Give a parametrized module a class of its own.

    Its weight is a property of a class that copies of the module share (the best epoch, a moving average of weights), and
    torch takes the property off that class.
    """
    shared = type(module)
    namespace = {name: value for name, value in vars(shared).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(shared.__name__, shared.__bases__, namespace)
