"""Weight quantization as pure functions: arrays of weights and input statistics in, codes and scales out.

Everything is written once against the Python array API, so NumPy and torch, on any device, run the same code.
"""

from neural_compressor.algorithms.autoround import AutoRoundOptions
from neural_compressor.algorithms.awq import AWQOptions, awq_clip, awq_scale, round_scaled
from neural_compressor.algorithms.bias_correction import errors_of_means, mean_error
from neural_compressor.algorithms.catalogue import (
    ALGORITHMS,
    EXECUTOR,
    LayerOptions,
    WeightOnlyAlgorithm,
    needs_data,
    options_of,
    options_table,
    register_algorithm,
)
from neural_compressor.algorithms.double_quant import double_quant, quantize_parameter
from neural_compressor.algorithms.float_zero_array import FloatZeroArray
from neural_compressor.algorithms.gptq import GPTQOptions, gptq
from neural_compressor.algorithms.hadamard import Rotation, hadamard_matrix
from neural_compressor.algorithms.hqq import HQQOptions, hqq
from neural_compressor.algorithms.layer_result import LayerResult
from neural_compressor.algorithms.losses import quadratic_loss
from neural_compressor.algorithms.orthogonal import Orthogonal
from neural_compressor.algorithms.rtn import RTNOptions, rtn
from neural_compressor.algorithms.smoothquant import smooth_scale
from neural_compressor.algorithms.statistics import InputStatistics, ScarceData
from neural_compressor.algorithms.teq import TEQOptions, teq_scale
from neural_compressor.algorithms.upstream import upstream_pull
from neural_compressor.algorithms.weight_qparams import weight_qparams

__all__ = [
    "ALGORITHMS",
    "EXECUTOR",
    "AWQOptions",
    "AutoRoundOptions",
    "FloatZeroArray",
    "GPTQOptions",
    "HQQOptions",
    "InputStatistics",
    "LayerOptions",
    "LayerResult",
    "Orthogonal",
    "RTNOptions",
    "Rotation",
    "ScarceData",
    "TEQOptions",
    "WeightOnlyAlgorithm",
    "awq_clip",
    "awq_scale",
    "double_quant",
    "errors_of_means",
    "gptq",
    "hadamard_matrix",
    "hqq",
    "mean_error",
    "needs_data",
    "options_of",
    "options_table",
    "quadratic_loss",
    "quantize_parameter",
    "register_algorithm",
    "round_scaled",
    "rtn",
    "smooth_scale",
    "teq_scale",
    "upstream_pull",
    "weight_qparams",
]
