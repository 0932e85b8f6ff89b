"""Rotation folded into the weights: the residual stream and the values of heads are turned, and nothing is left at run time.

What the stream is, is found by watching the model run (``structure/residual_stream.py``). Gains of the norms on it go into
the layers that read them, as a gain does not commute with a turn; then every layer that reads or writes the stream is turned
on that side. The model computes what it did before, and weights and inputs no longer have channels that stand out (QuaRot,
arXiv 2404.00456, section 4; SliceGPT, arXiv 2401.15024, section 3.2).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from neural_compressor.algorithms import Orthogonal
from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.schemes import Pass, Plan
from neural_compressor.torch.batches import tensors_in
from neural_compressor.torch.hooks import buffers_kept, evaluating
from neural_compressor.torch.modules.weight_only import matrix_of
from neural_compressor.torch.passes.model_pass import PASSES, ModelPass, PassOptions, PassState
from neural_compressor.torch.passes.proof import TOKENS, Proof, first_of_each_kind, shortened
from neural_compressor.torch.passes.survey import sharing_weights
from neural_compressor.torch.structure.layer_form import LayerForm, turned_axis
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit
from neural_compressor.torch.structure.residual_stream import Space, find_spaces, takes_bias
from neural_compressor.torch.structure.ties import forget_ties, set_parameter, tied_parameters

logger = logging.getLogger("neural_compressor")

PROVEN_ON = 4
"""Calls of the model, one sample of each, on which the turned model has to give the same."""
_NAMED = 3
"""So many reasons are named in an error."""


ROTATE = Pass("rotate")
"""The residual stream and the values of heads are turned, by changing weights alone."""


class RotateOptions(PassOptions):
    """``seed`` is that of the matrices, which are random."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0


@PASSES.register("rotate")
class Rotate(ModelPass):
    """Fold a rotation into the weights; it is an error where the structure of the model does not allow that."""

    Options = RotateOptions
    sees_data = True
    calls_alone = True
    moves_ranges = True

    def check(self, model: nn.Module, plan: Plan) -> None:
        """Refuse a model without values."""
        _require_values(model)

    def before(self, state: PassState) -> None:
        """Turn the model."""
        fold_rotation(state.model, state.calls, self.options.seed)


@dataclass(frozen=True)
class FoldedRotation:
    """What was turned: ``stream`` first, then other ``spaces``; ``untied`` are weights that were one tensor before."""

    stream: Space
    spaces: tuple[Space, ...] = ()
    untied: tuple[str, ...] = ()

    def __str__(self) -> str:
        widths = {space.width for space in self.spaces}
        heads = f", and {len(self.spaces)} spaces of width {', '.join(map(str, sorted(widths)))} inside of blocks"
        layers = len({*self.stream.writers, *self.stream.readers})
        return f"the residual stream of width {self.stream.width} ({layers} layers){heads if widths else ''}"


@torch.no_grad()
def fold_rotation(model: nn.Module, calls: Sequence[Arguments], seed: int = 0) -> FoldedRotation:
    """Turn the residual stream of ``model`` and the values of its heads, in place, by changing weights alone.

    The structure is found, and the result is proven, on ``calls`` and on variants of them in other numbers of samples and
    tokens: outputs must be those of the model before, up to rounding. Where that does not hold, or the structure does not
    allow a turn, the model is left as it was, and the error says why. Weights that were tied get values of their own; the
    configuration of a transformers model is told so.
    """
    if not calls:
        raise QuantizationError("a rotation is folded where the model was seen to allow it: run it on data first")
    _require_values(model)
    samples = [cut for call in _different(calls)[:PROVEN_ON] if (cut := shortened(call)) is not None]
    with evaluating(model):
        proof = Proof(model, samples)
        _require_finite(model, proof.outputs[: len(samples)])
        with buffers_kept(model):
            spaces = find_spaces(model, [*proof.calls, *_longest(calls)])
        stream, others = _checked(model, spaces)
        new, turned = _proven(model, stream, others, proof, seed)
    untied = _put(model, new)
    if untied:
        logger.warning("%s shared one tensor, and have values of their own now", " and ".join(untied))
    result = FoldedRotation(stream, tuple(turned), tuple(untied))
    logger.info("a rotation is folded into the weights: %s", result)
    return result


def _require_values(model: nn.Module) -> None:
    if empty := next((name for name, p in model.named_parameters() if p.is_meta), None):
        raise ConfigError(
            f"a rotation cannot be folded into {empty!r}, which has no values (meta device): the whole model is turned "
            "before its first layer is quantized, so load its weights, or rotate at run time (hadamard=True)"
        )


def _different(calls: Sequence[Arguments]) -> list[Arguments]:
    """``calls``, with the first of each kind of arguments in front: one with images may run what others do not."""
    first = first_of_each_kind(calls)
    chosen = {id(call) for call in first}
    return [*first, *(call for call in calls if id(call) not in chosen)]


def _longest(calls: Sequence[Arguments]) -> list[Arguments]:
    """One sample of the longest call with all of its tokens, if it has more than are compared."""
    sizes = [max((t.shape[1] for t in tensors_in(call) if t.dim() == 2), default=0) for call in calls]
    longest = calls[sizes.index(max(sizes))]
    cut = CalibrationLimit(samples=1).cut(longest, 0) if max(sizes) > TOKENS else None
    return [] if cut is None else [cut]


def _require_finite(model: nn.Module, outputs: Sequence[Any]) -> None:
    floats = [each for each in tensors_in(outputs) if each.is_floating_point() and each.dim() and each.numel()]
    if not all(bool(torch.isfinite(each).any()) for each in floats):
        raise CalibrationError(
            f"an output of the {type(model).__name__} on the calibration data is NaN or Inf throughout, so that no rotation "
            "can be proven; look for an overflow in the float model or bad values in the data"
        )


def _checked(model: nn.Module, spaces: Sequence[Space]) -> tuple[Space, list[Space]]:
    """The residual stream and what else can be turned."""
    if not spaces:
        raise QuantizationError(
            f"a rotation cannot be folded into a {type(model).__name__}: no values were seen that one layer writes and "
            "another reads without a function in between that works channel by channel; leave the rotation out, or rotate "
            "at run time (hadamard=True)"
        )
    stream, *others = spaces
    if not stream.can_turn or len(stream.writers) == 1:
        more = len(stream.obstacles) - _NAMED
        alone = "it is one value wide" if stream.width == 1 else "no residual stream goes through layers that add to it"
        reasons = "; ".join(stream.obstacles[:_NAMED]) or alone
        raise QuantizationError(
            f"a rotation cannot be folded into a {type(model).__name__}. What most layers share, {stream.width} values that "
            f"{stream.writers[0]!r} and {len(stream.writers) - 1} more write and {next(iter(stream.readers))!r} and "
            f"{len(stream.readers) - 1} more read, cannot be turned: {reasons}{f'; and {more} more' if more > 0 else ''}. "
            "Leave the rotation out, or rotate at run time (hadamard=True)"
        )
    return stream, [space for space in others if space.can_turn]


def _proven(
    model: nn.Module, stream: Space, others: list[Space], proof: Proof, seed: int
) -> tuple[dict[str, Tensor], list[Space]]:
    """The new parameters with which the model gives the same, and the spaces beside the stream that they turn."""
    for turned in [others, []] if others else [[]]:
        new = turned_parameters(model, [stream, *turned], seed)
        trial = sharing_weights(model)
        _put(trial, new)
        if proof.holds_for(trial):
            if len(turned) < len(others):
                logger.warning("the values inside of blocks are not turned, as the model would give something else")
            return new, turned
    raise QuantizationError(
        f"a rotation cannot be folded into a {type(model).__name__}: with its residual stream turned it gives something "
        "else, so that some code reads a weight or a value in a way that watching it did not show. The model is left as "
        "it was; leave the rotation out, or rotate at run time (hadamard=True)"
    )


@dataclass(frozen=True)
class _Input:
    """How the input side of a layer changes: the turn, and what a norm no longer does to its input."""

    turn: Orthogonal
    gain: Tensor | None = None
    offset: Tensor | None = None


def turned_parameters(model: nn.Module, spaces: Sequence[Space], seed: int = 0) -> dict[str, Tensor]:
    """The parameters, by name, with which each of ``spaces`` is turned by a matrix of its own; computed in float64."""
    modules, new = dict(model.named_modules()), dict[str, Tensor]()
    forms = {name: form for space in spaces for name, form in space.forms.items()}
    inputs: dict[str, _Input] = {}
    outputs: dict[str, Orthogonal] = {}
    for place, space in enumerate(spaces):
        turn = Orthogonal(space.width, seed + place, space.keeps_mean)
        outputs |= dict.fromkeys(space.writers, turn)
        behind: dict[str | None, _Input] = {None: _Input(turn)}
        for name in space.norms:
            layers = [layer for layer, norm in space.readers.items() if norm == name]
            changed, behind[name] = _neutral_norm(modules[name], space, name, turn, takes_bias(modules, layers))
            new |= changed
        inputs |= {name: behind[norm] for name, norm in space.readers.items()}
    for name in dict.fromkeys([*inputs, *outputs]):
        new |= _turned_layer(modules[name], name, forms[name], inputs.get(name), outputs.get(name))
    return new


def _neutral_norm(
    norm: nn.Module, space: Space, name: str, turn: Orthogonal, hands_bias_on: bool
) -> tuple[dict[str, Tensor], _Input]:
    """A norm with a gain of one, and what the layers behind it take over."""
    form, new = space.norms[name], dict[str, Tensor]()
    gain, bias = form.gain(norm), getattr(norm, "bias", None)
    if gain is not None:
        assert isinstance(norm.weight, Tensor)
        new[f"{name}.weight"] = torch.full_like(norm.weight, form.neutral or 0.0)
    if not isinstance(bias, Tensor):
        return new, _Input(turn, gain)
    if hands_bias_on:
        new[f"{name}.bias"] = torch.zeros_like(bias)
        return new, _Input(turn, gain, bias.detach().double())
    # W (g x + b) = (W g) (x + b / g)
    kept = bias.detach().double() if gain is None else bias.detach().double() / gain
    new[f"{name}.bias"] = turn.apply(kept).to(bias.dtype)
    return new, _Input(turn, gain)


def _turned_layer(
    layer: nn.Module, name: str, form: LayerForm, side: _Input | None, out: Orthogonal | None
) -> dict[str, Tensor]:
    """The parameters of a layer with its input side, its output side, or both turned."""
    own, new = dict(layer.named_parameters(recurse=False)), dict[str, Tensor]()
    both = {parameter for parameter, _ in form.outputs} if out is not None else set()
    if side is not None:
        if side.offset is not None:  # such layers are linear, and have a bias
            matrix = matrix_of(layer).double()
            new["bias"] = own["bias"].detach().double() + matrix @ side.offset.repeat(
                matrix.shape[1] // len(side.offset)
            )
        for parameter, axis in form.inputs:
            kept = torch.float64 if parameter in both else own[parameter].dtype
            new[parameter] = turned_axis(own[parameter].detach(), axis, side.turn, kept, side.gain)
    if out is not None:
        for parameter, axis in form.outputs:
            values = new.get(parameter, own[parameter].detach())
            new[parameter] = turned_axis(values, axis, out, own[parameter].dtype)
    return {f"{name}.{parameter}": values.to(own[parameter].dtype) for parameter, values in new.items()}


# -- into the model -------------------------------------------------------------------------------------------------


def _put(model: nn.Module, new: Mapping[str, Tensor]) -> list[str]:
    """Give ``model`` the parameters ``new``; returns those that were one tensor with others, and no longer are."""
    untied = [name for tied in tied_parameters(model) if set(tied) & set(new) for name in tied]
    for name, tensor in new.items():
        set_parameter(model, name, tensor)
    if untied:
        forget_ties(model)
    return untied
