"""Which alpha of SmoothQuant errs least: tried on the quantized layers themselves, one layer or one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
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
    """What a layer was given: the least and largest value of each channel, and some of it whole to try things on."""

    low: Tensor
    high: Tensor
    samples: tuple[Tensor, ...] = ()

    @property
    def absmax(self) -> Tensor:
        """The largest magnitude of each channel."""
        return torch.maximum(self.low.abs(), self.high.abs())

    @classmethod
    def observed(cls, state: PassState, layers: Mapping[K, str], with_samples: bool) -> dict[K, ChannelInputs]:
        """Of each of ``layers`` that the calls of ``state`` reach."""
        found: dict[K, ChannelInputs] = {}
        share = max(_ROWS // max(len(state.calls), 1), 1)

        def see(key: K, module: nn.Module, args: Any, kwargs: Any) -> None:
            x = layer_input((args, kwargs)).detach().float()
            if not x.numel():
                return
            rows = x.movedim(input_axis(module), -1).flatten(0, -2)
            low, high = rows.amin(0), rows.amax(0)
            if not bool(torch.isfinite(torch.stack([low, high])).all()):
                raise CalibrationError(f"op {layers[key]!r} is given NaN or Inf; smoothing takes finite inputs")
            old = found.get(key)
            kept = () if old is None else old.samples
            if with_samples:
                kept += _part(module, x, rows, share, len(kept))
            if old is not None:
                low, high = torch.minimum(low, old.low), torch.maximum(high, old.high)
            found[key] = cls(low, high, kept)

        with hooked({key: state.model.get_submodule(name) for key, name in layers.items()}, before=see):
            for _ in state.replay():
                pass
        return found


def _part(module: nn.Module, x: Tensor, rows: Tensor, share: int, kept: int) -> tuple[Tensor, ...]:
    if input_axis(module) != -1:
        return (x[:1].clone(),) if kept < _IMAGES else ()
    if kept * share >= _ROWS:
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
        """The alpha that makes the error of what the layers of ``feed`` give least; None where none is better than none."""
        seen = self._seen[feed]
        modules = {name: self._state.model.get_submodule(name) for name in feed.readers}
        samples = {name: [x.to(module.weight.dtype) for x in seen.samples] for name, module in modules.items()}  # type: ignore[arg-type]
        expected = {name: [module(x) for x in samples[name]] for name, module in modules.items()}

        def error(alpha: float | None) -> float:
            errors = []
            for name, quantized in self._quantized(feed, alpha).items():
                pairs = zip((quantized(x) for x in samples[name]), expected[name], strict=True)
                errors.append(_relative_error(pairs))
            return self._combined(errors)

        return _least(error, alphas)

    @torch.no_grad()
    def by_block(self, found: Sequence[Feed], alphas: Sequence[float]) -> dict[Feed, float | None]:
        """One alpha for each repeated block, by the error of what the block gives; layers outside have their own."""
        blocks = outer_blocks(self._state.model, self._layers)
        inside = {b: [f for f in found if all(name.startswith(f"{b}.") for name in f.readers)] for b in blocks}
        calls, outputs = self._block_calls(blocks)
        chosen: dict[Feed, float | None] = {}
        for block, fed in inside.items():
            if not fed or not calls.get(block):
                continue
            module = self._state.model.get_submodule(block)

            def error(
                alpha: float | None, module: nn.Module = module, block: str = block, fed: Sequence[Feed] = fed
            ) -> float:
                with ExitStack() as stack:
                    for feed in fed:
                        for name, new in self._quantized(feed, alpha).items():
                            layer = self._state.model.get_submodule(name)
                            stack.enter_context(forward_replaced(layer, new.forward))
                    new_outputs = [_first(call_block(module, call)) for call in calls[block]]
                return _relative_error(zip(new_outputs, outputs[block], strict=True))

            chosen |= dict.fromkeys(fed, _least(error, alphas))
        return chosen | {feed: self.of_layers(feed, alphas) for feed in found if feed not in chosen}

    def _quantized(self, feed: Feed, alpha: float | None) -> dict[str, QuantModule]:
        seen = self._seen[feed]
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


def _least(error: Callable[[float | None], float], alphas: Sequence[float]) -> float | None:
    """Of equal ones the first; None, which is no smoothing, only where it is better than all."""
    best, least = alphas[0], error(alphas[0])
    for alpha in (*alphas[1:], None):
        if (found := error(alpha)) < least:
            best, least = alpha, found  # type: ignore[assignment]
    return best


def _first(outputs: Any) -> Tensor:
    return next(tensors_in(outputs))


def _relative_error(pairs: Any) -> float:
    noise = signal = 0.0
    for found, expected in pairs:
        noise += float((found.double() - expected.double()).square().sum())
        signal += float(expected.double().square().sum())
    return noise / signal if signal else noise
