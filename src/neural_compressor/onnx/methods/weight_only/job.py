"""Weight-only quantization as data: algorithm and scheme of a node's weight, and how the whole model stores weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neural_compressor.algorithms import ALGORITHMS, InputStatistics, LayerResult
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.onnx.methods.weight_only.decoded import check_weight
from neural_compressor.registry import close_matches
from neural_compressor.schemes import TensorScheme

FORMATS = ("QOperator", "QDQ")
_INT8_INPUTS = 4


@dataclass(frozen=True)
class WeightJob:
    """An algorithm, a scheme for a matrix (outputs, inputs), and the algorithm's own options."""

    algorithm: str
    scheme: TensorScheme
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_weight(self.scheme)
        if self.options.get("rotation") is not None:
            raise ConfigError("no node rotates the inputs of a product; leave the option rotation out")

    @property
    def needs_data(self) -> bool:
        """Whether the node's inputs must have been seen."""
        return ALGORITHMS[self.algorithm].needs_statistics

    @property
    def corrects_upstream(self) -> bool:
        """Whether it aims at the outputs of the float model where its inputs carry the error of nodes before it."""
        return self.algorithm == "gptq" and bool(self.options.get("upstream", True))

    @property
    def kind(self) -> str:
        """Equal for weights that may be quantized as one."""
        return repr((self.algorithm, self.scheme, sorted(self.options.items())))

    def run(self, weight: np.ndarray, statistics: InputStatistics | None = None) -> LayerResult:
        """``weight`` (outputs, inputs) quantized, with groups where they stand."""
        options = dict(self.options)
        if options.get("act_order"):
            # The input of MatMulNBits that says which group an input is in is deprecated, and ignored by its kernels.
            options["static_groups"] = True
        if self.algorithm == "hqq":
            # With zero points that are no integers the CPU kernel writes out the float weight at each call: 90 times slower.
            options.setdefault("integer_zero", True)
        result = ALGORITHMS[self.algorithm](weight, self.scheme, statistics, **options)
        if result.order is not None or result.rotation is not None:
            raise QuantizationError(f"{self.algorithm} wants its inputs in another order, which no kernel has")
        return result


@dataclass(frozen=True)
class WeightOnlyOptions:
    """How quantized weights are stored and calibrated.

    - ``quant_format``: "QOperator" (MatMulNBits of ONNX Runtime) or "QDQ" (DequantizeLinear in blocks, opset 21; 25 for 2
      bits), which ONNX Runtime fuses into the same. Tables of a Gather are GatherBlockQuantized in both: a table
      dequantized before it is looked up would be dequantized whole each time. What no kernel takes is float behind nodes
      that decode it, or in QDQ behind a DequantizeLinear where there is one for its type.
    - ``accuracy_level``: how exact MatMulNBits takes its inputs, 1 (fp32) to 4 (int8), 0 as the runtime decides; "auto"
      is 4. A QDQ model leaves that to the session.
    - ``layer_wise``: calibrate each node behind all that are quantized before it, and not each block behind the blocks
      before it. Each group of nodes that share an input then costs a run over the data.
    - ``hessian_bytes``: the most that statistics may take at a time; the data is run over as often as that needs.
    """

    quant_format: str = "QOperator"
    accuracy_level: int | str = "auto"
    layer_wise: bool = False
    hessian_bytes: int = 1 << 30
    providers: tuple[str, ...] = ("CPUExecutionProvider",)

    def __post_init__(self) -> None:
        if self.quant_format not in FORMATS:
            raise ConfigError(
                f"unknown quant_format {self.quant_format!r}; {close_matches(str(self.quant_format), FORMATS)}"
            )
        if self.accuracy_level != "auto" and self.accuracy_level not in range(5):
            raise ConfigError(f"accuracy_level is 0 to 4 or 'auto', not {self.accuracy_level!r}")

    @property
    def level(self) -> int:
        """The accuracy level as a number."""
        return _INT8_INPUTS if isinstance(self.accuracy_level, str) else self.accuracy_level
