"""Generation of text, which is that of transformers: models with quantized weights have the same ``generate``."""

from __future__ import annotations

from typing import Any

from neural_compressor.torch.files.huggingface import transformers_module


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(transformers_module().generation, name, None)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has what transformers.generation has")
    return found
