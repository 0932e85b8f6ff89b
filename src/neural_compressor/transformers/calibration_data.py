"""The calibration data that a quantization config names, as calls of the model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.batches import batch_size
from neural_compressor.torch.files.huggingface import transformers_module
from neural_compressor.torch.structure.replay import CalibrationLimit
from neural_compressor.transformers.config import CalibratedConfig


def calls_for(config: CalibratedConfig, folder: Path) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """``n_samples`` samples of ``seq_len`` tokens from the config's ``dataset``, as arguments of the model.

    The ids of all texts are strung together and cut into samples; a last, shorter one is used only if it is the only one.
    Where the config has no tokenizer, that of the model in ``folder`` is used.
    """
    limit, seen = CalibrationLimit(config.n_samples, config.seq_len), 0
    texts = _texts(config.dataset)
    batches = config.dataset if texts is None else _batches(texts, config, config.tokenizer or _tokenizer(folder))
    for batch in batches:
        call = ((), dict(batch)) if isinstance(batch, Mapping) else ((batch,), {})
        used = limit.cut(call, seen)
        if used is None:
            return
        yield used
        seen += batch_size(call)


def _texts(dataset: Any) -> list[str] | None:
    """The texts of a file or a list; None where ``dataset`` holds batches."""
    if isinstance(dataset, str | os.PathLike):
        file = Path(dataset)
        if not file.is_file():
            raise ConfigError(
                f"dataset: {str(dataset)!r} is not a text file here, and nothing is downloaded; pass a text file, a list of "
                "texts or batches for the model"
            )
        return [file.read_text(encoding="utf-8")]
    if not isinstance(dataset, Iterable) or isinstance(dataset, Mapping):
        raise ConfigError(
            f"dataset: got a {type(dataset).__name__}; expected a text file, a list of texts or batches for the model"
        )
    return list(dataset) if isinstance(dataset, list | tuple) and all(isinstance(t, str) for t in dataset) else None


def _tokenizer(folder: Path) -> Any:
    try:
        return transformers_module().AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(f"dataset holds texts, and {folder} has no tokenizer for them; pass tokenizer=") from error


def _batches(texts: Iterable[str], config: CalibratedConfig, tokenizer: Any) -> Iterator[torch.Tensor]:
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text)["input_ids"]
        if len(ids) >= config.n_samples * config.seq_len:
            break
    if not ids:
        raise CalibrationError("dataset: its texts have no tokens; calibration needs some")
    samples = torch.tensor(ids[: len(ids) // config.seq_len * config.seq_len] or ids)
    yield from torch.split(samples.reshape(-1, min(config.seq_len, len(ids))), config.batch_size)
