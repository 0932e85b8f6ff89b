"""Quantize the linear layers of a model: at once where no data is needed, else block by block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from neural_compressor.algorithms import InputStatistics
from neural_compressor.errors import CalibrationError
from neural_compressor.registry import first_of
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.batches import layer_input
from neural_compressor.torch.files.streaming import WeightSource
from neural_compressor.torch.hooks import hooked
from neural_compressor.torch.methods.weight_only.block_quantizer import BlockQuantizer
from neural_compressor.torch.methods.weight_only.layer_groups import LayerGroups
from neural_compressor.torch.methods.weight_only.lockstep import Lockstep
from neural_compressor.torch.methods.weight_only.methods import is_block_method, method_of, option
from neural_compressor.torch.modules.activation import Range
from neural_compressor.torch.modules.kernels.dequantized_product import is_fast_at_bf16
from neural_compressor.torch.modules.matrix_stack import open_stacks
from neural_compressor.torch.modules.weight_only import matrix_of
from neural_compressor.torch.structure.ops import is_parameter, outer_blocks
from neural_compressor.torch.structure.replay import Arguments

_OF_THE_RUN = ("upstream", "true_sequential")
"""Options that hold for all layers where one of them has it, as all samples run through the model once."""


def sees_data(op: OpScheme) -> bool:
    """Whether the inputs of an op's layer must have been seen."""
    return op.method is not None and method_of(op).observes(op.method)


@dataclass
class WeightOnlyQuantizer:
    """Replaces the layers of ``model`` named in ``ops``, in place, each with the weight that its method finds.

    With a ``source`` the weights of an empty model are read when their turn comes: a layer where no data is needed, else
    a block.
    """

    model: nn.Module
    ops: Mapping[str, OpScheme]
    source: WeightSource | None = None
    on_block: Callable[[str, int, int], None] | None = None
    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)

    def run(self, calls: Sequence[Arguments] = ()) -> dict[str, str]:
        """Quantize; returns the layers that were left in float, with the reason."""
        waiting = [name for name, op in self.ops.items() if sees_data(op)]
        if waiting and not calls:
            some = first_of(waiting)
            raise CalibrationError(
                f"{len(waiting)} layers need calibration ({some}): run the prepared model on data before convert"
            )
        # What runs beside a method that is calibrated in float32 is part of what that one sees.
        exact = not (self._is_fast_at_bf16() and all(option(self.ops[name], "amp") for name in waiting))
        groups = LayerGroups(self.model, self.ops, self.source, self.ranges, exact)
        blind = [name for name in self.ops if name not in waiting]
        groups.note_missed(filter(self._lacks_range, blind))
        for names in self._together([name for name in blind if name not in groups.missed]):
            for name in names:
                groups.fill(name if not name or is_parameter(self.model, name) else f"{name}.")
                open_stacks(self.model, [name])
            _quantize_together(groups, names, None)
        if waiting:
            self._blockwise(groups, waiting, calls)
        groups.tell()
        groups.settle_kernels()
        groups.fill()
        self.model = groups.model
        if self.source is not None:
            self.source.finish(self.model)
        return groups.missed

    def _lacks_range(self, name: str) -> bool:
        """Whether a layer is to have the scale that data gave its input, and there is none."""
        op = self.ops[name]
        return op.mode == "static" and op.activation is not None and name not in self.ranges

    def _is_fast_at_bf16(self) -> bool:
        """Whether the devices of the model are; weights still to be read come to the CPU."""
        devices = {tensor.device.type for tensor in self.model.parameters()} - {"meta"} or {"cpu"}
        return all(is_fast_at_bf16(device) for device in devices)

    def _together(self, layers: Sequence[str]) -> list[list[str]]:
        """``layers`` one by one, but those of one module that have a scale of the whole tensor (nvfp4) with each other.

        Layers that read one input are multiplied as one matrix by engines, and then there is one such scale. That they do
        is not known without data; sharing it where they do not costs next to nothing, as blocks have scales of their own.
        """
        found: dict[Any, list[str]] = {}
        for name in layers:
            op, key = self.ops[name], (name,)
            shared = op.weight is not None and op.weight.dtype.has_tensor_scale and not is_parameter(self.model, name)
            if shared:
                inputs = matrix_of(self.model.get_submodule(name)).shape[1]
                key = (name.rpartition(".")[0], inputs, op)  # type: ignore[assignment]
            found.setdefault(key, []).append(name)
        return list(found.values())

    def _blockwise(self, groups: LayerGroups, layers: Sequence[str], calls: Sequence[Arguments]) -> None:
        blocks = outer_blocks(self.model, layers) or [""]
        inside = {block: [n for n in layers if n.startswith(f"{block}." if block else "")] for block in blocks}
        outside = [n for n in layers if not any(n in members for members in inside.values())]
        upstream, true_sequential = (any(option(op, name) for op in self.ops.values()) for name in _OF_THE_RUN)
        amp = not groups.exact
        float_stream = upstream or any(is_block_method(self.ops[n]) for n in layers)
        groups.fill(but=tuple(f"{block}." for block in blocks if block))
        runs = self._runs(inside)
        steps = Lockstep(self.model, calls, blocks, float_stream, lambda block: groups.fill(f"{block}."), amp, runs)
        quantizer = BlockQuantizer(groups, upstream, true_sequential, amp)
        heads = {name: InputStatistics() for name in outside}

        def see(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if steps.is_sample(threading.current_thread(), not option(self.ops[name], "quantized_input", True)):
                heads[name].update(layer_input((args, kwargs)))

        with hooked(groups.modules(outside), before=see):
            waiting = list(blocks)
            for stop in steps:
                if self.on_block is not None:
                    self.on_block(stop.block, len(blocks) - len(waiting), len(blocks))
                quantizer.quantize(stop, [name for block in stop.blocks for name in inside[block]])
                waiting = [block for block in waiting if block not in stop.blocks]
                if not outside and not waiting:
                    break  # nothing behind the last block wants to know
                del stop  # it holds what reached the block while the samples go on to the next
        for block in waiting:
            groups.note_missed(inside[block])
        for name, statistics in heads.items():
            _quantize_together(groups, [name], statistics)

    def _runs(self, inside: Mapping[str, Sequence[str]]) -> list[list[str]]:
        """The blocks, those together that are trained so: as many of one container as their common method says."""
        runs: list[list[str]] = []
        before = None
        for block, layers in inside.items():
            methods = {self.ops[name].method for name in layers}
            together = len(methods) == 1 and is_block_method(self.ops[layers[0]])
            kind = (block.rpartition(".")[0], methods) if together else None
            if kind is not None and kind == before and len(runs[-1]) < option(self.ops[layers[0]], "nblocks", 1):  # type: ignore[operator]
                runs[-1].append(block)
            else:
                runs.append([block])
            before = kind
        return runs


def _quantize_together(groups: LayerGroups, names: Sequence[str], statistics: InputStatistics | None) -> None:
    found = groups.quantize(names, statistics, groups.absorber(names))
    groups.apply([] if found is None else [found])
