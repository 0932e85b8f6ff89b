"""Quantize the linear layers of a model: at once where no data is needed, else block by block."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from neural_compressor.algorithms import InputStatistics, LayerResult
from neural_compressor.errors import CalibrationError, ConfigError, NeuralCompressorError, QuantizationError
from neural_compressor.torch.fold import replace_module
from neural_compressor.torch.nn import WeightOnlyLinear
from neural_compressor.torch.weight_only.absorb import absorb, absorbing_norm
from neural_compressor.torch.weight_only.autoround import AutoRoundOptions, tune_block
from neural_compressor.torch.weight_only.jobs import BLOCKWISE, LayerJob, matrix_of
from neural_compressor.torch.weight_only.layers import find_blocks
from neural_compressor.torch.weight_only.lockstep import Arguments, Lockstep, Stop, call_block
from neural_compressor.torch.weight_only.statistics import InputGroup, collect
from neural_compressor.torch.weight_only.streaming import WeightSource

logger = logging.getLogger("neural_compressor")


@dataclass
class WeightOnlyQuantizer:
    """Replaces the layers of ``model`` named in ``jobs``, in place.

    With a ``source`` the weights of an empty model are read when their turn comes: a layer where no data is needed, else
    a block. ``upstream`` keeps a float stream beside the quantized one, for algorithms that correct the error made before
    them; ``true_sequential`` measures each group of layers behind the ones of its block already quantized.
    """

    model: nn.Module
    jobs: Mapping[str, LayerJob]
    upstream: bool = False
    true_sequential: bool = False
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
                self._fill(f"{name}." if name else "")
                self._quantize_group([name], None)
        if waiting:
            self._blockwise(waiting, calls)
        self._fill()
        if self.source is not None:
            self.source.finish(self.model)
        return self.missed

    def _fill(self, prefix: str = "", but: tuple[str, ...] = ()) -> None:
        if self.source is not None:
            self.source.fill(self.model, prefix, but)

    def _blockwise(self, layers: Sequence[str], calls: Sequence[Arguments]) -> None:
        blocks = find_blocks(self.model, layers) or [""]
        inside = {block: [n for n in layers if n.startswith(f"{block}." if block else "")] for block in blocks}
        outside = [n for n in layers if not any(n in members for members in inside.values())]
        alone = [n for n in outside if self.jobs[n].algorithm == BLOCKWISE]
        if alone:
            raise ConfigError(
                f"{_some(alone)}: AutoRound trains the layers of a block together, and these are in none; "
                "give them another configuration with set_local"
            )
        float_stream = self.upstream or any(self.jobs[n].algorithm == BLOCKWISE for n in layers)
        self._fill(but=tuple(f"{block}." for block in blocks if block))
        steps = Lockstep(self.model, calls, blocks, float_stream, enter=lambda block: self._fill(f"{block}."))
        with ExitStack() as stack:
            heads = {name: InputStatistics() for name in outside}
            for name in outside:
                hook = self.model.get_submodule(name).register_forward_pre_hook(_feed(heads[name], steps))
                stack.callback(hook.remove)
            for index, stop in enumerate(steps):
                if self.on_block is not None:
                    self.on_block(stop.block, index, len(blocks))
                self._quantize_block(stop, {name: self.model.get_submodule(name) for name in inside[stop.block]})
                if not outside and index + 1 == len(blocks):
                    break  # nothing behind the last block wants to know
        for name, statistics in heads.items():
            self._quantize_group([name], statistics)

    def _quantize_block(self, stop: Stop, layers: Mapping[str, nn.Module]) -> None:
        block = self.model.get_submodule(stop.block)
        by_group = {n: m for n, m in layers.items() if self.jobs[n].algorithm != BLOCKWISE}
        trained = {n: m for n, m in layers.items() if self.jobs[n].algorithm == BLOCKWISE}
        # What training aims at is what the block gives while all of it is float.
        targets = [_first(call_block(block, call)) for call in stop.float_calls or stop.calls] if trained else []
        floats = stop.float_calls if self.upstream else None
        remaining = dict(by_group)
        while remaining:
            groups = collect(block, remaining, stop.calls, floats)
            for group in groups[:1] if self.true_sequential else groups:
                self._quantize_kinds(group, stop)
            done = {name for group in (groups[:1] if self.true_sequential else groups) for name in group.layers}
            if not done or not self.true_sequential:
                self._note_missed(set(remaining) - done)
                break
            remaining = {n: m for n, m in remaining.items() if n not in done}
        if trained:
            self._train_block(block, trained, stop, targets)

    def _train_block(
        self, block: nn.Module, layers: Mapping[str, nn.Module], stop: Stop, targets: list[torch.Tensor]
    ) -> None:
        job = self.jobs[next(iter(layers))]
        options = AutoRoundOptions(**{k: v for k, v in job.options.items() if k != "quantized_input"})
        inputs = stop.calls if job.options.get("quantized_input", True) else stop.float_calls or stop.calls
        schemes = {name: self.jobs[name].scheme for name in layers}
        found = tune_block(block, dict(layers), schemes, list(inputs), targets, options)
        self._note_missed(set(layers) - set(found))
        for name, result in found.items():
            self._install(name, result)

    def _quantize_kinds(self, group: InputGroup, stop: Stop) -> None:
        kinds: dict[str, list[str]] = {}
        for name in group.layers:
            kinds.setdefault(self.jobs[name].kind, []).append(name)
        for names in kinds.values():
            self._quantize_group(names, group.statistics, stop)

    def _quantize_group(self, names: list[str], statistics: InputStatistics | None, stop: Stop | None = None) -> None:
        """Layers with one job and one input, as one tall matrix."""
        if statistics is not None and statistics.count == 0:
            self._note_missed(names)
            return
        matrices = [matrix_of(self.model.get_submodule(name)).float() for name in names]
        weight = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
        job = self.jobs[names[0]]
        norm = self._norm_for(names, stop) if job.folding else None
        try:
            result = (
                job.unscaled().run(weight, statistics) if job.folding and norm is None else job.run(weight, statistics)
            )
        except NeuralCompressorError as error:
            raise QuantizationError(f"layer {', '.join(map(repr, names))}: {error}") from error
        if norm is not None and result.input_scale is not None:
            absorb(norm, result.input_scale)
            result = replace(result, input_scale=None)
        for name, part in zip(names, result.split([m.shape[0] for m in matrices]), strict=True):
            self._install(name, part)

    def _norm_for(self, names: list[str], stop: Stop | None) -> nn.Module | None:
        if stop is None:
            return None
        prefix = f"{stop.block}." if stop.block else ""
        return absorbing_norm(self.model.get_submodule(stop.block), names, stop.calls[0], prefix)

    def _install(self, name: str, result: LayerResult) -> None:
        new = WeightOnlyLinear.from_layer(self.model.get_submodule(name), result)
        if name:
            replace_module(self.model, name, new)
        else:
            self.model = new

    def _note_missed(self, names: Iterable[str]) -> None:
        for name in names:
            self.missed[name] = "calibration never reached it"
            logger.warning("layer %r is left in float: calibration never reached it", name)


def _feed(statistics: InputStatistics, steps: Lockstep) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
        if steps.is_sample(threading.current_thread()):
            statistics.update(args[0])

    return hook


def _first(output: Any) -> torch.Tensor:
    tensor = output if isinstance(output, torch.Tensor) else output[0]
    return tensor.detach()


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
