"""What is done to float models before they are quantized."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx

from neural_compressor.onnx.executor import Smooth
from neural_compressor.onnx.files.model_file import as_proto
from neural_compressor.onnx.graph.linear_ops import LINEAR_TYPES
from neural_compressor.onnx.passes.smooth_quant import smooth
from neural_compressor.onnx.quantization.config import SmoothQuantConfig
from neural_compressor.onnx.quantization.source_model import read_float_model
from neural_compressor.onnx.runtime.data_reader import Samples

__all__ = ["Smoother"]


class Smoother:
    """SmoothQuant of a float model on the data of a calibration data reader."""

    def __init__(self, model: Any, dataloader: Any, providers: Sequence[str] = ("CPUExecutionProvider",)) -> None:
        self.model = read_float_model(model)
        self.dataloader = dataloader
        self.providers = providers

    def transform(
        self,
        alpha: Any = 0.5,
        folding: bool = True,
        op_types: Collection[str] = LINEAR_TYPES,
        scales_per_op: bool = True,
        calib_iter: int = 100,
        auto_alpha_args: Mapping[str, Any] | None = None,
    ) -> onnx.ModelProto:
        """A model that computes the same, with the outliers of activations in the weights that read them.

        ``auto_alpha_args`` is what ``alpha="auto"`` chooses from, as ``SmoothQuantConfig`` has it.
        """
        config = SmoothQuantConfig(
            alpha=alpha,
            folding=folding,
            op_types=tuple(op_types),
            calib_iter=calib_iter,
            scales_per_op=scales_per_op,
            auto_alpha_args=dict(auto_alpha_args or {}),
        )
        wanted = Smooth(**config.smoothing.options)
        return as_proto(smooth(self.model, Samples(self.dataloader), providers=self.providers, **wanted.arguments()))
