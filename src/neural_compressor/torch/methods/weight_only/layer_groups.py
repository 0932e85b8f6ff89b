"""Layers that share a scheme and an input, quantized as one tall matrix and replaced."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from neural_compressor.algorithms import InputStatistics, LayerResult, ScarceData
from neural_compressor.errors import NeuralCompressorError, QuantizationError
from neural_compressor.registry import first_of
from neural_compressor.schemes import OpScheme, QuantizedArray
from neural_compressor.torch.files.streaming import WeightSource, empty_weight
from neural_compressor.torch.methods.weight_only.methods import absorber, finished, option, quantized_weight, unscaled
from neural_compressor.torch.modules.activation import Range
from neural_compressor.torch.modules.base import QuantModule, quant_class
from neural_compressor.torch.modules.build import replace_module
from neural_compressor.torch.modules.matrix_stack import weight_only_class
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear, change_of, matrix_of
from neural_compressor.torch.modules.weighted import WeightedModule
from neural_compressor.torch.passes.absorb import absorb, named_norm
from neural_compressor.torch.structure.norm_form import follows_weight
from neural_compressor.tuning.memory import give_back_freed_memory

logger = logging.getLogger("neural_compressor")


@dataclass(frozen=True)
class GroupResult:
    """What takes the place of layers that share an input, and the normalisation that takes up the scale of it."""

    layers: Mapping[str, nn.Module]
    norm: nn.Module | None = None
    scale: Any = None


@dataclass
class LayerGroups:
    """Quantizes layers of ``model`` as ``ops`` say; ``missed`` are those that cannot be, with the reason.

    Layers go by their names: whoever holds a float layer that was replaced holds its weight. With a ``source`` weights
    are read from it, and are gone once they are taken up. ``ranges`` are of the inputs of those that are static. Until
    :meth:`settle_kernels`, ``exact`` has layers multiply in float32: data that others are calibrated on goes through them.
    """

    model: nn.Module
    ops: Mapping[str, OpScheme]
    source: WeightSource | None = None
    ranges: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    exact: bool = False
    missed: dict[str, str] = field(default_factory=dict)
    _scarce: ScarceData = field(default_factory=ScarceData, init=False)
    _unfolded: list[str] = field(default_factory=list, init=False)
    _exact_layers: list[WeightOnlyLinear] = field(default_factory=list, init=False)

    def modules(self, names: Iterable[str]) -> dict[str, nn.Module]:
        """Layers by name."""
        return {name: self.model.get_submodule(name) for name in names}

    def fill(self, prefix: str = "", but: tuple[str, ...] = ()) -> None:
        """Read what is missing under ``prefix``, but what is under the prefixes ``but``."""
        if self.source is not None:
            for module in self.model.modules():
                if isinstance(module, QuantModule):
                    # Few rows run in a kernel with a layout of its own, which it would keep beside the weight.
                    module.forget_prepacked()
            self.source.fill(self.model, prefix, but)

    def quantize(
        self,
        names: Sequence[str],
        statistics: InputStatistics | None,
        norm: nn.Module | None = None,
        last: bool = False,
    ) -> GroupResult | None:
        """Quantize layers with one scheme and one input, whose scale goes into ``norm``; None where nothing reached them.

        The ``last`` who wants ``statistics`` may use them up.
        """
        if statistics is not None and statistics.count == 0:
            self.note_missed(names)
            return None
        op = self.ops[names[0]]
        if op.method is not None:
            self._scarce.note(names, op.method.name, statistics)
        if option(op, "folding") and norm is None:
            self._unfolded += names
        weight, rows = self._take(names)
        if self.source is not None:
            give_back_freed_memory()
        try:
            op = unscaled(op) if option(op, "folding") and norm is None else op
            result = quantized_weight(op, weight, statistics, last)
        except NeuralCompressorError as error:
            raise QuantizationError(f"layer {', '.join(map(repr, names))}: {error}") from error
        scale = None
        if norm is not None:
            scale, result = result.input_scale, replace(result, input_scale=None)
        parts = zip(names, result.split(rows), torch.split(weight, rows), strict=True)
        return GroupResult({name: self.replacement(name, part, own) for name, part, own in parts}, norm, scale)

    def absorber(self, names: Sequence[str]) -> nn.Module | None:
        """What is named to take up the scale of ``names``: a normalisation; another layer does not, and without folding
        they then scale their input at run time."""
        norm = absorber(self.ops[names[0]], names)
        if norm is None:
            return None
        if not option(self.ops[names[0]], "folding") and not follows_weight(self.model.get_submodule(norm)):
            return None
        return named_norm(self.model, norm)

    def replacement(self, name: str, result: LayerResult, weight: torch.Tensor | None = None) -> nn.Module:
        """The layer that takes the place of ``name``, whose float ``weight`` the result was found for."""
        layer, op = self.model.get_submodule(name), self.ops[name]
        if op.mode != "weight_only":
            cls = quant_class(layer)
            assert issubclass(cls, WeightedModule)
            assert isinstance(result.array, QuantizedArray)
            change = change_of(result, result.array.codes.device)
            return cls.from_array(layer, op, result.array, self.ranges.get(name, ()), change)
        return weight_only_class(layer).from_layer(
            layer, finished(op, result, weight), method=op.method, output=op.output
        )

    def apply(self, results: Iterable[GroupResult]) -> None:
        """Put results in their places."""
        for result in results:
            if result.norm is not None and result.scale is not None:
                absorb(result.norm, result.scale)
            for name, layer in result.layers.items():
                if self.exact and isinstance(layer, WeightOnlyLinear):
                    layer.exact = True
                    self._exact_layers.append(layer)
                if name:
                    replace_module(self.model, name, layer)
                else:
                    self.model = layer

    def settle_kernels(self) -> None:
        """Have the layers multiply with the kernels that are fastest here."""
        for layer in self._exact_layers:
            layer.exact = False
        self._exact_layers.clear()

    def note_missed(self, names: Iterable[str]) -> None:
        """Leave layers in float that no data reached."""
        for name in names:
            self.missed[name] = "calibration never reached it"
            logger.warning("layer %r is left in float: calibration never reached it", name)

    def tell(self) -> None:
        """Log what makes results worse than they could be."""
        self._scarce.warn()
        if self._unfolded:
            logger.warning(
                "no normalisation can take up a scale of the inputs of %d layers (%s): with folding these stay unscaled; "
                "folding=False scales them at run time",
                *(len(self._unfolded), first_of(self._unfolded)),
            )

    def _take(self, names: Sequence[str]) -> tuple[torch.Tensor, list[int]]:
        """The weights of some layers as one tall matrix, and how many rows each has; from here on only shapes are asked."""
        layers = self.modules(names).values()
        matrices = [matrix_of(layer).float() for layer in layers]
        if self.source is not None:
            for layer in layers:
                empty_weight(layer)
        return matrices[0] if len(matrices) == 1 else torch.cat(matrices), [len(m) for m in matrices]
