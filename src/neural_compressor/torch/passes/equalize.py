"""Equalization across layers: where one layer feeds another, their weights are made equally large channel by channel."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from neural_compressor.algorithms.equalization import equalizing_scale
from neural_compressor.errors import ConfigError, NothingToQuantizeError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Plan
from neural_compressor.torch.hooks import hooked
from neural_compressor.torch.passes.model_pass import PASSES, ModelPass, PassOptions, PassState
from neural_compressor.torch.passes.proof import Proof
from neural_compressor.torch.passes.scaling import (
    input_reach,
    is_scalable,
    output_reach,
    parameters_of,
    restore_parameters,
    scale_inputs,
    scale_outputs,
)
from neural_compressor.torch.structure.feeds import Feed

logger = logging.getLogger("neural_compressor")

_ROOM = 1.25
"""What a value may grow beyond the largest that was seen before a ReLU6 would cut it off where it did not."""
_SETTLED = 1e-3


class EqualizeOptions(PassOptions):
    """How layers are equalized."""

    rounds: int = Field(
        default=20, ge=1, description="at most so often each pair is looked at; a pair changes the next"
    )
    ops: list[str] | None = Field(default=None, description="names of layers that are equalized; None: all of the plan")


@PASSES.register("equalize")
class Equalize(ModelPass):
    """Weights of pairs of layers in a row are scaled so that each channel is as large in the one as in the other.

    It is for weights with one scale for all channels, which the largest of them decides. The float model computes what it
    did: between the two stands nothing, or what is homogeneous (ReLU, pooling). What ReLU6 cuts off on the data keeps its
    scale, and nothing grows so far that it would cut off more.
    """

    Options = EqualizeOptions
    sees_data: ClassVar[bool] = True
    moves_ranges: ClassVar[bool] = True
    options: EqualizeOptions

    def check(self, model: nn.Module, plan: Plan) -> None:
        names = [name for name, _ in plan]
        for name in self.options.ops or ():
            if name not in names:
                raise ConfigError(f"the pass equalize: the plan has no op {name!r}; {close_matches(name, names)}")
        # Those that tuning took back to float count: a plan without them is no reason to stop.
        if len(self._layers(model, plan, in_float=True)) < 2:
            refusal = NothingToQuantizeError if self.options.ops is None else ConfigError
            raise refusal("the pass equalize takes two convolutions or linear layers in a row; the plan has none")

    @torch.no_grad()
    def before(self, state: PassState) -> None:
        assert state.survey is not None
        layers = self._layers(state.model, state.plan)
        found = [feed for feed in state.survey.feeds(state.model, layers) if feed.source in layers]
        if not found:
            logger.warning("nothing to equalize: no layer alone feeds another through what is homogeneous")
            return
        least = self._least_scales(state, found)
        proof = Proof(state.model, state.calls[:1])
        names = {name for feed in found for name in (*feed.readers, str(feed.source))}
        kept = {name: parameters_of(state.model.get_submodule(name)) for name in names}
        self._equalize(state.model, found, least)
        if not proof.holds_for(state.model):
            for name, parameters in kept.items():
                restore_parameters(state.model.get_submodule(name), parameters)
            logger.warning("layers are not equalized: that changes the outputs")
            return
        logger.info("weights of %d pairs of layers equalized", sum(len(feed.readers) for feed in found))

    def _layers(self, model: nn.Module, plan: Plan, in_float: bool = False) -> list[str]:
        asked = [name for (name, _), op in plan.items() if op.weight is not None and (in_float or op.mode != "float")]
        asked = [name for name in asked if self.options.ops is None or name in self.options.ops]
        modules = dict(model.named_modules())
        return [name for name in asked if name in modules and is_scalable(modules[name])]

    def _least_scales(self, state: PassState, found: Sequence[Feed]) -> dict[str, tuple[Tensor, Tensor]]:
        """By source what clips: the channels that are cut off on the data, and the least scale of the others."""
        capped = {str(feed.source): feed.cap for feed in found if feed.capped_by is not None}
        largest: dict[str, Tensor] = {}

        def see(name: str, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            last = isinstance(module, nn.Linear)
            rows = output.detach().float().movedim(-1 if last else 1, -1).flatten(0, -2).amax(0)
            largest[name] = torch.maximum(largest[name], rows) if name in largest else rows

        if capped:
            with hooked({name: state.model.get_submodule(name) for name in capped}, after=see):
                for _ in state.replay():
                    pass
        return {
            name: (value > capped[name], (value * _ROOM / capped[name]).clamp(min=1e-6))
            for name, value in largest.items()
        }

    def _equalize(self, model: nn.Module, found: Sequence[Feed], least: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        done = {str(feed.source): torch.ones(()) for feed in found}
        for _ in range(self.options.rounds):
            moved = 0.0
            for feed in found:
                source = model.get_submodule(str(feed.source))
                readers = [model.get_submodule(name) for name in feed.readers]
                reach = torch.stack([input_reach(reader) for reader in readers]).amax(0)
                scale = torch.as_tensor(equalizing_scale(output_reach(source), reach))
                if feed.source in least:
                    cut_off, lowest = least[str(feed.source)]
                    total = torch.maximum(done[str(feed.source)] * scale, lowest)
                    scale = torch.where(cut_off, torch.ones_like(total), total) / done[str(feed.source)]
                done[str(feed.source)] = done[str(feed.source)] * scale
                moved = max(moved, float(scale.log().abs().max()))
                scale_outputs(source, 1 / scale)
                for reader in readers:
                    scale_inputs(reader, scale)
            if moved < _SETTLED:
                return
