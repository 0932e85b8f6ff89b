"""Matrix products with weights of a few bits, through the class that users of ONNX Runtime know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import onnx
import onnx_ir as ir

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.files.model_file import read_model, write_model
from neural_compressor.onnx.files.serialized import as_proto
from neural_compressor.onnx.quantization.config import (
    AWQConfig,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    WeightOnlyConfig,
)
from neural_compressor.onnx.quantization.quant_types import QuantFormat
from neural_compressor.onnx.quantization.quantize import quantized

__all__ = [
    "AWQWeightOnlyQuantConfig",
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
]


@dataclass(frozen=True, kw_only=True)
class WeightOnlyQuantConfig:
    """The algorithm that finds the weights, with what is its own.

    ``op_types_to_quantize`` is MatMul and Gemm where nothing is said; Gather goes with them.
    """

    algorithm: ClassVar[str] = ""

    quant_format: Any = QuantFormat.QOperator
    op_types_to_quantize: Sequence[str] | None = None

    def config(self, **values: Any) -> WeightOnlyConfig:
        """The same as a configuration of :func:`~neural_compressor.onnx.quantization.quantize`."""
        raise ConfigError(
            f"{type(self).__name__} names no algorithm; take RTNWeightOnlyQuantConfig or another of its children"
        )


@dataclass(frozen=True)
class RTNWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Round to nearest; ``ratios`` shrinks the range of some weights, by the name of the weight or node."""

    algorithm: ClassVar[str] = "RTN"

    ratios: dict[str, float] | None = None
    layer_wise_quant: bool = False

    def config(self, **values: Any) -> RTNConfig:
        return RTNConfig(ratios=self.ratios or {}, layer_wise_quant=self.layer_wise_quant, **values)


@dataclass(frozen=True)
class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Round to nearest, with all that the quantizer is otherwise told said here."""

    algorithm: ClassVar[str] = "DEFAULT"

    block_size: int = 128
    is_symmetric: bool = False
    accuracy_level: int | None = None
    bits: int = 4

    def config(self, **values: Any) -> RTNConfig:
        own = {
            "weight_group_size": self.block_size,
            "weight_sym": self.is_symmetric,
            "accuracy_level": self.accuracy_level,
            "weight_bits": self.bits,
        }
        return RTNConfig(**{**values, **own})


@dataclass(frozen=True)
class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """GPTQ, whose data comes from ``calibration_data_reader``."""

    algorithm: ClassVar[str] = "GPTQ"

    calibration_data_reader: Any = None
    percdamp: float = 0.01
    block_size: int = 128
    actorder: bool = False
    mse: bool = False
    perchannel: bool = True
    layer_wise_quant: bool = False

    def config(self, **values: Any) -> GPTQConfig:
        return GPTQConfig(
            calibration_data_reader=self.calibration_data_reader,
            percdamp=self.percdamp,
            block_size=self.block_size,
            actorder=self.actorder,
            mse=self.mse,
            perchannel=self.perchannel,
            layer_wise_quant=self.layer_wise_quant,
            **values,
        )


@dataclass(frozen=True)
class AWQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """AWQ, whose data comes from ``calibration_data_reader``."""

    algorithm: ClassVar[str] = "AWQ"

    calibration_data_reader: Any = None
    enable_auto_scale: bool = True
    enable_mse_search: bool = True

    def config(self, **values: Any) -> AWQConfig:
        return AWQConfig(
            calibration_data_reader=self.calibration_data_reader,
            enable_auto_scale=self.enable_auto_scale,
            enable_mse_search=self.enable_mse_search,
            **values,
        )


@dataclass(frozen=True)
class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """HQQ, which has a group size and a width of its own."""

    algorithm: ClassVar[str] = "HQQ"

    block_size: int = 128
    bits: int = 4

    def config(self, **values: Any) -> HQQConfig:
        own = {"weight_group_size": self.block_size, "weight_bits": self.bits, "weight_sym": False}
        return HQQConfig(**{**values, **own})


@dataclass
class MatMulNBitsQuantizer:
    """Quantizes the weights of matrix products to ``n_bits``, ``block_size`` of them to a scale.

    ``algo_config`` says how they are found, round to nearest by default. :meth:`process` does the work; then ``model`` is
    the quantized one, and :meth:`save` writes it.
    """

    model: onnx.ModelProto | str | Path | ir.Model
    block_size: int = 128
    is_symmetric: bool = False
    accuracy_level: int | None = 0
    nodes_to_exclude: Sequence[str] | None = None
    algo_config: WeightOnlyQuantConfig | None = None
    n_bits: int = 4
    providers: Sequence[str] = ("CPUExecutionProvider",)
    optimization_level: Any = None
    _processed: bool = field(default=False, init=False, repr=False)

    def process(self) -> None:
        """Quantize the model."""
        algorithm = RTNWeightOnlyQuantConfig() if self.algo_config is None else self.algo_config
        if not isinstance(algorithm, WeightOnlyQuantConfig):
            raise ConfigError(f"got {algorithm!r} as algo_config, expected one such as RTNWeightOnlyQuantConfig()")
        config = algorithm.config(
            weight_bits=self.n_bits,
            weight_group_size=self.block_size,
            weight_sym=self.is_symmetric,
            accuracy_level=self.accuracy_level,
            nodes_to_exclude=self.nodes_to_exclude,
            providers=self.providers,
            quant_format=algorithm.quant_format,
            op_types_to_quantize=algorithm.op_types_to_quantize,
        )
        self.model = as_proto(quantized(self.model, config, self.optimization_level, None, graph_only=False)[0])
        self._processed = True

    def save(self, path: str | Path) -> None:
        """Write the quantized model, atomically."""
        if not self._processed:
            raise ConfigError("there is no quantized model yet; call process() first")
        write_model(read_model(self.model), path)
