"""Matrix products with weights of 4 bits, by the class that was there before other widths were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neural_compressor.onnx.quantization.matmul_nbits_quantizer import (
    AWQWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
)

__all__ = [
    "AWQWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "MatMul4BitsQuantizer",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
]


class MatMul4BitsQuantizer(MatMulNBitsQuantizer):
    """:class:`MatMulNBitsQuantizer` with 4 bits."""

    def __init__(
        self,
        model: Any,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        algo_config: WeightOnlyQuantConfig | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        optimization_level: Any = None,
        *,
        quiet: bool = False,
    ) -> None:
        super().__init__(
            model,
            block_size,
            is_symmetric,
            accuracy_level,
            nodes_to_exclude,
            algo_config,
            4,
            providers,
            optimization_level,
            quiet,
        )
