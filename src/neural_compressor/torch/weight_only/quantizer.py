"""Quantize the linear layers of a model: at once where no data is needed, else block by block."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from neural_compressor.algorithms import InputStatistics, LayerResult
from neural_compressor.errors import CalibrationError, NeuralCompressorError, QuantizationError
from neural_compressor.torch.fold import replace_module
from neural_compressor.torch.nn.matrix_stack import open_stacks, weight_only_class
from neural_compressor.torch.weight_only.absorb import absorb, absorbing_norm, named_norm
from neural_compressor.torch.weight_only.autoround import AutoRoundOptions, tune_block
from neural_compressor.torch.weight_only.jobs import BLOCKWISE, LayerJob, matrix_of
from neural_compressor.torch.weight_only.layers import find_blocks, is_parameter
from neural_compressor.torch.weight_only.lockstep import Lockstep, Stop
from neural_compressor.torch.weight_only.replay import Arguments, call_block
from neural_compressor.torch.weight_only.statistics import InputGroup, collect, sharing
from neural_compressor.torch.weight_only.streaming import WeightSource, give_back_freed_memory

logger = logging.getLogger("neural_compressor")


@dataclass(frozen=True)
class GroupResult:
    """What takes the place of layers that share an input, and the normalisation that takes up the scale of it."""

    layers: Mapping[str, nn.Module]
    norm: nn.Module | None = None
    scale: Any = None


@dataclass
class WeightOnlyQuantizer:
    """Replaces the layers of ``model`` named in ``jobs``, in place.

    With a ``source`` the weights of an empty model are read when their turn comes: a layer where no data is needed, else
    a block. ``upstream`` keeps a float stream beside the quantized one, for algorithms that correct the error made before
    them; ``true_sequential`` measures each group of layers behind the ones of its block already quantized. With ``amp``
    blocks run in bfloat16 where that is faster.
    """

    model: nn.Module
    jobs: Mapping[str, LayerJob]
    upstream: bool = False
    true_sequential: bool = False
    amp: bool = True
    source: WeightSource | None = None
    on_block: Callable[[str, int, int], None] | None = None
    missed: dict[str, str] = field(default_factory=dict)

    def run(self, calls: Sequence[Arguments] = ()) -> dict[str, str]:
        """Quantize; returns the layers that were left in float, with the reason."""
        # Names, not modules: whoever holds a float layer that was replaced holds its weight.
        waiting = [name for name, job in self.jobs.items() if job.needs_data]
        if waiting and not calls:
            raise CalibrationError(
                f"{len(waiting)} layers need calibration ({_some(waiting)}): run the prepared model on data before convert"
            )
        for name, job in self.jobs.items():
            if not job.needs_data:
                self._fill(name if not name or is_parameter(self.model, name) else f"{name}.")
                open_stacks(self.model, [name])
                self._quantize_alone(name, None)
        if waiting:
            self._blockwise(waiting, calls)
        self._fill()
        if self.source is not None:
            self.source.finish(self.model)
        return self.missed

    def _fill(self, prefix: str = "", but: tuple[str, ...] = ()) -> None:
        if self.source is not None:
            self.source.fill(self.model, prefix, but)

    def _tidy(self) -> None:
        if self.source is not None:
            give_back_freed_memory()

    def _blockwise(self, layers: Sequence[str], calls: Sequence[Arguments]) -> None:
        blocks = find_blocks(self.model, layers) or [""]
        inside = {block: [n for n in layers if n.startswith(f"{block}." if block else "")] for block in blocks}
        outside = [n for n in layers if not any(n in members for members in inside.values())]
        float_stream = self.upstream or any(self.jobs[n].algorithm == BLOCKWISE for n in layers)
        self._fill(but=tuple(f"{block}." for block in blocks if block))
        steps = Lockstep(self.model, calls, blocks, float_stream, lambda block: self._fill(f"{block}."), self.amp)
        with ExitStack() as stack:
            heads = {name: InputStatistics() for name in outside}
            for name in outside:
                feed = _feed(heads[name], steps, floats=not self.jobs[name].quantized_input)
                hook = self.model.get_submodule(name).register_forward_pre_hook(feed)
                stack.callback(hook.remove)
            waiting = list(blocks)
            for stop in steps:
                if self.on_block is not None:
                    self.on_block(stop.block, len(blocks) - len(waiting), len(blocks))
                self._quantize_block(stop, inside[stop.block])
                waiting.remove(stop.block)
                if not outside and not waiting:
                    break  # nothing behind the last block wants to know
                del stop  # it holds what reached the block while the samples go on to the next
        for block in waiting:
            self._note_missed(inside[block])
        for name, statistics in heads.items():
            self._quantize_alone(name, statistics)

    def _quantize_alone(self, name: str, statistics: InputStatistics | None) -> None:
        found = self._quantize_group([name], statistics)
        self._apply([] if found is None else [found])

    def _quantize_block(self, stop: Stop, layers: Sequence[str]) -> None:
        block = self.model.get_submodule(stop.block)
        trained = [n for n in layers if self.jobs[n].algorithm == BLOCKWISE]
        remaining = [n for n in layers if n not in trained]
        again = [functools.partial(call_block, block, call, self.amp) for call in stop.float_calls]
        float_runs = stop.float_runs if self.upstream and not trained else again
        # What training aims at is what the block gives while all of it is float.
        targets = [_first(run()) for run in stop.float_runs] if float_runs is again or not remaining else []
        results: list[GroupResult] = []
        for names in self._measured_together(block, remaining, stop):
            groups = collect(block, self._modules(names), stop.calls, float_runs if self.upstream else (), amp=self.amp)
            float_runs = again
            reached = {name for group in groups for name in group.layers}
            self._note_missed(name for name in names if name not in reached)
            while groups:
                found = self._quantize_kinds(groups.pop(0), stop, layers)
                if self._keeps_back:
                    results += found
                else:
                    self._apply(found)
            if self._keeps_back:
                self._fill(f"{stop.block}.")
        self._apply(results)
        if trained:
            self._train_block(block, self._modules(trained), stop, targets)

    def _modules(self, names: Iterable[str]) -> dict[str, nn.Module]:
        return {name: self.model.get_submodule(name) for name in names}

    def _train_block(
        self, block: nn.Module, layers: Mapping[str, nn.Module], stop: Stop, targets: list[torch.Tensor]
    ) -> None:
        job = self.jobs[next(iter(layers))]
        inputs = stop.calls if job.quantized_input else stop.float_calls
        schemes = {name: self.jobs[name].scheme for name in layers}
        found = tune_block(block, dict(layers), schemes, list(inputs), targets, AutoRoundOptions(**job.options))
        self._note_missed(set(layers) - set(found))
        self._apply([GroupResult({name: self._replacement(name, result) for name, result in found.items()})])

    @property
    def _keeps_back(self) -> bool:
        """Whether the layers of a block are replaced when all of them are quantized, and not one after the other.

        With few of a block's matrices in memory at a time, each group of layers is measured in a run of its own, and all
        of these must see the float block.
        """
        return self.source is not None and not self.true_sequential

    def _measured_together(self, block: nn.Module, layers: Sequence[str], stop: Stop) -> list[Sequence[str]]:
        """Which layers are measured in one run: all of them, or where memory or the order counts those of one input."""
        if not layers or (self.source is None and not self.true_sequential):
            return [layers] if layers else []
        groups: list[Sequence[str]] = [*sharing(block, self._modules(layers), stop.calls[0], self.amp)]
        found = {name for group in groups for name in group}
        late = [name for name in layers if name not in found]
        return [*groups, late] if late else groups

    def _quantize_kinds(self, group: InputGroup, stop: Stop, layers: Sequence[str]) -> list[GroupResult]:
        kinds: dict[str, list[str]] = {}
        for name in group.layers:
            kinds.setdefault(self.jobs[name].kind, []).append(name)
        groups = list(kinds.values())
        found = [self._quantize_group(names, group.statistics, stop, layers, names is groups[-1]) for names in groups]
        return [result for result in found if result is not None]

    def _quantize_group(
        self,
        names: list[str],
        statistics: InputStatistics | None,
        stop: Stop | None = None,
        beside: Sequence[str] = (),
        last: bool = False,
    ) -> GroupResult | None:
        """Layers with one job and one input, as one tall matrix; the floats of those ``beside`` them can be read again."""
        if statistics is not None and statistics.count == 0:
            self._note_missed(names)
            return None
        job = self.jobs[names[0]]
        norm = self._norm_for(names, stop)
        weight, rows = self._take(names, beside)
        self._tidy()
        try:
            job = job.unscaled() if job.folding and norm is None else job
            result = job.run(weight, statistics, last)
        except NeuralCompressorError as error:
            raise QuantizationError(f"layer {', '.join(map(repr, names))}: {error}") from error
        scale = None
        if norm is not None:
            scale, result = result.input_scale, replace(result, input_scale=None)
        parts = zip(names, result.split(rows), strict=True)
        return GroupResult({name: self._replacement(name, part) for name, part in parts}, norm, scale)

    def _apply(self, results: Iterable[GroupResult]) -> None:
        for result in results:
            if result.norm is not None and result.scale is not None:
                absorb(result.norm, result.scale)
            for name, layer in result.layers.items():
                if name:
                    replace_module(self.model, name, layer)
                else:
                    self.model = layer

    def _take(self, names: Sequence[str], beside: Sequence[str]) -> tuple[torch.Tensor, list[int]]:
        """The weights of some layers as one tall matrix, and how many rows each has; from here on only shapes are asked."""
        matrices = [matrix_of(layer).float() for layer in self._modules(names).values()]
        if self.source is not None:
            for layer in self._modules({*names, *(beside if self._keeps_back else ())}).values():
                layer.weight = nn.Parameter(layer.get_parameter("weight").to("meta"), requires_grad=False)
        return matrices[0] if len(matrices) == 1 else torch.cat(matrices), [len(m) for m in matrices]

    def _norm_for(self, names: list[str], stop: Stop | None) -> nn.Module | None:
        job = self.jobs[names[0]]
        if (absorber := job.absorber(names)) is not None:
            return named_norm(self.model, absorber)
        if stop is None or not job.folding:
            return None
        prefix = f"{stop.block}." if stop.block else ""
        return absorbing_norm(self.model.get_submodule(stop.block), names, stop.calls[0], prefix)

    def _replacement(self, name: str, result: LayerResult) -> nn.Module:
        layer = self.model.get_submodule(name)
        return weight_only_class(layer).from_layer(layer, self.jobs[name].finish(result))

    def _note_missed(self, names: Iterable[str]) -> None:
        for name in names:
            self.missed[name] = "calibration never reached it"
            logger.warning("layer %r is left in float: calibration never reached it", name)


def _feed(statistics: InputStatistics, steps: Lockstep, floats: bool) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        if steps.is_sample(threading.current_thread(), floats):
            statistics.update(args[0])

    return hook


def _first(output: Any) -> torch.Tensor:
    tensor = output if isinstance(output, torch.Tensor) else output[0]
    return tensor.detach()


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
