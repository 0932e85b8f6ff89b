"""What ONNX Runtime computes in integers, op type by op type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Output(Enum):
    """What an op running in integers gives."""

    INTEGER = "integers only: without a quantizer behind it the op runs in float"
    EITHER = "integers or floats, at the same cost"
    FLOAT = "floats: there is no integer kernel, and only the size of the weight is gained"


@dataclass(frozen=True)
class OpType:
    """Inputs by their place: ``activations`` (None: all), ``weight`` (constant), ``bias`` (constant, may be missing).

    ``light`` ops do little for each value: integers pay for them only where their neighbours have integers already.
    """

    activations: tuple[int, ...] | None
    weight: int | None = None
    bias: int | None = None
    output: Output = Output.INTEGER
    light: bool = False


_LIGHT = OpType(activations=(0,), light=True)
_LIGHT_PAIR = OpType(activations=(0, 1), light=True)
_PRODUCT = OpType(activations=(0, 1), output=Output.EITHER)

OP_TYPES: dict[str, OpType] = {
    "Conv": OpType(activations=(0,), weight=1, bias=2),
    "ConvTranspose": OpType(activations=(0,), weight=1, bias=2, output=Output.FLOAT),
    # Either side of a product may be the weight, or neither.
    "MatMul": _PRODUCT,
    "Gemm": OpType(activations=(0, 1), bias=2, output=Output.EITHER),
    "Gather": OpType(activations=(), weight=0, output=Output.FLOAT),
    "Add": _LIGHT_PAIR,
    "Mul": _LIGHT_PAIR,
    "Concat": OpType(activations=None, light=True),
    "AveragePool": _LIGHT,
    "GlobalAveragePool": _LIGHT,
    "LeakyRelu": _LIGHT,
    "Sigmoid": _LIGHT,
    "Softmax": _LIGHT,
}
"""The op types that a plan may quantize statically."""

PASS_ON = frozenset(
    {
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "DepthToSpace"),
        *("Slice", "Split", "Gather", "GatherElements", "MaxPool", "ReduceMax", "ReduceMin", "Resize"),
    }
)
"""Op types that give out values they take in, so that integers pass with the scale they came with."""

CLIPS = ("Relu", "Clip")
"""Op types that a quantizer behind them may do the work of, since it cuts off what is outside of its range."""
