"""Statistics of what reaches the layers of a block; layers that share an input share one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from neural_compressor.algorithms import InputStatistics
from neural_compressor.errors import CalibrationError
from neural_compressor.torch.methods.weight_only.jobs import matrix_of
from neural_compressor.torch.modules.kernels.bf16 import is_fast_at_bf16
from neural_compressor.torch.structure.replay import Arguments, call_block


@dataclass(frozen=True)
class InputGroup:
    """Layers that are called with the very same tensor, in the order they run, and what reached them."""

    layers: tuple[str, ...]
    statistics: InputStatistics


def _capture(layers: Mapping[str, nn.Module], run: Callable[[], Any]) -> dict[str, torch.Tensor]:
    """The inputs of the layers while their block runs once, in the order they ran."""
    inputs: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            if name in inputs:
                inputs[name] = torch.cat([inputs[name].flatten(0, -2), args[0].flatten(0, -2)])
            else:
                inputs[name] = args[0]

        return hook

    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(keep(name)).remove)
        run()
    return inputs


def sharing(block: nn.Module, layers: Mapping[str, nn.Module], call: Arguments, amp: bool) -> list[tuple[str, ...]]:
    """The ``layers`` that one call of their block reaches, those with the very same input together, in running order."""
    return _by_input(_capture(layers, functools.partial(call_block, block, call, amp)))


def _by_input(inputs: Mapping[str, torch.Tensor]) -> list[tuple[str, ...]]:
    groups: dict[int, list[str]] = {}
    for name, x in inputs.items():
        groups.setdefault(id(x), []).append(name)
    return [tuple(names) for names in groups.values()]


def collect(
    block: nn.Module,
    layers: Mapping[str, nn.Module],
    calls: Sequence[Arguments],
    float_runs: Sequence[Callable[[], Any]] = (),
    hessian: bool = True,
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
        for leader, *others in _by_input(inputs):
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
                gathered[leader] = InputStatistics(hessian=hessian, weight=weight, fast_bf16=fast_bf16)
            try:
                gathered[leader].update(inputs[leader], floats.get(leader))
            except CalibrationError as error:
                raise CalibrationError(f"layer {leader!r}: {error}") from error
    return [
        InputGroup(tuple(name for name, first in groups.items() if first == leader), statistics)
        for leader, statistics in gathered.items()
    ]
