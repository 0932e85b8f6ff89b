"""How tensors and ops are mapped to data types, and the arithmetic that does it."""

from neural_compressor.schemes.granularity import PER_CHANNEL, PER_TENSOR, Granularity, PerChannel, PerGroup, PerTensor
from neural_compressor.schemes.plan import OpKey, Plan
from neural_compressor.schemes.scheme import OpScheme, TensorScheme, float_op, reduced

__all__ = [
    "PER_CHANNEL",
    "PER_TENSOR",
    "Granularity",
    "OpKey",
    "OpScheme",
    "PerChannel",
    "PerGroup",
    "PerTensor",
    "Plan",
    "TensorScheme",
    "float_op",
    "reduced",
]
