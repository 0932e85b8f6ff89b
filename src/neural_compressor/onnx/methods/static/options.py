"""Options of static quantization: format, target and what is quantized beside weights and activations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from neural_compressor.errors import ConfigError
from neural_compressor.onnx.graph.ops import OP_TYPES
from neural_compressor.registry import close_matches

FORMATS = ("QDQ", "QOperator")


@dataclass(frozen=True)
class StaticOptions:
    """The defaults are what ONNX Runtime runs fastest on a CPU.

    ``quant_format``: "QDQ" writes quantizers around float ops, which runtimes replace by integer ones; "QOperator" writes
    the integer ops of ONNX Runtime.
    ``target``: the execution provider the model is laid out for; ``providers``: those that calibration runs on.
    ``add_qdq_pair_to_weight``: weights stay in float behind a quantizer of their own, as TensorRT wants them.
    ``dedicated_qdq_pair``: a quantizer for each consumer of a tensor in place of one for all.
    ``optypes_to_exclude_output_quant``: op types whose output is quantized only for consumers that are quantized.
    ``quantize_bias``: False leaves biases in float, as TensorRT wants them.
    ``bias_correction``: what convolutions give too much on average, on some of the data, is taken out of their biases;
    that takes a second pass over it. None does it where the data admits it, True says what is missing.
    ``weight_correction``: the values of a rounded weight get the spread of the float one.
    ``named``: nodes of the plan that are quantized even where integers make them no faster: light ones (Add, Mul,
    Sigmoid, depthwise convolutions, ...) for which integers would have to be made, and slow ones.
    ``percentile``: the share of values that "percentile" calibration keeps, in percent.
    """

    quant_format: str = "QDQ"
    target: str = "CPUExecutionProvider"
    providers: Sequence[str] = ("CPUExecutionProvider",)
    add_qdq_pair_to_weight: bool = False
    dedicated_qdq_pair: bool = False
    optypes_to_exclude_output_quant: Sequence[str] = ()
    quantize_bias: bool = True
    bias_correction: bool | None = False
    weight_correction: bool = False
    named: Collection[str] = ()
    percentile: float = 99.999

    def __post_init__(self) -> None:
        if self.quant_format not in FORMATS:
            raise ConfigError(
                f"unknown quant_format {self.quant_format!r}; {close_matches(self.quant_format, FORMATS)}"
            )
        for op_type in self.optypes_to_exclude_output_quant:
            if op_type not in OP_TYPES:
                raise ConfigError(
                    f"optypes_to_exclude_output_quant names {op_type!r}, which is never quantized; "
                    f"{close_matches(op_type, OP_TYPES)}"
                )
        for name in ("add_qdq_pair_to_weight", "dedicated_qdq_pair"):
            if self.quant_format == "QOperator" and getattr(self, name):
                raise ConfigError(f"integer ops have no Q/DQ pairs around them: {name} goes with quant_format 'QDQ'")

    @property
    def on_cpu(self) -> bool:
        """Whether the model is for the CPU kernels of ONNX Runtime."""
        return self.target == "CPUExecutionProvider"
