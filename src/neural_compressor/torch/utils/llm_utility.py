"""Language models of local folders and batches of local texts. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from neural_compressor.config.validators import is_whole
from neural_compressor.errors import ConfigError
from neural_compressor.torch.files.huggingface import transformers_module
from neural_compressor.torch.quantization.saving import load
from neural_compressor.transformers.text_batches import text_batches
from neural_compressor.tuning.measure import Effort, timed_in_turns

__all__ = ["get_default_llm_dataloader", "initialize_model_and_tokenizer", "llm_benchmark"]


def initialize_model_and_tokenizer(
    model_name_or_path: str | Path, use_load: bool = False, device: str = "cpu"
) -> tuple[Any, Any]:
    """The causal language model in a folder, and its tokenizer; with ``use_load`` it is a quantized one."""
    if not Path(model_name_or_path).is_dir():
        raise ConfigError(
            f"model_name_or_path: {str(model_name_or_path)!r} is no folder here, and nothing is downloaded; give the folder "
            "of a model"
        )
    transformers = transformers_module()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_name_or_path, local_files_only=True)
    if use_load:
        return load(model_name_or_path, format="huggingface", device=device).eval(), tokenizer
    model = transformers.AutoModelForCausalLM.from_pretrained(model_name_or_path, local_files_only=True)
    return model.eval().to(device), tokenizer


def get_default_llm_dataloader(
    tokenizer: Any, dataset_name: Any = None, bs: int = 8, nsamples: int = 128, seq_len: int = 128, seed: int = 42
) -> list[Any]:
    """Batches of token ids of a text file, or of a list of texts."""
    return text_batches(tokenizer, dataset_name, bs=bs, nsamples=nsamples, seqlen=seq_len, seed=seed)


def llm_benchmark(
    model: Any, batch_size: int = 1, input_length: int = 128, warmup_iters: int = 3, total_iters: int = 20
) -> float:
    """How many samples of ``input_length`` tokens a language model reads a second, in ``total_iters`` calls; printed too."""
    for name, value in (("batch_size", batch_size), ("input_length", input_length), ("total_iters", total_iters)):
        if not is_whole(value) or value < 1:
            raise ConfigError(f"llm_benchmark: {name} is {value!r}, expected a whole number >= 1")
    device = next(model.parameters()).device
    ids = torch.ones(batch_size, input_length, dtype=torch.long, device=device)

    @torch.no_grad()
    def call() -> None:
        model(ids)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    effort = Effort(budget_s=0.0, precision=0.0, min_rounds=total_iters)
    (seconds,) = timed_in_turns([call], effort, warmup=warmup_iters)
    throughput = batch_size * len(seconds) / sum(seconds)
    print(
        f"batch size {batch_size}, {input_length} tokens: {throughput:.3f} samples/s, "
        f"{1e3 * sum(seconds) / len(seconds):.3f} ms a call"
    )
    return throughput
