"""The path by which existing programs import :func:`quantize`; the package has the function under the same name."""

from neural_compressor.torch.quantization.preparation import (
    convert,
    finalize_calibration,
    prepare,
    prepare_qat,
    quantize,
)

__all__ = ["convert", "finalize_calibration", "prepare", "prepare_qat", "quantize"]
