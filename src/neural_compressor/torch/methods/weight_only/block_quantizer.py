"""The layers of one block quantized on statistics of what reaches them; layers that share an input share one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from neural_compressor.algorithms import InputStatistics, options_of
from neural_compressor.errors import CalibrationError
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.batches import layer_input
from neural_compressor.torch.files.streaming import BlockWeights
from neural_compressor.torch.hooks import hooked
from neural_compressor.torch.methods.autoround.block import first_tensor
from neural_compressor.torch.methods.weight_only.layer_groups import GroupResult, LayerGroups
from neural_compressor.torch.methods.weight_only.lockstep import Stop
from neural_compressor.torch.methods.weight_only.methods import BlockMethod, is_block_method, method_of, option
from neural_compressor.torch.modules.kernels.dequantized_product import is_fast_at_bf16
from neural_compressor.torch.modules.weight_only import matrix_of
from neural_compressor.torch.passes.absorb import absorbing_norm
from neural_compressor.torch.structure.feeds import by_input, inputs_seen, reads_of_tensors
from neural_compressor.torch.structure.replay import Arguments, call_block, gains_from_bf16


@dataclass(frozen=True)
class InputGroup:
    """Layers that are called with the very same tensor, in the order they run, and what reached them."""

    layers: tuple[str, ...]
    statistics: InputStatistics


def _capture(layers: Mapping[str, nn.Module], run: Callable[[], Any]) -> dict[str, torch.Tensor]:
    """The inputs of the layers while their block runs once, in the order they ran."""
    inputs: dict[str, torch.Tensor] = {}

    def keep(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = layer_input((args, kwargs))
        inputs[name] = torch.cat([inputs[name].flatten(0, -2), x.flatten(0, -2)]) if name in inputs else x

    with hooked(layers, before=keep):
        run()
    return inputs


def sharing(block: nn.Module, layers: Mapping[str, nn.Module], call: Arguments, amp: bool) -> list[tuple[str, ...]]:
    """The ``layers`` that one call of their block reaches, those with the very same input together, in running order."""
    with inputs_seen(layers) as seen:
        call_block(block, call, amp)
    return by_input([reads_of_tensors(seen)])


def collect(
    block: nn.Module,
    layers: Mapping[str, nn.Module],
    calls: Sequence[Arguments],
    float_runs: Sequence[Callable[[], Any]] = (),
    amp: bool = False,
    widen: Callable[[str], None] | None = None,
) -> list[InputGroup]:
    """Run ``block`` over ``calls`` and gather what its ``layers`` are fed, group by group in running order.

    Each of ``float_runs`` runs the block on the same sample as the float model brings it there, which is then compared.
    Layers that were not reached are in no group. ``widen`` is called with the name of a layer whose weight must be there in
    full precision, to compare inputs that are.
    """
    groups: dict[str, str] = {}
    alone: set[str] = set()
    gathered: dict[str, InputStatistics] = {}
    for index, call in enumerate(calls):
        inputs = _capture(layers, functools.partial(call_block, block, call, amp))
        floats = _capture(layers, float_runs[index]) if float_runs else {}
        for leader, *others in by_input([reads_of_tensors({name: [x] for name, x in inputs.items()})]):
            for name in (leader, *others):
                # A layer that once had an input of its own keeps statistics of its own.
                if groups.setdefault(name, leader) != leader or (others and leader in alone):
                    raise CalibrationError(
                        f"layer {name!r} shares its input with {leader!r} in some batches and not in others"
                    )
            if leader not in gathered:
                alone |= set() if others else {leader}
                if widen and floats and not others and inputs[leader].dtype != torch.bfloat16:
                    widen(leader)
                weight = None if others else matrix_of(layers[leader])
                fast_bf16 = is_fast_at_bf16(inputs[leader].device.type)
                gathered[leader] = InputStatistics(weight=weight, fast_bf16=fast_bf16)
            try:
                gathered[leader].update(inputs[leader], floats.get(leader))
            except CalibrationError as error:
                raise CalibrationError(f"layer {leader!r}: {error}") from error
    return [
        InputGroup(tuple(name for name, first in groups.items() if first == leader), statistics)
        for leader, statistics in gathered.items()
    ]


@dataclass(frozen=True)
class BlockQuantizer:
    """Quantizes layers in ``groups`` of one input, block by block.

    ``upstream`` keeps a float stream beside the quantized one, for methods that correct the error made before them;
    ``true_sequential`` measures each group of layers behind the ones of its block already quantized. With ``amp`` blocks run
    in bfloat16 where that is faster.
    """

    groups: LayerGroups
    upstream: bool = False
    true_sequential: bool = False
    amp: bool = True

    def quantize(self, stop: Stop, layers: Sequence[str]) -> None:
        """Replace ``layers``, all that are to be quantized of the block that the samples wait at.

        Where that is a run of blocks, all of its layers are trained.
        """
        block = stop.module
        amp = self.amp and gains_from_bf16(block)
        trained = [n for n in layers if is_block_method(self.groups.ops[n])]
        remaining = [n for n in layers if n not in trained]
        again = [functools.partial(call_block, block, call, amp) for call in stop.float_calls]
        float_runs: Sequence[Callable[[], Any]] = stop.float_runs if self.upstream and not trained else again
        # What training aims at is what the block gives while all of it is float.
        targets = (
            [first_tensor(run()).detach() for run in stop.float_runs] if float_runs is again or not remaining else []
        )
        weights = self._weights(stop.block, layers, amp) if remaining else None
        results: list[GroupResult] = []
        for names in self._measured_together(block, remaining, stop, amp):
            if weights is not None:
                weights.read()
            measured, widen = self.groups.modules(names), None if weights is None else weights.widen
            runs = float_runs if self.upstream else ()
            inputs = collect(block, measured, stop.calls, runs, amp=amp, widen=widen)
            float_runs = again
            reached = {name for group in inputs for name in group.layers}
            self.groups.note_missed(name for name in names if name not in reached)
            del measured
            while inputs:
                found = self._quantize_kinds(inputs.pop(0), stop, amp, weights)
                if weights is None:
                    self.groups.apply(found)
                else:
                    results += found
        if weights is not None:
            weights.keep()
            self.groups.apply(results)
            self.groups.fill(f"{stop.block}." if stop.block else "")
        if trained:
            self._train(block, self.groups.modules(trained), stop, targets)

    def _weights(self, block: str, layers: Sequence[str], amp: bool) -> BlockWeights | None:
        """The weights of a block, where they come and go.

        With few of them in memory at a time, each group of layers is measured in a run of its own, and all of these runs
        must see the float block: layers are replaced when all are quantized.
        """
        if self.groups.source is None or self.true_sequential:
            return None
        return BlockWeights(self.groups.model, self.groups.source, block, layers, amp)

    def _measured_together(self, block: nn.Module, layers: Sequence[str], stop: Stop, amp: bool) -> list[Sequence[str]]:
        """Which layers are measured in one run: all of them, or where memory or the order counts those of one input."""
        if not layers or (self.groups.source is None and not self.true_sequential):
            return [layers] if layers else []
        groups: list[Sequence[str]] = [*sharing(block, self.groups.modules(layers), stop.calls[0], amp)]
        found = {name for group in groups for name in group}
        late = [name for name in layers if name not in found]
        return [*groups, late] if late else groups

    def _quantize_kinds(
        self, group: InputGroup, stop: Stop, amp: bool, weights: BlockWeights | None
    ) -> list[GroupResult]:
        kinds: dict[OpScheme, list[str]] = {}
        for name in group.layers:
            kinds.setdefault(self.groups.ops[name], []).append(name)
        found = []
        while kinds:
            names = kinds.pop(next(iter(kinds)))
            norm = self._norm_for(names, stop, amp, weights)
            if weights is not None:
                weights.keep(names)
            found.append(self.groups.quantize(names, group.statistics, norm, last=not kinds))
        return [result for result in found if result is not None]

    def _norm_for(self, names: list[str], stop: Stop, amp: bool, weights: BlockWeights | None) -> nn.Module | None:
        named = self.groups.absorber(names)
        if named is not None or not option(self.groups.ops[names[0]], "folding"):
            return named
        if weights is not None:
            weights.read()
        prefix = f"{stop.block}." if stop.block else ""
        return absorbing_norm(self.groups.model.get_submodule(stop.block), names, stop.calls[0], prefix, amp)

    def _train(
        self, block: nn.Module, layers: Mapping[str, nn.Module], stop: Stop, targets: list[torch.Tensor]
    ) -> None:
        """Quantize the layers that are quantized together, which have one method."""
        op = self.groups.ops[next(iter(layers))]
        runner = method_of(op)
        assert isinstance(runner, BlockMethod)
        assert op.method is not None
        calls = stop.calls if option(op, "quantized_input", True) else stop.float_calls
        wanted = {name: scheme for name in layers if (scheme := self.groups.ops[name].weight) is not None}
        schemes = {name: replace(scheme, scales=None, zeros=None) for name, scheme in wanted.items()}
        found = runner.quantize_block(block, layers, schemes, calls, targets, options_of(op.method))
        self.groups.note_missed(set(layers) - set(found))
        replaced = {name: self.groups.replacement(name, result) for name, result in found.items()}
        self.groups.apply([GroupResult(replaced)])
