"""The path by which existing programs import :func:`autotune`; the package has the function under the same name."""

from neural_compressor.torch.quantization.config import (
    TuningConfig,
    get_all_config_set,
    get_rtn_double_quant_config_set,
)
from neural_compressor.torch.quantization.tuning import autotune

__all__ = ["TuningConfig", "autotune", "get_all_config_set", "get_rtn_double_quant_config_set"]
