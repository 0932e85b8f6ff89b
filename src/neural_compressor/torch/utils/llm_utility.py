"""Language models of local folders and batches of local texts. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.torch.files.huggingface import transformers_module
from neural_compressor.transformers.text_batches import text_batches

__all__ = ["get_default_llm_dataloader", "initialize_model_and_tokenizer"]


def initialize_model_and_tokenizer(model_name_or_path: str | Path, device: str = "cpu") -> tuple[Any, Any]:
    """The causal language model in a folder, and its tokenizer."""
    if not Path(model_name_or_path).is_dir():
        raise ConfigError(
            f"model_name_or_path: {str(model_name_or_path)!r} is no folder here, and nothing is downloaded; give the folder "
            "of a model"
        )
    transformers = transformers_module()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_name_or_path, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_name_or_path, local_files_only=True)
    return model.eval().to(device), tokenizer


def get_default_llm_dataloader(
    tokenizer: Any, dataset_name: Any, bs: int = 8, nsamples: int = 128, seq_len: int = 2048, seed: int = 42
) -> list[Any]:
    """Batches of token ids of a text file, or of a list of texts."""
    return text_batches(tokenizer, dataset_name, bs=bs, nsamples=nsamples, seqlen=seq_len, seed=seed)
