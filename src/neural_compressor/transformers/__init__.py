"""Quantization in the manner of Hugging Face's ``from_pretrained``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neural_compressor.transformers.config import AutoRoundConfig, AwqConfig, GPTQConfig, RtnConfig, TeqConfig

if TYPE_CHECKING:
    from neural_compressor.transformers.auto import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM

__all__ = [
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoRoundConfig",
    "AwqConfig",
    "GPTQConfig",
    "RtnConfig",
    "TeqConfig",
]


def __getattr__(name: str) -> Any:
    if name in ("AutoModel", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"):
        from neural_compressor.transformers import auto

        return getattr(auto, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
