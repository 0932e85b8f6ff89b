"""Which alpha of SmoothQuant errs least: tried on the quantized layers themselves, one layer or one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from neural_compressor.algorithms import smooth_scale
from neural_compressor.errors import CalibrationError
from neural_compressor.observers import make_observer
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.batches import layer_input, tensors_in
from neural_compressor.torch.hooks import forward_replaced, hooked
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.build import quantized_module
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.passes.model_pass import PassState
from neural_compressor.torch.passes.scaling import input_reach
from neural_compressor.torch.structure.feeds import Feed
from neural_compressor.torch.structure.ops import input_axis, outer_blocks
from neural_compressor.torch.structure.replay import Arguments, call_block, remembered

Criterion = Literal["max", "min", "mean"]
K = TypeVar("K", bound=Hashable)

_ROWS = 256
"""So many vectors of an input are kept to try alphas on, spread over the calls."""
_IMAGES = 4
"""The same of convolutions, whose inputs are kept whole."""
_BLOCK_CALLS = 2
"""So many calls of a block are kept, where alphas are tried on blocks."""
_COMBINED: dict[str, Callable[[Sequence[float]], float]] = {
    "max": max,
    "min": min,
    "mean": lambda errors: sum(errors) / len(errors),
}


@dataclass(frozen=True)
class ChannelInputs:
    """What a layer was given: the least and largest value of each channel, and some of it whole to try things on.

    ``halves`` are the same of every other call each; one only where the layer did not run in the other half.
    """

    low: Tensor
    high: Tensor
    samples: tuple[Tensor, ...] = ()
    halves: tuple[ChannelInputs, ...] = ()

    @property
    def absmax(self) -> Tensor:
        """The largest magnitude of each channel."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @classmethod
    def observed(cls, state: PassState, layers: Mapping[K, str], with_samples: bool) -> dict[K, ChannelInputs]:
        """Of each of ``layers`` that the calls of ``state`` reach."""
        halves: dict[tuple[K, int], ChannelInputs] = {}
        share, done = max(_ROWS // max(len(state.calls), 1), 1), 0

        def see(key: K, module: nn.Module, args: Any, kwargs: Any) -> None:
            x = layer_input((args, kwargs)).detach().float()
            if not x.numel():
                return
            rows = x.movedim(input_axis(module), -1).flatten(0, -2)
            low, high = rows.amin(0), rows.amax(0)
            if not bool(torch.isfinite(torch.stack([low, high])).all()):
                raise CalibrationError(f"op {layers[key]!r} is given NaN or Inf; smoothing takes finite inputs")
            old = halves.get((key, done % 2))
            kept = () if old is None else old.samples
            if with_samples:
                kept += _part(module, x, rows, share, len(kept))
            if old is not None:
                low, high = torch.minimum(low, old.low), torch.maximum(high, old.high)
            halves[key, done % 2] = cls(low, high, kept)

        with hooked({key: state.model.get_submodule(name) for key, name in layers.items()}, before=see):
            for _ in state.replay():
                done += 1
        return {key: cls._of([halves[key, i] for i in (0, 1) if (key, i) in halves]) for key, _ in halves}

    @classmethod
    def _of(cls, halves: Sequence[ChannelInputs]) -> ChannelInputs:
        low = torch.stack([half.low for half in halves]).amin(0)
        return cls(low, torch.stack([half.high for half in halves]).amax(0), halves=tuple(halves))


def _part(module: nn.Module, x: Tensor, rows: Tensor, share: int, kept: int) -> tuple[Tensor, ...]:
    if input_axis(module) != -1:
        return (x[:1].clone(),) if 2 * kept < _IMAGES else ()
    if 2 * kept * share >= _ROWS:
        return ()
    return (rows[:: max(len(rows) // share, 1)][:share].clone(),)


@torch.no_grad()
def scale_of(model: nn.Module, feed: Feed, seen: ChannelInputs, alpha: float) -> Tensor:
    """What to divide the channels of a value by that the readers of ``feed`` multiply with their weights."""
    reach = torch.stack([input_reach(model.get_submodule(name)) for name in feed.readers]).amax(0)
    return torch.as_tensor(smooth_scale(seen.absmax, reach, alpha))


class AlphaSearch:
    """Tries alphas for ``layers``, by name with their schemes, on what was ``seen`` of their inputs."""

    def __init__(
        self,
        state: PassState,
        layers: Mapping[str, OpScheme],
        seen: Mapping[Feed, ChannelInputs],
        criterion: Criterion = "max",
    ) -> None:
        self._state, self._layers, self._seen = state, layers, seen
        self._combined = _COMBINED[criterion]

    @torch.no_grad()
    def of_layers(self, feed: Feed, alphas: Sequence[float]) -> float | None:
        """The alpha with which the layers of ``feed`` err least; None where none is better than none.

        Scales and ranges are those of one half of the data, and errors those on the other: on the data that they are of,
        nothing is cut off, which favours scales that fit every channel closely.
        """
        seen = self._seen[feed]
        if len(seen.halves) < 2:
            return alphas[0]
        tried: dict[str, list[list[tuple[Tensor, Tensor]]]] = {}
        for name in feed.readers:
            module: Any = self._state.model.get_submodule(name)
            given = [[x.to(module.weight.dtype) for x in half.samples] for half in reversed(seen.halves)]
            tried[name] = [[(x, module(x)) for x in held_out] for held_out in given]

        def errors(alpha: float | None) -> Iterator[float]:
            for place, fitted in enumerate(seen.halves):
                found = self._quantized(feed, alpha, fitted)
                yield self._combined([_relative_error((found[n](x), y) for x, y in tried[n][place]) for n in found])

        return _least(errors, alphas)

    @torch.no_grad()
    def by_block(self, found: Sequence[Feed], alphas: Sequence[float]) -> dict[Feed, float | None]:
        """One alpha for each repeated block, by the error of what the block gives; layers outside have their own."""
        blocks = outer_blocks(self._state.model, self._layers)
        inside = {b: [f for f in found if all(name.startswith(f"{b}.") for name in f.readers)] for b in blocks}
        calls, outputs = self._block_calls(blocks)
        chosen: dict[Feed, float | None] = {}
        for block, fed in inside.items():
            if not fed or len(calls[block]) < _BLOCK_CALLS:
                continue
            module = self._state.model.get_submodule(block)

            def errors(
                alpha: float | None, module: nn.Module = module, block: str = block, fed: Sequence[Feed] = fed
            ) -> list[float]:
                with ExitStack() as stack:
                    for feed in fed:
                        for name, new in self._quantized(feed, alpha, self._seen[feed]).items():
                            layer = self._state.model.get_submodule(name)
                            stack.enter_context(forward_replaced(layer, new.forward))
                    found = [_first(call_block(module, call)) for call in calls[block]]
                return [_relative_error([pair]) for pair in zip(found, outputs[block], strict=True)]

            chosen |= dict.fromkeys(fed, _least(errors, alphas))
        return chosen | {feed: self.of_layers(feed, alphas) for feed in found if feed not in chosen}

    def _quantized(self, feed: Feed, alpha: float | None, seen: ChannelInputs) -> dict[str, QuantModule]:
        modules = {name: self._state.model.get_submodule(name) for name in feed.readers}
        change, low, high = None, seen.low, seen.high
        if alpha is not None:
            scale = scale_of(self._state.model, feed, seen, alpha)
            change, low, high = InputChange(multiplier=1 / scale), low / scale, high / scale
        return {
            name: quantized_module(module, self._layers[name], _ranges(self._layers[name], low, high), change=change)
            for name, module in modules.items()
        }

    def _block_calls(self, blocks: Sequence[str]) -> tuple[dict[str, list[Arguments]], dict[str, list[Tensor]]]:
        calls: dict[str, list[Arguments]] = {block: [] for block in blocks}
        outputs: dict[str, list[Tensor]] = {block: [] for block in blocks}

        def keep(block: str, module: nn.Module, args: Any, kwargs: Any) -> None:
            if len(calls[block]) < _BLOCK_CALLS:
                calls[block].append(remembered(module, args, kwargs))

        modules = {block: self._state.model.get_submodule(block) for block in blocks}
        with hooked(modules, before=keep):
            for _, _ in zip(range(_BLOCK_CALLS), self._state.replay(), strict=False):
                pass
        for block, module in modules.items():
            outputs[block] = [_first(call_block(module, call)) for call in calls[block]]
        return calls, outputs


def _ranges(scheme: OpScheme, low: Tensor, high: Tensor) -> list[tuple[Any, Any]]:
    if scheme.mode != "static" or scheme.activation is None:
        return []
    # Of the estimators only the least and largest value can be told from those of channels; for a search they will do.
    observer = make_observer(replace(scheme.activation, algorithm="minmax"))
    observer.update(torch.stack([low, high]))
    return [observer.range(scheme.activation)]


def _least(errors: Callable[[float | None], Iterable[float]], alphas: Sequence[float]) -> float | None:
    """The first, unless another, or None (no smoothing), errs less on each of two parts of the data; then the best of these.

    What errs less on one part alone does so by chance.
    """
    best, first = alphas[0], tuple(errors(alphas[0]))
    least = sum(first)
    for alpha in (*alphas[1:], None):
        found = tuple(errors(alpha))
        if sum(found) < least and all(one < other for one, other in zip(found, first, strict=True)):
            best, least = alpha, sum(found)  # type: ignore[assignment]
    return best


def _first(outputs: Any) -> Tensor:
    return next(tensors_in(outputs))


def _relative_error(pairs: Any) -> float:
    noise = signal = 0.0
    for found, expected in pairs:
        noise += float((found.double() - expected.double()).square().sum())
        signal += float(expected.double().square().sum())
    return noise / signal if signal else noise
