"""Quantized Llama models of Hugging Face as GGUF files, for llama.cpp and what is built on it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.formats import GGUF, LinearWeight, export_llama_gguf
from neural_compressor.formats.gguf_blocks import BLOCK
from neural_compressor.paths import check_writable, output_file
from neural_compressor.schemes import PerGroup, TensorScheme, quantize
from neural_compressor.torch.files.checkpoint import unique_state
from neural_compressor.torch.modules import WeightOnlyLinear

logger = logging.getLogger("neural_compressor")
_Q8_0 = TensorScheme(dtype("int8"), granularity=PerGroup(BLOCK))


def write_gguf_model(
    model: nn.Module,
    path: str | Path,
    tokenizer: Any = None,
    *,
    float_as: str = "F16",
    name: str = "model",
    pre_tokenizer: str | None = None,
) -> dict[str, str]:
    """Write ``model`` as the GGUF file ``path``, or ``model.gguf`` in the folder ``path``; returns the types of the tensors.

    Integer codes go into blocks of 32 as they are: symmetric ones of up to 4 bits into Q4_0, asymmetric ones into Q4_1,
    wider ones into Q8_0. Only their scales are rounded, to float16. A layer that no block holds (nf4, a group size of 16,
    inputs that are scaled, turned or put in order, zero points that are no integers) is dequantized and rounded to Q8_0,
    and a warning names it. What is float becomes ``float_as``, as do layers whose inputs make no whole blocks.
    ``tokenizer`` is a folder with a ``tokenizer.json``, or a tokenizer of transformers; without one the file has no
    vocabulary.
    """
    config, file = _config_and_file(model, path)
    rounded: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if hasattr(tokenizer, "save_pretrained"):
            tokenizer.save_pretrained(scratch)
            tokenizer = scratch
        types = export_llama_gguf(
            file,
            config.to_dict(),
            _tensors(model, rounded),
            tokenizer,
            float_as=float_as,
            name=name,
            pre_tokenizer=pre_tokenizer,
        )
    for reason, layers in rounded.items():
        logger.warning("rounded once more for the GGUF file, because %s: %s", reason, ", ".join(layers))
    return types


def check_gguf(model: nn.Module, path: str | Path) -> None:
    """Refuse what :func:`write_gguf_model` will, as far as it is known before ``model`` is quantized."""
    check_writable(output_file(_config_and_file(model, path)[1]))


def _config_and_file(model: nn.Module, path: str | Path) -> tuple[Any, Path]:
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise ConfigError(f"a {type(model).__name__} has no transformers config, which a GGUF file is made from")
    path = Path(path)
    return config, path if path.suffix == ".gguf" else path / "model.gguf"


def _tensors(model: nn.Module, rounded: dict[str, list[str]]) -> Iterator[tuple[str, Tensor | LinearWeight]]:
    """The tensors by name, quantized layers one at a time; adds to ``rounded`` which are not as they were, by reason."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, WeightOnlyLinear)}
    if not layers:
        raise ConfigError("the model has no weight-only layer; quantize it first")
    for name, tensor in unique_state(model)[0].items():
        if name.rpartition(".")[0] not in layers:
            yield name, tensor.detach()
    for name, layer in layers.items():
        reason = _why_not(layer)
        if reason is None:
            yield name, layer.linear_weight()
            continue
        rounded.setdefault(reason, []).append(name)
        values = layer.dequantized_weight()
        if layer.in_features % BLOCK:
            yield f"{name}.weight", values
        else:
            yield name, LinearWeight.from_quantized(quantize(values, _Q8_0))
        if layer.bias is not None:
            yield f"{name}.bias", layer.bias


def _why_not(layer: WeightOnlyLinear) -> str | None:
    """Why no block holds the codes of a layer; None where one does."""
    kind = layer.weight_scheme.dtype
    if not kind.is_integer:
        return f"its blocks hold integers, not {kind.name}"
    try:
        return GGUF().why_not(layer.linear_weight())
    except FormatError as error:
        return str(error)
