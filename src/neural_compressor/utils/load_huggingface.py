"""Folders that Hugging Face's libraries and serving engines read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neural_compressor.model import unwrapped
from neural_compressor.torch.quantization import save

__all__ = ["save_for_huggingface_upstream"]


def save_for_huggingface_upstream(model: Any, tokenizer: Any, output_dir: str | Path, **options: Any) -> None:
    """Write a quantized model and its tokenizer into one folder; ``options`` are those of ``save(format="huggingface")``."""
    save(unwrapped(model), output_dir, format="huggingface", **options)
    tokenizer.save_pretrained(output_dir)
