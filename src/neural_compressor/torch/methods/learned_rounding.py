"""Learned rounding of static layers, as a pass over the quantized model.

Layers go in the order in which they run. Inputs are those that reach a layer behind the layers rounded before it, targets
are the outputs of the float model, so that a layer makes up for errors that came before: samples of both models wait in
threads of their own before each layer, and nothing of them is kept but sums. Layers of one block are then trained together,
on what reaches the block.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from neural_compressor.algorithms.learned_rounding import InputMoments, learned_rounding
from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import PER_TENSOR, OpScheme, PerChannel, Plan
from neural_compressor.torch.batches import layer_input
from neural_compressor.torch.methods.autoround.block import first_tensor
from neural_compressor.torch.methods.block_rounding import learn_block
from neural_compressor.torch.methods.weight_only.lockstep import Lockstep, Stop
from neural_compressor.torch.modules.weighted import WeightedModule
from neural_compressor.torch.passes.model_pass import PASSES, ModelPass, PassOptions, PassState
from neural_compressor.torch.passes.survey import sharing_weights
from neural_compressor.torch.structure.ops import outer_blocks
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit, call_block, independent

logger = logging.getLogger("neural_compressor")

SAMPLES = 64
"""How many are looked at; as many inputs of the widest layer are held at once, of either model."""
_POSITIONS = 256
"""So many places of a sample are looked at, evenly spread: neighbours in an image say the same."""
_FEWEST_POSITIONS = 16
"""Where a layer has fewer values a sample and channel, means are chance, and biases are left alone."""
_AT_ONCE = 4
"""Samples whose places are laid out beside each other at a time, which bounds the temporaries."""
_LEARNED = ("Linear", "Conv1d", "Conv2d", "Conv3d")


def is_learned(kind: str, op: OpScheme) -> bool:
    """Whether the rounding of an op of that type can be learned."""
    weight, activation = op.weight, op.activation
    if op.mode != "static" or weight is None or activation is None or kind not in _LEARNED:
        return False
    whole = weight.granularity == PER_TENSOR or isinstance(weight.granularity, PerChannel)
    return weight.dtype.is_integer and activation.dtype.is_integer and whole


class LearnRoundingOptions(PassOptions):
    """How rounding is learned."""

    scope: Literal["layer", "block"] = Field(
        default="layer", description="what stays what it is in float: what each layer gives, or what each block gives"
    )
    sweeps: int = Field(default=4, ge=1, description="how often at most the weights of a layer are gone through")
    iters: int = Field(default=100, ge=1, description="steps of training a block, where the scope is that")
    ops: list[str] | None = Field(
        default=None, description="names of layers that learn; None: all of the plan that can"
    )


@PASSES.register("learn_rounding")
class LearnRounding(ModelPass):
    """Weights of static layers are rounded up or down so that what blocks and layers give stays what it is in float.

    Where the plan has biases corrected, those of convolutions take up what then is left in the mean.
    """

    Options = LearnRoundingOptions
    sees_data: ClassVar[bool] = True
    calls_alone: ClassVar[bool] = True
    limit: ClassVar[CalibrationLimit] = CalibrationLimit(samples=SAMPLES)
    options: LearnRoundingOptions

    @classmethod
    def serves(cls, kind: str, op: OpScheme) -> bool:
        return is_learned(kind, op)

    def check(self, model: nn.Module, plan: Plan) -> None:
        can = [name for (name, kind), op in plan.items() if is_learned(kind, op)]
        what = "static linear layer or convolution with a weight in integers that has one scale, or one a channel"
        for name in self.options.ops or ():
            if name not in can:
                raise ConfigError(
                    f"the pass learn_rounding: the plan has no {what} called {name!r}; {close_matches(name, can)}"
                )
        if not can:
            raise ConfigError(f"the pass learn_rounding: the plan has no {what}")
        order = [step.name for step in plan.passes]
        if "correct_weights" in order:
            raise ConfigError(
                "the passes learn_rounding and correct_weights both change weights for their outputs; choose one "
                "(recipes learned_rounding and weight_correction)"
            )
        if "correct_biases" in order and order.index("correct_biases") < order.index("learn_rounding"):
            raise ConfigError("the pass correct_biases makes up for weights that learn_rounding changes: put it behind")

    def compares(self, plan: Plan) -> bool:
        return True

    def _layers(self, state: PassState) -> dict[str, WeightedModule]:
        names = [name for (name, kind), op in state.plan.items() if is_learned(kind, op)]
        names = [name for name in names if self.options.ops is None or name in self.options.ops]
        found = {name: state.model.get_submodule(name) for name in names}
        return {name: module for name, module in found.items() if isinstance(module, WeightedModule)}

    @torch.no_grad()
    def after(self, state: PassState) -> None:
        layers = self._layers(state)
        if not layers:
            return
        assert state.floats is not None
        corrects = any(step.name == "correct_biases" for step in state.plan.passes)
        learning = _Learning(self.options, layers, corrects)
        if self.options.scope == "layer":
            learning.by_layer(state.model, state.floats, layers, state.calls, state.calls)
        else:
            learning.by_block(state.model, state.floats, state.calls)
        state.settled.update(learning.settled)
        learning.tell()


class _Learning:
    """The layers of one model on their way: those whose biases are settled, and what was gained."""

    def __init__(self, options: LearnRoundingOptions, layers: Mapping[str, WeightedModule], corrects: bool) -> None:
        self.options, self.layers, self.corrects = options, layers, corrects
        self.settled: set[str] = set()
        self._of_layers, self._of_blocks = [0.0, 0.0], list[tuple[float, float]]()
        self._names = {id(module): name for name, module in layers.items()}

    def tell(self) -> None:
        """Log what was gained."""
        logger.info("rounding learned in %d layers: squared error %.4g -> %.4g", len(self.layers), *self._of_layers)
        for place, errors in enumerate(self._of_blocks):
            logger.debug("block %d: mean squared error %.4g -> %.4g", place, *errors)

    def by_layer(
        self,
        model: nn.Module,
        floats: nn.Module,
        layers: Mapping[str, WeightedModule],
        calls: Sequence[Arguments],
        float_calls: Sequence[Arguments],
    ) -> None:
        """One after the other in the order they run; names are those in ``model``, which may be a block."""
        streams = (Lockstep(each, made, list(layers)) for each, made in ((model, calls), (floats, float_calls)))
        for stop, reference in _together(*streams):
            self._learn(layers[stop.block], floats.get_submodule(stop.block), stop, reference)

    def by_block(self, model: nn.Module, floats: nn.Module, calls: Sequence[Arguments]) -> None:
        """Blocks in the order they run, and layers outside of them, which learn alone."""
        inside = {block: _inside(block, self.layers) for block in outer_blocks(model, self.layers)}
        inside = {block: found for block, found in inside.items() if len(found) > 1}
        if not inside:
            logger.info("no repeated block of the model holds two of the layers: rounding is learned layer by layer")
        home = {f"{block}.{name}": block for block, found in inside.items() for name in found}
        places = list(dict.fromkeys(home.get(name, name) for name in self.layers))
        # Copies before samples stop at the doors of the blocks, which a copy would have too.
        copies = {block: sharing_weights(floats.get_submodule(block)) for block in inside}
        for stop, reference in _together(*(Lockstep(each, calls, places) for each in (model, floats))):
            name, original = stop.block, floats.get_submodule(stop.block)
            if name in self.layers:
                self._learn(self.layers[name], original, stop, reference)
            else:
                block = model.get_submodule(name)
                self._learn_block(block, original, copies.pop(name), inside[name], stop.calls, reference.calls)

    def _learn_block(
        self,
        block: nn.Module,
        original: nn.Module,
        copy: nn.Module,
        layers: Mapping[str, WeightedModule],
        calls: Sequence[Arguments],
        float_calls: Sequence[Arguments],
    ) -> None:
        """Layer by layer first: from there training the block as a whole gets further than from rounding to nearest.

        Biases stay what they are while it trains, and after: codes are then those that do best with these biases, and
        shifting them once more for the new codes took 0.1 to 0.2 dB off ResNet-20 in 4 and 3 bits.
        """
        # Copies: a block may write into its input, and runs on it more than once.
        self.by_layer(block, original, layers, _copied(calls), _copied(float_calls))
        targets = [first_tensor(call_block(original, call)) for call in _copied(float_calls)]
        self._of_blocks.append(learn_block(copy, layers, calls, targets, self.options.iters))

    def _learn(self, module: WeightedModule, original: nn.Module, stop: Stop, reference: Stop) -> None:
        moments, enough = _moments(module, original, stop, reference)
        centred = enough and self.corrects
        start, error = module.weight_array(), moments.error(centred)
        partners = module.pairs() if module.weight_scheme.pair_safe else None
        found = learned_rounding(error, start, sweeps=self.options.sweeps, partners=partners)
        for place, array in enumerate((start, found)):
            self._of_layers[place] += float(error(array.dequantize()).sum())
        module.store_weight(found)
        if centred:
            module.shift_bias(torch.as_tensor(error.bias_shift(found.dequantize())))
            self.settled.add(self._names[id(module)])


def _copied(calls: Sequence[Arguments]) -> list[Arguments]:
    return [independent(call, Tensor.clone) for call in calls]


def _inside(block: str, layers: Mapping[str, WeightedModule]) -> dict[str, WeightedModule]:
    return {name.removeprefix(f"{block}."): layer for name, layer in layers.items() if name.startswith(f"{block}.")}


def _together(stops: Iterable[Stop], references: Iterable[Stop]) -> Iterator[tuple[Stop, Stop]]:
    """The stops of the quantized model and of the float one, which are to be at the same layers."""
    for stop, reference in zip_longest(stops, references):
        places = ["the end" if each is None else repr(each.block) for each in (stop, reference)]
        if stop is None or reference is None or places[0] != places[1] or len(stop.calls) != len(reference.calls):
            raise CalibrationError(
                f"the quantized model comes to {places[0]} where the float one comes to {places[1]}: which layers run "
                "depends on values, so that rounding cannot be learned from both; leave out learned rounding"
            )
        yield stop, reference


def _moments(module: WeightedModule, original: nn.Module, stop: Stop, reference: Stop) -> tuple[InputMoments, bool]:
    """What of the inputs of a layer says how far off its outputs are, and whether there are enough of them for means."""
    assert isinstance(original.weight, Tensor)
    groups = int(getattr(original, "groups", 1))
    matrix = module.to_matrix(module.for_changed_inputs(original.weight.detach().float()))
    moments, samples = InputMoments(matrix.reshape(groups, -1, matrix.shape[1])), 0
    for call, other in zip(stop.calls, reference.calls, strict=True):
        for x, r in zip(*(_samples(original, layer_input(each)) for each in (call, other)), strict=True):
            rounded, turned = module.multiplied_input(x).float(), module.turned(r).float()
            moments.update(patches(original, rounded, _POSITIONS), patches(original, turned, _POSITIONS))
            samples += len(x)
    enough = not isinstance(original, nn.Linear) and moments.count >= _FEWEST_POSITIONS * samples
    return moments, enough


def _samples(layer: nn.Module, x: Tensor) -> Sequence[Tensor]:
    """A few samples at a time, of a convolution with an axis for them."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and x.dim() == len(layer.kernel_size) + 1:
        x = x.unsqueeze(0)
    return [x[start : start + _AT_ONCE] for start in range(0, len(x), _AT_ONCE)]


def patches(layer: nn.Module, x: Tensor, most: int | None = None) -> Tensor:
    """What the rows of a layer's weight are multiplied with, (groups, vectors, inputs); ``most`` of each sample, spread.

    >>> layer = nn.Conv1d(2, 2, 2, groups=2)
    >>> patches(layer, torch.tensor([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])).tolist()
    [[[1.0, 2.0], [2.0, 3.0]], [[4.0, 5.0], [5.0, 6.0]]]
    """
    if isinstance(layer, nn.Linear):
        return x.reshape(1, -1, x.shape[-1])
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    dims = len(layer.kernel_size)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, step, apart) in enumerate(zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), 2):
        x = x.unfold(axis, apart * (size - 1) + 1, step)[..., ::apart]
    places = math.prod(x.shape[2 : 2 + dims])
    if most is not None and places > most:
        every = math.ceil((places / most) ** (1 / dims))
        for axis in range(2, 2 + dims):
            x = x[(slice(None),) * axis + (slice((x.shape[axis] - 1) % every // 2, None, every),)]
    # (samples, channels, *places, *kernel) -> (groups, samples and places, channels of a group and kernel)
    x = x.reshape(len(x), layer.groups, -1, *x.shape[2:]).movedim((1, 2), (0, 2 + dims))
    return x.flatten(2 + dims).flatten(1, 1 + dims)
