"""The method of a weight-only op scheme: what it must see, and the weight it finds; and how a model stores such weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from neural_compressor import algorithms
from neural_compressor.algorithms import ALGORITHMS, InputStatistics, LayerResult, options_of
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.onnx.methods.weight_only.decoded import check_weight
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Method, OpScheme, TensorScheme

FORMATS = ("QOperator", "QDQ")
_INT8_INPUTS = 4
_EXECUTED = ("layer_wise",)
"""Those options that say how the model is gone through which are carried out here."""


def check_weight_only(scheme: OpScheme) -> None:
    """Refuse a method, an option or a type that is not known or not carried out here."""
    weight, method = scheme.weight, method_of(scheme)
    if weight is None:
        raise ConfigError("an op is to have its weight alone quantized, and the plan says nothing of it")
    algorithm, options = ALGORITHMS[method.name], options_of(method)
    if algorithm.quantize is None:
        raise ConfigError(
            f"{method.name} trains whole blocks of a model, which ONNX models do not; use gptq, or PyTorch"
        )
    for name in options.names(executor=True):
        if name in options.distinct() and name not in _EXECUTED:
            raise ConfigError(f"{method.name}: {name} is not carried out on ONNX models; leave it out")
    check_weight(weight)


def method_of(scheme: OpScheme) -> Method:
    """The method of a weight-only scheme."""
    assert scheme.method is not None
    return scheme.method


def needs_data(scheme: OpScheme) -> bool:
    """Whether the inputs of the node must have been seen."""
    return algorithms.needs_data(method_of(scheme))


def corrects_upstream(scheme: OpScheme) -> bool:
    """Whether it aims at the outputs of the float model where the node's inputs carry the error of nodes before it."""
    method = method_of(scheme)
    return bool(getattr(options_of(method), "upstream", False))


def weight_of(scheme: OpScheme) -> TensorScheme:
    """How the weight is mapped to its data type."""
    assert scheme.weight is not None
    return scheme.weight


def find_weight(scheme: OpScheme, weight: np.ndarray, statistics: InputStatistics | None = None) -> LayerResult:
    """``weight`` (outputs, inputs) quantized, with groups where they stand."""
    method = method_of(scheme)
    options = {name: value for name, value in method.options.items() if name not in _EXECUTED}
    if options.get("act_order"):
        # The input of MatMulNBits that says which group an input is in is deprecated, and ignored by its kernels.
        options["static_groups"] = True
    if method.name == "hqq":
        # Others cost a float a group and a product of their own, for less than smaller groups give at that size.
        options["integer_zero"] = options.get("integer_zero") is not False
    result = ALGORITHMS[method.name](weight, weight_of(scheme), statistics, **options)
    if result.order is not None or result.rotation is not None:
        raise QuantizationError(f"{method.name} wants its inputs in another order, which no kernel has")
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
    - ``fold``: whether scales of inputs (AWQ) go into what makes the input, where that is possible.
    - ``hessian_bytes``: the most that statistics may take at a time; the data is run over as often as that needs.
    """

    quant_format: str = "QOperator"
    accuracy_level: int | str = "auto"
    fold: bool = True
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
