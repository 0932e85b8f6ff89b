"""The methods that find quantized weights, by name: every registered algorithm, and what trains the layers of a block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import nn

from neural_compressor.algorithms import (
    ALGORITHMS,
    AutoRoundOptions,
    InputStatistics,
    LayerResult,
    Rotation,
    WeightOnlyAlgorithm,
    double_quant,
    needs_data,
    options_of,
)
from neural_compressor.algorithms.catalogue import LayerOptions
from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry
from neural_compressor.schemes import Method, OpScheme, TensorScheme
from neural_compressor.torch.methods.autoround.rounding import check_scheme
from neural_compressor.torch.methods.autoround.training import tune_block, tune_layer
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit

RUN_OPTIONS = ("nsamples", "seqlen", "amp", "importance", "hadamard", "folding", "absorb", "quantized_input", "nblocks")
"""The options for executors that are run here; ``true_sequential`` is one more, of whole plans."""


@dataclass(frozen=True)
class LayerMethod:
    """Quantizes layers that share an input as one tall matrix, with the function of an algorithm.

    :meth:`observes` says whether statistics of that input are gathered, :meth:`quantize` what is done with them.
    """

    algorithm: WeightOnlyAlgorithm
    #: Whether codes that it finds are safe in pairs where their scheme says so.
    keeps_pairs: ClassVar[bool] = False

    def observes(self, method: Method) -> bool:
        """Whether the inputs of its layers must have been seen."""
        return needs_data(method)

    def check(self, scheme: TensorScheme, options: LayerOptions) -> None:
        """Refuse what the method does not run."""
        asked = options.distinct()
        for name in type(options).names(executor=True):
            if name in asked and name not in (*RUN_OPTIONS, "true_sequential"):
                raise ConfigError(
                    f"method {self.algorithm.name}: {name}={asked[name]!r} is not run by PyTorch; leave it out"
                )

    def quantize(
        self,
        weight: torch.Tensor,
        scheme: TensorScheme,
        statistics: InputStatistics | None,
        options: LayerOptions,
        last: bool = False,
    ) -> LayerResult:
        """The quantized ``weight`` (outputs, inputs), its scales as floats; the ``last`` may use the statistics up."""
        beside: dict[str, object] = {"use_up": last} if self.algorithm.takes("use_up") else {}
        if getattr(options, "hadamard", False):
            beside["rotation"] = Rotation(weight.shape[1], seed=0)
        return self.algorithm(weight, scheme, statistics, **options.for_function(), **beside)


class BlockMethod(LayerMethod):
    """Quantizes all its layers of a block together, on recorded calls of the block.

    :meth:`quantize` is for layers that no block holds.
    """

    def observes(self, method: Method) -> bool:
        return True

    @abstractmethod
    def quantize_block(
        self,
        block: nn.Module,
        layers: Mapping[str, nn.Module],
        schemes: Mapping[str, TensorScheme],
        calls: Sequence[Arguments],
        targets: Sequence[torch.Tensor],
        options: LayerOptions,
    ) -> Mapping[str, LayerResult]:
        """The weights of ``layers``, by name, with which ``block`` gives about ``targets`` on ``calls``.

        A layer that no call reaches is left out.
        """


METHODS: Registry[LayerMethod] = Registry("method of PyTorch", entry_point_group="neural_compressor.torch_methods")
"""Methods that know the framework; any other algorithm of :data:`ALGORITHMS` runs as it is."""


class AutoRoundMethod(BlockMethod):
    """AutoRound: learned rounding, a block at a time."""

    keeps_pairs: ClassVar[bool] = True

    def check(self, scheme: TensorScheme, options: LayerOptions) -> None:
        super().check(scheme, options)
        check_scheme(scheme)

    def quantize(
        self,
        weight: torch.Tensor,
        scheme: TensorScheme,
        statistics: InputStatistics | None,
        options: LayerOptions,
        last: bool = False,
    ) -> LayerResult:
        assert statistics is not None
        assert isinstance(options, AutoRoundOptions)
        return tune_layer(weight, scheme, statistics, options)

    def quantize_block(
        self,
        block: nn.Module,
        layers: Mapping[str, nn.Module],
        schemes: Mapping[str, TensorScheme],
        calls: Sequence[Arguments],
        targets: Sequence[torch.Tensor],
        options: LayerOptions,
    ) -> Mapping[str, LayerResult]:
        assert isinstance(options, AutoRoundOptions)
        return tune_block(block, dict(layers), dict(schemes), list(calls), list(targets), options)


METHODS.add("autoround", AutoRoundMethod(ALGORITHMS["autoround"]))


def method_of(op: OpScheme) -> LayerMethod:
    """What runs the method of a weight that is quantized alone."""
    assert op.method is not None
    name = op.method.name
    if name in METHODS:
        return METHODS[name]
    algorithm = ALGORITHMS[name]
    if algorithm.quantize is None:
        raise ConfigError(
            f"method {name!r} works on whole blocks, and nothing registered in METHODS runs it in PyTorch; "
            "use one that works on layers, such as gptq"
        )
    return LayerMethod(algorithm)


def is_block_method(op: OpScheme) -> bool:
    """Whether all layers of a block with this scheme are quantized together."""
    return isinstance(method_of(op), BlockMethod)


def option(op: OpScheme, name: str, default: object = False) -> object:
    """An option of the op's method, its default included; ``default`` where the method does not know it."""
    assert op.method is not None
    return getattr(options_of(op.method), name, default)


def limit_of(op: OpScheme) -> CalibrationLimit:
    """How much of the data the method wants."""
    samples, tokens = (option(op, name, None) or float("inf") for name in ("nsamples", "seqlen"))
    return CalibrationLimit(samples, tokens)  # type: ignore[arg-type]


def unscaled(op: OpScheme) -> OpScheme:
    """The same without a scale of the inputs."""
    assert op.method is not None
    options = options_of(op.method)
    if hasattr(options, "auto_scale"):
        return replace(op, method=op.method.with_options(auto_scale=False))
    kept = {name: value for name, value in op.method.options.items() if name == "full_range"}
    searched = {"search": "mse"} if getattr(options, "clip", False) else {}
    return replace(op, method=Method("rtn", {**kept, **searched}))


def absorber(op: OpScheme, layers: Collection[str]) -> str | None:
    """The name of what takes up the scale of ``layers``, where the method says so."""
    listed_by: Mapping[str, Sequence[str]] = option(op, "absorb", None) or {}  # type: ignore[assignment]
    found = {norm: listed for norm, listed in listed_by.items() if set(listed) & set(layers)}
    if not found:
        return None
    norm, listed = next(iter(found.items()))
    if len(found) > 1 or set(listed) != set(layers):
        raise ConfigError(
            f"{norm!r} is to take up the scale of {sorted(listed)}, and {sorted(layers)} share one input and one "
            "configuration: list all of these, and no other, by one normalisation"
        )
    return norm


def quantized_weight(
    op: OpScheme, weight: torch.Tensor, statistics: InputStatistics | None, last: bool = False
) -> LayerResult:
    """What the method of ``op`` finds for ``weight``, of one layer or of several stacked; its scales are floats."""
    assert op.method is not None
    assert op.weight is not None
    scheme = replace(op.weight, scales=None, zeros=None)
    return method_of(op).quantize(weight, scheme, statistics, options_of(op.method), last)


def finished(op: OpScheme, result: LayerResult, weight: torch.Tensor | None = None) -> LayerResult:
    """What was found for one layer, with its scales and zero points stored as the scheme wants them.

    Where the method takes the nearest codes of its ``weight``, these are the nearest on the grid of the stored scales.
    """
    assert op.weight is not None
    assert op.method is not None
    changed = result.rotation is not None or result.order is not None or result.input_scale is not None
    nearest = weight if op.method.name in _NEAREST and not changed else None
    return replace(result, array=double_quant(result.array, op.weight.scales, op.weight.zeros, nearest))


_NEAREST = ("rtn", "hqq")
"""Methods in which no code makes up for the error of another."""
