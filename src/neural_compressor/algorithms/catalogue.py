"""The weight-only algorithms by name, all called in the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from neural_compressor.algorithms.awq import awq_scale, round_scaled
from neural_compressor.algorithms.gain import keep_gain
from neural_compressor.algorithms.gptq import gptq
from neural_compressor.algorithms.hadamard import Rotation
from neural_compressor.algorithms.hqq import hqq
from neural_compressor.algorithms.layer_result import LayerResult
from neural_compressor.algorithms.rtn import rtn
from neural_compressor.algorithms.statistics import InputStatistics
from neural_compressor.algorithms.teq import teq_scale
from neural_compressor.algorithms.upstream import Pull
from neural_compressor.errors import CalibrationError
from neural_compressor.registry import Registry
from neural_compressor.schemes import TensorScheme
from neural_compressor.schemes.arrays import Array, array_namespace


@dataclass(frozen=True)
class WeightOnlyAlgorithm:
    """An algorithm for the weight (outputs, inputs) of one layer, and whether it must have seen the layer's inputs.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> ALGORITHMS["rtn"](np.float32([[1.0, -8.0]]), TensorScheme(dtype("int4"))).dequantize().tolist()
    [[1.0, -8.0]]
    """

    name: str
    quantize: Callable[..., LayerResult]
    needs_statistics: bool = False

    def __call__(
        self, weight: Array, scheme: TensorScheme, statistics: InputStatistics | None = None, **options: Any
    ) -> LayerResult:
        """Quantize ``weight`` as ``scheme`` says."""
        if self.needs_statistics and (statistics is None or statistics.count == 0):
            raise CalibrationError(
                f"{self.name} needs the statistics of the layer's inputs; calibrate with at least one batch that runs "
                "through the layer, or use an algorithm that needs none (rtn, hqq)"
            )
        return self.quantize(weight, scheme, statistics, **options)


ALGORITHMS: Registry[WeightOnlyAlgorithm] = Registry(
    "weight-only algorithm", entry_point_group="neural_compressor.algorithms"
)


def register_algorithm(
    name: str, *, needs_statistics: bool = False
) -> Callable[[Callable[..., LayerResult]], Callable[..., LayerResult]]:
    """Make ``function(weight, scheme, statistics, **options)`` known by ``name``."""

    def add(function: Callable[..., LayerResult]) -> Callable[..., LayerResult]:
        ALGORITHMS.add(name, WeightOnlyAlgorithm(name, function, needs_statistics))
        return function

    return add


@register_algorithm("rtn")
def _rtn(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics | None = None,
    *,
    search: str | None = None,
    full_range: bool | None = None,
    ratio: float = 1.0,
    rotation: Rotation | None = None,
) -> LayerResult:
    """Round to nearest; a search weighs each input with its mean square, or, where that is not known, keeps the gain."""
    importance, weight = None, _rotated(weight, rotation)
    if statistics is not None and search is not None:
        importance = statistics.mean_square
        if rotation is not None:
            importance = array_namespace(importance).linalg.diagonal(rotation.apply_to_hessian(statistics.hessian))
    array = rtn(weight, scheme, importance, search, full_range=full_range, ratio=ratio)
    blind = search is not None and importance is None
    return LayerResult(keep_gain(array, weight) if blind else array, rotation=rotation)


@register_algorithm("hqq")
def _hqq(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics | None = None,
    *,
    rotation: Rotation | None = None,
    **options: Any,
) -> LayerResult:
    """Half-quadratic zero points, and scales that keep the gain; the inputs do not matter."""
    weight = _rotated(weight, rotation)
    return LayerResult(keep_gain(hqq(weight, scheme, **options), weight), rotation=rotation)


@register_algorithm("gptq", needs_statistics=True)
def _gptq(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics,
    *,
    upstream: bool = True,
    rotation: Rotation | None = None,
    use_up: bool = False,
    **options: Any,
) -> LayerResult:
    """Error compensation; ``upstream`` says whether to make up for earlier error, where its statistics were kept.

    With ``use_up`` the work is done in the memory of the statistics, which are of no use afterwards.
    """
    pull = _pull(weight, statistics, rotation) if upstream and statistics.has_reference else None
    hessian = statistics.take_hessian() if use_up else statistics.hessian
    if rotation is not None:
        hessian, use_up = rotation.apply_to_hessian(hessian, overwrite=use_up), True
    weight = _rotated(weight, rotation)
    return replace(gptq(weight, hessian, scheme, pull=pull, overwrite_hessian=use_up, **options), rotation=rotation)


@register_algorithm("awq", needs_statistics=True)
def _awq(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics,
    *,
    auto_scale: bool = True,
    auto_clip: bool = True,
    full_range: bool | None = None,
    grid: int = 20,
) -> LayerResult:
    """Scaled inputs and clipped ranges."""
    scale = awq_scale([weight], statistics, scheme, grid=grid, full_range=full_range) if auto_scale else None
    return round_scaled(weight, scheme, statistics.hessian, scale, clip=auto_clip, full_range=full_range)


@register_algorithm("teq", needs_statistics=True)
def _teq(
    weight: Array,
    scheme: TensorScheme,
    statistics: InputStatistics,
    *,
    clip: bool = False,
    full_range: bool | None = None,
    **options: Any,
) -> LayerResult:
    """Trained scales of the inputs."""
    scale = teq_scale([weight], statistics, scheme, full_range=full_range, **options)
    return round_scaled(weight, scheme, statistics.hessian, scale, clip=clip, full_range=full_range)


def _pull(weight: Array, statistics: InputStatistics, rotation: Rotation | None) -> Pull:
    return lambda rows: _rotated(statistics.pull(weight, rows), rotation)


def _rotated(weight: Array, rotation: Rotation | None) -> Array:
    return weight if rotation is None else rotation.apply(weight)
