"""Calibration data that a configuration names: texts of a file or a list, or batches, as calls of the model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.batches import batch_size as samples_in
from neural_compressor.torch.files.huggingface import transformers_module
from neural_compressor.torch.structure.replay import Arguments, CalibrationLimit
from neural_compressor.tuning.evaluator import require_repeatable


def calls_from(
    dataset: Any,
    tokenizer: Any,
    folder: str | Path | None = None,
    *,
    nsamples: int = 128,
    seqlen: int = 2048,
    batch_size: int = 8,
) -> Iterator[Arguments]:
    """``nsamples`` samples of ``seqlen`` tokens from ``dataset``, as arguments of the model.

    The ids of all texts are strung together and cut into samples; a last, shorter one is used only if it is the only one.
    ``tokenizer`` is one, or the folder of one; without it that of the model in ``folder`` is used.
    """
    limit, seen = CalibrationLimit(nsamples, seqlen), 0
    texts = _texts(dataset)
    batches = dataset if texts is None else _batches(texts, _tokenizer(tokenizer, folder), nsamples, seqlen, batch_size)
    for batch in batches:
        call = ((), dict(batch)) if isinstance(batch, Mapping) else ((batch,), {})
        used = limit.cut(call, seen)
        if used is None:
            return
        yield used
        seen += samples_in(call)


def check_dataset(dataset: Any) -> None:
    """Refuse what is neither a text file nor texts nor batches; the name of a data set is none, as nothing is downloaded."""
    require_repeatable(dataset, "dataset")
    if isinstance(dataset, str | os.PathLike):
        if not Path(dataset).is_file():
            raise ConfigError(
                f"{str(dataset)!r} is not a text file here, and nothing is downloaded; expected a text file, a list of "
                "texts or batches for the model"
            )
    elif not isinstance(dataset, Iterable) or isinstance(dataset, Mapping | bytes):
        raise ConfigError(
            f"got a {type(dataset).__name__}; expected a text file, a list of texts or batches for the model"
        )


def _texts(dataset: Any) -> list[str] | None:
    """The texts of a file or a list; None where ``dataset`` holds batches."""
    check_dataset(dataset)
    if isinstance(dataset, str | os.PathLike):
        return [Path(dataset).read_text(encoding="utf-8")]
    return list(dataset) if isinstance(dataset, list | tuple) and all(isinstance(t, str) for t in dataset) else None


def _tokenizer(given: Any, folder: str | Path | None) -> Any:
    if given is not None and not isinstance(given, str | os.PathLike):
        return given
    place = given or folder
    if place and Path(place).is_dir():
        try:
            return transformers_module().AutoTokenizer.from_pretrained(place)
        except (OSError, ValueError) as error:
            raise ConfigError(f"dataset holds texts, and {place} has no tokenizer for them; pass tokenizer=") from error
    raise ConfigError(
        f"dataset holds texts, and their tokenizer is in no folder here ({str(place or '')!r}); pass tokenizer="
    )


def _batches(
    texts: Iterable[str], tokenizer: Any, nsamples: int, seqlen: int, batch_size: int
) -> Iterator[torch.Tensor]:
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text)["input_ids"]
        if len(ids) >= nsamples * seqlen:
            break
    if not ids:
        raise CalibrationError("dataset: its texts have no tokens; calibration needs some")
    samples = torch.tensor(ids[: len(ids) // seqlen * seqlen] or ids)
    yield from torch.split(samples.reshape(-1, min(seqlen, len(ids))), batch_size)
