"""Mappings of tensors and ops to data types, and the arithmetic that does them."""

from neural_compressor.schemes.affine import QParams, choose_qparams
from neural_compressor.schemes.error import sqnr_db
from neural_compressor.schemes.granularity import (
    GRANULARITIES,
    PER_CHANNEL,
    PER_TENSOR,
    PER_TOKEN,
    Granularity,
    PerBlock,
    PerChannel,
    PerGroup,
    PerTensor,
    PerToken,
    in_groups,
)
from neural_compressor.schemes.method import Method, Pass
from neural_compressor.schemes.packing import pack_bits, unpack_bits
from neural_compressor.schemes.pair_safe import in_pairs, is_pair_safe, quantize_pairs
from neural_compressor.schemes.plan import OpKey, Plan
from neural_compressor.schemes.quantize import fake_quantize, qparams_of, quantize, quantize_with
from neural_compressor.schemes.quantized_array import PackedArray, QuantizedArray
from neural_compressor.schemes.ranges import value_range
from neural_compressor.schemes.scaling import Scaling
from neural_compressor.schemes.scheme import OpScheme, TensorScheme, any_cpu_op, any_cpu_weight, float_op, reduced

__all__ = [
    "GRANULARITIES",
    "PER_CHANNEL",
    "PER_TENSOR",
    "PER_TOKEN",
    "Granularity",
    "Method",
    "OpKey",
    "OpScheme",
    "PackedArray",
    "Pass",
    "PerBlock",
    "PerChannel",
    "PerGroup",
    "PerTensor",
    "PerToken",
    "Plan",
    "QParams",
    "QuantizedArray",
    "Scaling",
    "TensorScheme",
    "any_cpu_op",
    "any_cpu_weight",
    "choose_qparams",
    "fake_quantize",
    "float_op",
    "in_groups",
    "in_pairs",
    "is_pair_safe",
    "pack_bits",
    "qparams_of",
    "quantize",
    "quantize_pairs",
    "quantize_with",
    "reduced",
    "sqnr_db",
    "unpack_bits",
    "value_range",
]
