"""Export PyTorch models as graphs, to be quantized by ``prepare`` and ``convert``, and compile them."""

from __future__ import annotations

from typing import Any

from torch import nn

from neural_compressor.torch.pt2e.capture import export

export_model_for_pt2e_quant = export

__all__ = ["compile", "export", "export_model_for_pt2e_quant"]


def compile(model: nn.Module, example_inputs: Any, *, quiet: bool = False, **options: Any) -> Any:
    """What :func:`neural_compressor.torch.pt2e.lowering.compile` does: Inductor is imported when it is needed."""
    from neural_compressor.torch.pt2e import lowering

    return lowering.compile(model, example_inputs, quiet=quiet, **options)
