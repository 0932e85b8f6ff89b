"""SmoothQuant, then static quantization."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainValidator

from neural_compressor.config.composition import register_config
from neural_compressor.config.parameter_space import one_or_more
from neural_compressor.onnx.graph.linear_ops import LINEAR_TYPES
from neural_compressor.onnx.quantization.config.fields import Count, Flag
from neural_compressor.onnx.quantization.config.onnx_config import OnnxConfig
from neural_compressor.onnx.quantization.config.smoothing import Smoothing, smoothed_types, smoothing_alpha
from neural_compressor.onnx.quantization.config.static import StaticQuantConfig


class SmoothParameters(OnnxConfig):
    """The parameters SmoothQuant has beside those of static quantization; they come first."""

    alpha: Annotated[float | str, one_or_more(smoothing_alpha)] = 0.5
    folding: Flag = True
    op_types: Annotated[tuple[str, ...], PlainValidator(smoothed_types)] = LINEAR_TYPES
    calib_iter: Count = 100
    scales_per_op: Flag = True


@register_config("onnxrt", "smooth_quant")
class SmoothQuantConfig(StaticQuantConfig, SmoothParameters):
    """Static quantization after moving the outliers of activations into the weights.

    ``alpha`` says how far they move: from 0 to 1, or ``"auto"`` to choose for each node. A list of them is
    tried by autotune one after the other; where a model is quantized once, nodes get the one with the least loss.
    ``folding`` lets the node before take up the scales, ``scales_per_op`` gives nodes that share an input scales of their
    own, ``calib_iter`` is how many samples are looked at.
    """

    @property
    def smoothing(self) -> Smoothing:
        """What is done to outliers."""
        alphas = tuple(self.alpha) if isinstance(self.alpha, list) else self.alpha
        return Smoothing(alphas, self.folding, self.op_types, self.calib_iter, self.scales_per_op)

    def require_single(self) -> None:
        """A list of ``alpha`` is no space where one model is made: the best is found without an evaluation."""
        if set(self.spans) - {"alpha"}:
            super().require_single()
