"""SmoothQuant: outliers of activations go into the weights that read them, before both are quantized."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from neural_compressor.algorithms.smoothquant import alphas_between, check_alpha
from neural_compressor.errors import ConfigError, NothingToQuantizeError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import PER_TENSOR, OpKey, OpScheme, Plan
from neural_compressor.torch.hooks import buffers_kept
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.passes.alpha_search import AlphaSearch, ChannelInputs, Criterion, scale_of
from neural_compressor.torch.passes.model_pass import PASSES, ModelPass, PassOptions, PassState
from neural_compressor.torch.passes.proof import Proof
from neural_compressor.torch.passes.scaling import (
    is_scalable,
    parameters_of,
    restore_parameters,
    scale_inputs,
    scale_outputs,
)
from neural_compressor.torch.structure.feeds import Feed
from neural_compressor.torch.structure.layer_form import ModuleCallError, called
from neural_compressor.torch.structure.replay import Arguments, call_block, in_two

logger = logging.getLogger("neural_compressor")

_USUAL_TYPES = ("Linear", "Conv1D")
_TYPES = (*_USUAL_TYPES, "Conv1d", "Conv2d", "Conv3d")
_OF_SEARCH = ("init_alpha", "alpha_min", "alpha_max", "alpha_step", "shared_criterion", "do_blockwise")
"""Options that say nothing where one alpha is given."""
_NAMED = 3
"""So many layers are named in a warning."""
Share = Annotated[float, Field(ge=0, le=1)]


class SmoothOptions(PassOptions):
    """How inputs of layers are smoothed."""

    alpha: float | str | list[float | str] = Field(
        default=0.5,
        description="how much of the difference goes into the weights, 0 to 1; of a list, or with 'auto', what errs least",
    )
    folding: bool = Field(
        default=False,
        description="scales go into the layer before, where that is exact and its weight has a scale a channel",
    )
    scale_sharing: bool = Field(default=False, description="layers that read the same value have the same scales")
    init_alpha: Share = Field(
        default=0.5,
        description="what 'auto' has, as near as it may, where nothing errs less on both halves of the data",
    )
    alpha_min: Share = Field(default=0.0, description="the least that 'auto' tries")
    alpha_max: Share = Field(default=1.0, description="the most that 'auto' tries")
    alpha_step: float = Field(default=0.1, description="the distance between what 'auto' tries")
    shared_criterion: Criterion = Field(default="max", description="which error counts of layers with the same scales")
    do_blockwise: bool = Field(default=False, description="one alpha a block, by the error of what the block gives")
    op_types: list[str] = Field(default=[*_USUAL_TYPES], description="types of layers that are smoothed")
    ops: list[str] | None = Field(default=None, description="names of layers that are smoothed; None: all of the types")

    def alphas(self) -> tuple[float, ...]:
        """All that is tried."""
        auto = alphas_between(self.alpha_min, self.alpha_max, self.alpha_step)
        first = min(max(self.init_alpha, self.alpha_min), self.alpha_max)
        return check_alpha(self.alpha, (first, *auto))


@PASSES.register("smooth")
class Smooth(ModelPass):
    """Divides channels of what layers read, and multiplies their weights: with ``x`` an input and ``w`` a weight of it,
    by ``max|x|^alpha / max|w|^(1 - alpha)``.

    The float model computes what it did. With ``folding`` the division goes into a normalisation or layer before, if nothing
    else reads what that gives; elsewhere, and without, the quantized layer multiplies its input.
    """

    Options = SmoothOptions
    sees_data: ClassVar[bool] = True
    moves_ranges: ClassVar[bool] = True
    options: SmoothOptions

    @classmethod
    def serves(cls, kind: str, op: OpScheme) -> bool:
        return kind in _USUAL_TYPES and _reads_quantized(op)

    def check(self, model: nn.Module, plan: Plan) -> None:
        self.options.alphas()
        for name in self.options.op_types:
            if name not in _TYPES:
                raise ConfigError(
                    f"the pass smooth: no layer of type {name!r} is smoothed; {close_matches(name, _TYPES)}"
                )
        names = [name for name, _ in plan]
        for name in self.options.ops or ():
            if name not in names:
                raise ConfigError(f"the pass smooth: the plan has no op {name!r}; {close_matches(name, names)}")
        for name, op in self._layers(model, plan).items():
            if op.method is not None and op.weight is not None and op.weight.dtype.scale_type is not None:
                raise ConfigError(
                    f"the pass smooth: {op.method.name} finds the weight of {name!r} for inputs as they come; leave the "
                    "method or the pass out, or leave the layer out with ops"
                )
        if not self._layers(model, plan) and not self._in_float(plan):
            kinds = " or ".join(self.options.op_types)
            refusal = NothingToQuantizeError if self.options.ops is None else ConfigError
            raise refusal(
                f"the pass smooth has nothing to smooth: no {kinds} of the plan quantizes what it reads; quantize "
                "activations, or leave the pass out"
            )

    def wants_data(self, plan: Plan) -> bool:
        return any(self._asks_for(key) and _reads_quantized(op) for key, op in plan.items())

    def before(self, state: PassState) -> None:
        layers = self._layers(state.model, state.plan)
        if not layers:
            names = self._in_float(state.plan)
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            logger.warning("nothing is smoothed: the plan has %s%s in float", ", ".join(names[:_NAMED]), more)
            return
        unread = [name for name in _OF_SEARCH if name in self.options.model_fields_set]
        if len(self.options.alphas()) == 1 and unread:
            logger.warning(
                "alpha is %s, so that %s changes nothing; it is for 'auto'", self.options.alpha, ", ".join(unread)
            )
        if len(self.options.alphas()) > 1 and len(state.calls) == 1:
            state = replace(state, calls=_parts(state.model, state.calls[0]))
            if len(state.calls) == 1:
                said = self.options.alphas()[0]
                logger.warning(
                    "data of one sample, or that cannot be parted, does not tell which alpha is best: %s is taken", said
                )
        assert state.survey is not None
        found = list(self._groups(state.survey.feeds(state.model, layers), _with_one_scale(state.plan)))
        seen = self._observed(state, found, with_samples=len(self.options.alphas()) > 1)
        reached = [feed for feed in found if feed in seen]
        search = AlphaSearch(state, layers, seen, self.options.shared_criterion)
        alphas = self.options.alphas()
        if len(alphas) == 1:
            chosen: Mapping[Feed, float | None] = dict.fromkeys(reached, alphas[0])
        elif self.options.do_blockwise:
            chosen = search.by_block(reached, alphas)
        else:
            chosen = {feed: search.of_layers(feed, alphas) for feed in reached}
        scales = {feed: scale_of(state.model, feed, seen[feed], a) for feed, a in chosen.items() if a is not None}
        folded = self._fold(state, scales) if self.options.folding else set[Feed]()
        for feed, scale in scales.items():
            if feed not in folded:
                state.changes.update(dict.fromkeys(feed.readers, InputChange(multiplier=1 / scale)))
        readers = sum(len(feed.readers) for feed in scales)
        logger.info("inputs of %d layers smoothed, of which %d in the layer before", readers, _readers(folded))

    def _layers(self, model: nn.Module, plan: Plan) -> dict[str, OpScheme]:
        """The layers to smooth: those whose input is quantized."""
        found = {}
        for key, op in plan.items():
            if _reads_quantized(op) and self._asks_for(key) and is_scalable(model.get_submodule(key[0])):
                found[key[0]] = op
        return found

    def _in_float(self, plan: Plan) -> list[str]:
        """The layers that would be smoothed if the plan quantized them: tuning takes ops back to float."""
        return [key[0] for key, op in plan.items() if op.is_float and self._asks_for(key)]

    def _asks_for(self, key: OpKey) -> bool:
        return key[1] in self.options.op_types and (self.options.ops is None or key[0] in self.options.ops)

    def _groups(self, found: Sequence[Feed], with_one_scale: Collection[str]) -> Iterator[Feed]:
        """Those that share a scale: what is folded has to, others do where they are asked to.

        Folding divides each output channel of the layer before by a scale of its own. One scale for all of a weight has to
        reach the channel that this makes largest, at the expense of all others.
        """
        for feed in found:
            folds = self.options.folding and feed.source not in (None, *with_one_scale) and feed.capped_by is None
            if folds or self.options.scale_sharing:
                yield feed if folds else replace(feed, source=None)
            else:
                yield from (Feed((name,)) for name in feed.readers)

    def _observed(self, state: PassState, found: Sequence[Feed], with_samples: bool) -> dict[Feed, ChannelInputs]:
        seen = ChannelInputs.observed(state, {feed: feed.readers[0] for feed in found}, with_samples)
        for feed in found:
            if feed not in seen:
                logger.warning("%s is not smoothed: calibration never reached it", ", ".join(feed.readers))
        return seen

    def _fold(self, state: PassState, scales: Mapping[Feed, Tensor]) -> set[Feed]:
        """Put scales into the layers before; all are taken back where that changes what the model computes."""
        folded = {feed for feed in scales if feed.source is not None}
        if not folded:
            return folded
        proof = Proof(state.model, state.calls[:1])
        names = {name for feed in folded for name in (*feed.readers, str(feed.source))}
        kept = {name: parameters_of(state.model.get_submodule(name)) for name in names}
        for feed in folded:
            exact = scales[feed].double()  # so that the two cancel in models of float64
            scale_outputs(state.model.get_submodule(str(feed.source)), 1 / exact)
            for name in feed.readers:
                scale_inputs(state.model.get_submodule(name), exact)
        if proof.holds_for(state.model):
            return folded
        for name, parameters in kept.items():
            restore_parameters(state.model.get_submodule(name), parameters)
        logger.warning("scales are not folded into the layers before: that changes the outputs; inputs are multiplied")
        return set()


def _reads_quantized(op: OpScheme) -> bool:
    """Whether an op has a weight and an input that is quantized."""
    return op.activation is not None and not op.activation.is_float and op.weight is not None


def _parts(model: nn.Module, call: Arguments) -> list[Arguments]:
    """The halves of a call, if the model runs on each."""
    halves = in_two(call)
    try:
        with buffers_kept(model):
            for half in halves:
                called(lambda half=half: call_block(model, half))  # type: ignore[misc]
    except ModuleCallError:
        return [call]
    return halves


def _with_one_scale(plan: Plan) -> set[str]:
    """The ops whose quantized weight has one scale for all channels."""
    weights = {name: op.weight for (name, _), op in plan.items()}
    return {name for name, w in weights.items() if w is not None and not w.is_float and w.granularity == PER_TENSOR}


def _readers(found: Any) -> int:
    return sum(len(feed.readers) for feed in found)
