"""Quantization in the manner of Hugging Face's ``from_pretrained``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neural_compressor.transformers.config import AutoRoundConfig, AwqConfig, GPTQConfig, RtnConfig, TeqConfig

if TYPE_CHECKING:
    from neural_compressor.transformers.auto import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForSeq2SeqLM,
        LlavaForConditionalGeneration,
        MllamaForConditionalGeneration,
        Qwen2VLForConditionalGeneration,
    )

__all__ = [
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoRoundConfig",
    "AwqConfig",
    "GPTQConfig",
    "LlavaForConditionalGeneration",
    "MllamaForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "RtnConfig",
    "TeqConfig",
]


def __getattr__(name: str) -> Any:
    if name.startswith("AutoModel") or name.endswith("ForConditionalGeneration"):
        from neural_compressor.transformers import auto

        return getattr(auto, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
