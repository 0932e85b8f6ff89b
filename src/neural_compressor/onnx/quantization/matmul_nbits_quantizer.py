"""Matrix products with weights of a few bits, through the class that users of ONNX Runtime know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import onnx
import onnx_ir as ir

from neural_compressor.algorithms import AWQOptions, GPTQOptions
from neural_compressor.errors import ConfigError
from neural_compressor.onnx.adaptor.op_records import brief_records
from neural_compressor.onnx.files.model_file import as_proto, read_model, write_model
from neural_compressor.onnx.quantization.config import (
    AWQConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    WeightOnlyConfig,
)
from neural_compressor.onnx.quantization.config.fields import RUNTIME
from neural_compressor.onnx.quantization.quant_types import QuantFormat
from neural_compressor.onnx.quantization.quantize import quantized
from neural_compressor.report.terminal import print_ops

__all__ = [
    "AWQWeightOnlyQuantConfig",
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
]


_GPTQ, _AWQ = GPTQOptions(), AWQOptions()
_FIELDS = {"block_size": "weight_group_size", "is_symmetric": "weight_sym", "bits": "weight_bits"}
"""The fields of ONNX configurations that have another name here; a block size of GPTQ is that of its computation."""


@dataclass(frozen=True, kw_only=True)
class WeightOnlyQuantConfig:
    """The algorithm that finds the weights, with what is its own.

    ``op_types_to_quantize`` is MatMul and Gemm where nothing is said; Gather goes with them.
    """

    algorithm: ClassVar[str] = ""
    _config: ClassVar[type[WeightOnlyConfig] | None] = None
    _always: ClassVar[dict[str, Any]] = {}

    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Sequence[str] | None = None

    def config(self, **values: Any) -> WeightOnlyConfig:
        """The same as a configuration of :func:`~neural_compressor.onnx.quantization.quantize`, which has ``values`` too."""
        if self._config is None:
            raise ConfigError(
                f"{type(self).__name__} names no algorithm; take RTNWeightOnlyQuantConfig or another of its children"
            )
        known = self._config.model_fields
        own = {
            each.name if each.name in known else _FIELDS[each.name]: getattr(self, each.name) for each in fields(self)
        }
        if "accuracy_level" in own:
            own["accuracy_level"] = _level(own["accuracy_level"])
        return self._config(**{**values, **own, **self._always})


def _level(value: Any) -> Any:
    """The accuracy level as configurations have it: there 0 is what is fastest, and here what a model says with it."""
    return RUNTIME if value == 0 and not isinstance(value, bool) else value


@dataclass(frozen=True)
class RTNWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Round to nearest; ``ratios`` shrinks the range of some weights, by the name of the weight or node."""

    algorithm: ClassVar[str] = "RTN"
    _config = RTNConfig

    ratios: dict[str, float] | None = None
    layer_wise_quant: bool = False


@dataclass(frozen=True)
class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Round to nearest, with all that the quantizer is otherwise told said here."""

    algorithm: ClassVar[str] = "DEFAULT"
    _config = RTNConfig

    block_size: int = 128
    is_symmetric: bool = False
    accuracy_level: int | None = None
    bits: int = 4


@dataclass(frozen=True)
class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """GPTQ, whose data comes from ``calibration_data_reader``."""

    algorithm: ClassVar[str] = "GPTQ"
    _config = GPTQConfig

    calibration_data_reader: Any = None
    percdamp: float = _GPTQ.percdamp
    block_size: int = _GPTQ.block_size
    actorder: bool = _GPTQ.act_order
    mse: bool = False
    perchannel: bool = True
    layer_wise_quant: bool = False


@dataclass(frozen=True)
class AWQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """AWQ, whose data comes from ``calibration_data_reader``."""

    algorithm: ClassVar[str] = "AWQ"
    _config = AWQConfig

    calibration_data_reader: Any = None
    enable_auto_scale: bool = _AWQ.auto_scale
    enable_mse_search: bool = _AWQ.auto_clip


@dataclass(frozen=True)
class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """HQQ, which has a group size and a width of its own, and is asymmetric whatever the quantizer says."""

    algorithm: ClassVar[str] = "HQQ"
    _config = HQQConfig
    _always: ClassVar[dict[str, Any]] = {"weight_sym": False}

    block_size: int = 128
    bits: int = 4


@dataclass
class MatMulNBitsQuantizer:
    """Quantizes the weights of matrix products to ``n_bits``, ``block_size`` of them to a scale.

    ``algo_config`` says how they are found, round to nearest by default. ``accuracy_level`` is written into the model as it
    is given; None takes what is fast. :meth:`process` does the work, and says in a few
    lines on standard error what was done unless it is ``quiet``; then ``model`` is the quantized one, and :meth:`save`
    writes it.
    """

    model: onnx.ModelProto | str | Path | ir.Model
    block_size: int = 128
    is_symmetric: bool = False
    accuracy_level: int | None = None
    nodes_to_exclude: Sequence[str] | None = None
    algo_config: WeightOnlyQuantConfig | None = None
    n_bits: int = 4
    providers: Sequence[str] = ("CPUExecutionProvider",)
    optimization_level: Any = None
    quiet: bool = False
    _processed: bool = field(default=False, init=False, repr=False)

    def process(self) -> None:
        """Quantize the model."""
        algorithm = RTNWeightOnlyQuantConfig() if self.algo_config is None else self.algo_config
        if not isinstance(algorithm, WeightOnlyQuantConfig):
            raise ConfigError(f"got {algorithm!r} as algo_config, expected one such as RTNWeightOnlyQuantConfig()")
        if isinstance(algorithm, HQQWeightOnlyQuantConfig | DefaultWeightOnlyQuantConfig):
            self._check_agreement(algorithm)
        config = algorithm.config(
            weight_bits=self.n_bits,
            weight_group_size=self.block_size,
            weight_sym=self.is_symmetric,
            accuracy_level=_level(self.accuracy_level),
            nodes_to_exclude=self.nodes_to_exclude,
            providers=self.providers,
        )
        new, in_float = quantized(self.model, config, self.optimization_level, None, graph_only=False)
        if not self.quiet:
            print_ops(brief_records(new, in_float))
        self.model = as_proto(new)
        self._processed = True

    def _check_agreement(self, algorithm: HQQWeightOnlyQuantConfig | DefaultWeightOnlyQuantConfig) -> None:
        """Refuse a width or group size said here alone, where the algorithm has one of its own, which holds."""
        for name, own in (("n_bits", "bits"), ("block_size", "block_size")):
            given, held = getattr(self, name), getattr(algorithm, own)
            if given not in (getattr(type(self), name), held) and held == getattr(type(algorithm), own):
                raise ConfigError(
                    f"MatMulNBitsQuantizer({name}={given}): {type(algorithm).__name__} has its own {own}, {held}; give "
                    f"{own}={given} there"
                )

    def save(self, path: str | Path) -> None:
        """Write the quantized model, atomically."""
        if not self._processed:
            raise ConfigError("there is no quantized model yet; call process() first")
        write_model(read_model(self.model), path)
