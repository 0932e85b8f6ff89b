"""The vocabulary of a Hugging Face ``tokenizer.json`` as GGUF metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neural_compressor.errors import FormatError
from neural_compressor.formats.gguf_file import gguf_package
from neural_compressor.formats.json_files import read_json


def add_vocabulary(writer: Any, folder: str | Path, size: int, pre_tokenizer: str | None = None) -> None:
    """Add the tokens, their types and merges, the special tokens and the chat template of ``folder`` to a GGUF writer.

    ``size`` is the number of rows of the embedding: rows without a token get an unused one. ``pre_tokenizer`` is
    llama.cpp's name for the way text is split before merging; it is needed where that cannot be told from the file.
    """
    package, folder = gguf_package(), Path(folder)
    file = folder / "tokenizer.json"
    tokenizer = read_json(file)
    model = tokenizer.get("model")
    if not isinstance(model, Mapping) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), Mapping):
        raise FormatError(f"{file} holds no BPE vocabulary, the only kind that is exported")
    tokens, types = _tokens(model["vocab"], tokenizer.get("added_tokens") or (), size, file)
    if model.get("byte_fallback"):
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(_scores(tokens, model.get("merges") or ()))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre_tokenizer or _pre_tokenizer(tokenizer.get("pre_tokenizer"), file))
        writer.add_token_list(tokens)
    writer.add_token_types([package.TokenType[kind] for kind in types])
    special = package.SpecialVocab(folder, load_merges=not model.get("byte_fallback"), n_vocab=size)
    special.add_to_gguf(writer, quiet=True)


def _tokens(vocabulary: Mapping[str, int], added: Any, size: int, file: Path) -> tuple[list[str], list[str]]:
    """The token of each row of the embedding, and the name of its type."""
    tokens = [f"[PAD{row}]" for row in range(size)]
    types = ["UNUSED"] * size
    extra = [(entry["content"], entry["id"], "CONTROL" if entry.get("special") else "USER_DEFINED") for entry in added]
    plain = [(t, row, "BYTE" if re.fullmatch(r"<0x[0-9A-F]{2}>", t) else "NORMAL") for t, row in vocabulary.items()]
    for token, row, kind in (*plain, *extra):
        if not 0 <= row < size:
            raise FormatError(f"{file} has token {token!r} at row {row}, and the embedding has {size} rows")
        tokens[row], types[row] = token, kind
    return tokens, types


def _scores(tokens: list[str], merges: Any) -> list[float]:
    """What a SentencePiece vocabulary orders merges by: the earlier a token is merged, the higher."""
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault("".join(merge.split(" ") if isinstance(merge, str) else merge), rank)
    return [-float(ranks.get(token, 0)) for token in tokens]


def _pre_tokenizer(rule: Any, file: Path) -> str:
    """llama.cpp's name for a way to split text, where the file describes one that it knows."""
    steps = [] if not rule else rule.get("pretokenizers", [rule])
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and r"\p{N}{1,3}" in str(steps[0].get("pattern")):
        return "llama-bpe"
    raise FormatError(
        f"{file} splits text in a way that has no known name in llama.cpp ({kinds}); pass pre_tokenizer=, for example "
        "'llama-bpe', 'gpt-2' or 'qwen2'"
    )
