"""A model of the Llama architecture, from its Hugging Face configuration and tensors, as a GGUF file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import device

from neural_compressor.errors import FormatError
from neural_compressor.formats.gguf_file import encode_tensor, gguf_package, write_gguf
from neural_compressor.formats.json_files import read_json
from neural_compressor.formats.linear_weight import LinearWeight
from neural_compressor.schemes.arrays import Array, array_namespace

#: Models that compute exactly what the architecture "llama" of GGUF files computes.
MODEL_TYPES = ("llama", "mistral")
_REQUIRED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")

Tensors = Mapping[str, Array | LinearWeight] | Iterable[tuple[str, Array | LinearWeight]]


def export_llama_gguf(
    path: str | Path,
    config: Mapping[str, Any],
    tensors: Tensors,
    tokenizer_dir: str | Path | None = None,
    *,
    float_as: str = "F16",
    name: str = "model",
    pre_tokenizer: str | None = None,
) -> dict[str, str]:
    """Write a Llama model as the GGUF file ``path``, and return the type each of its tensors got.

    ``config`` is the content of ``config.json``. ``tensors`` holds float arrays under their Hugging Face names
    (``model.layers.0.mlp.up_proj.weight``) and quantized layers under theirs (``model.layers.0.mlp.up_proj``): codes of up
    to 4 bits become Q4_0 or Q4_1, others Q8_0, unchanged. Float matrices become ``float_as``: F32, F16, BF16, or Q4_0, Q4_1,
    Q8_0, which rounds them. Without ``tokenizer_dir`` the file has no vocabulary.
    """
    _check(config)
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    rope = _rope(config)

    def describe(writer: Any) -> None:
        writer.add_name(name)
        writer.add_context_length(int(config.get("max_position_embeddings", 2048)))
        writer.add_embedding_length(int(config["hidden_size"]))
        writer.add_block_count(int(config["num_hidden_layers"]))
        writer.add_feed_forward_length(int(config["intermediate_size"]))
        writer.add_head_count(heads)
        writer.add_head_count_kv(_kv_heads(config))
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_layer_norm_rms_eps(float(config.get("rms_norm_eps", 1e-6)))
        writer.add_vocab_size(int(config["vocab_size"]))
        writer.add_rope_dimension_count(head_dim)
        writer.add_rope_freq_base(float(rope.get("rope_theta", 10000.0)))
        if rope["rope_type"] == "linear":
            writer.add_rope_scaling_type(gguf_package().RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(float(rope["factor"]))
        if tokenizer_dir is None:
            writer.add_tokenizer_model("none")
        else:
            _add_vocabulary(writer, tokenizer_dir, int(config["vocab_size"]), pre_tokenizer)

    def encoded() -> Iterator[tuple[str, npt.NDArray[Any], str]]:
        if rope["rope_type"] == "llama3":
            yield "rope_freqs.weight", _llama3_factors(rope, head_dim), "F32"
        for tensor, value in _renamed(config, tensors):
            yield (tensor, *encode_tensor(value, float_as, tensor))

    return write_gguf(path, "llama", describe, encoded())


def _renamed(config: Mapping[str, Any], tensors: Tensors) -> Iterator[tuple[str, Array | LinearWeight]]:
    """The tensors under their GGUF names, query and key rows in the order that GGUF's rotary embedding takes them."""
    package = gguf_package()
    names = package.get_tensor_name_map(package.MODEL_ARCH.LLAMA, int(config["num_hidden_layers"]))
    for name, value in tensors.items() if isinstance(tensors, Mapping) else tensors:
        # A buffer some older checkpoints hold; readers compute it from the configuration.
        if name.endswith("rotary_emb.inv_freq"):
            continue
        layer, _, suffix = name.rpartition(".")
        if isinstance(value, LinearWeight) and suffix != "weight":
            layer, suffix = name, "weight"
        found = names.get_name(layer)
        if found is None or suffix not in ("weight", "bias"):
            raise FormatError(f"tensor {name!r} has no place in the architecture 'llama' of GGUF files")
        heads = {"q_proj": int(config["num_attention_heads"]), "k_proj": _kv_heads(config)}.get(
            layer.rpartition(".")[2]
        )
        rows = None if heads is None else _interleaved(_rows(value), heads, name)
        if isinstance(value, LinearWeight):
            weight = value if rows is None else _take_rows(value, rows)
            yield f"{found}.weight", weight
            if weight.bias is not None:
                yield f"{found}.bias", weight.bias
        else:
            yield f"{found}.{suffix}", value if rows is None else _take(value, rows)


def _rows(value: Array | LinearWeight) -> int:
    return value.out_features if isinstance(value, LinearWeight) else int(value.shape[0])


def _interleaved(rows: int, heads: int, name: str) -> npt.NDArray[np.int64]:
    """Rows so that the two halves of a head, which are rotated together, alternate."""
    if rows % (2 * heads):
        raise FormatError(f"tensor {name!r} has {rows} rows, which {heads} heads cannot share")
    return np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).reshape(-1)


def _take(x: Array, rows: npt.NDArray[np.int64]) -> Array:
    xp = array_namespace(x)
    return xp.take(x, xp.asarray(rows, device=device(x)), axis=0)


def _take_rows(weight: LinearWeight, rows: npt.NDArray[np.int64]) -> LinearWeight:
    return replace(
        weight,
        codes=_take(weight.codes, rows),
        scale=_take(weight.scale, rows),
        zero_point=None if weight.zero_point is None else _take(weight.zero_point, rows),
        bias=None if weight.bias is None else _take(weight.bias, rows),
    )


def _kv_heads(config: Mapping[str, Any]) -> int:
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def _check(config: Mapping[str, Any]) -> None:
    kind = config.get("model_type", "llama")
    if kind not in MODEL_TYPES:
        raise FormatError(f"models of the types {', '.join(MODEL_TYPES)} are exported to GGUF, not {kind!r}")
    missing = [key for key in _REQUIRED if key not in config]
    if missing:
        raise FormatError(f"the configuration of a Llama model has {', '.join(missing)}; this one does not")


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary embedding's parameters, wherever the configuration keeps them."""
    told = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = {"rope_theta": config.get("rope_theta", 10000.0), **told}
    rope["rope_type"] = told.get("rope_type") or told.get("type") or "default"
    if rope["rope_type"] not in ("default", "linear", "llama3"):
        raise FormatError(f"a rotary embedding of the type {rope['rope_type']!r} is not exported to GGUF")
    return rope


def _llama3_factors(rope: Mapping[str, Any], head_dim: int) -> npt.NDArray[np.float32]:
    """What Llama 3.1 divides each rotary frequency by: 1 for short waves, ``factor`` for long ones, between in between."""
    context, factor = float(rope["original_max_position_embeddings"]), float(rope["factor"])
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    frequency = float(rope["rope_theta"]) ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = context * frequency / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0.0, 1.0)
    factors: npt.NDArray[np.float32] = (1 / ((1 - share) / factor + share)).astype(np.float32)
    return factors


# -- the vocabulary, from tokenizer.json ------------------------------------------------------------------------------


def _add_vocabulary(writer: Any, folder: str | Path, size: int, pre_tokenizer: str | None = None) -> None:
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
