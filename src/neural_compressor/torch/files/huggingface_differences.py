"""Messages about a Hugging Face checkpoint: where its readers compute otherwise than the model, or do not read it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from neural_compressor.formats import LinearSpec
from neural_compressor.formats.base import Spec
from neural_compressor.formats.fp8 import has_powers_of_two
from neural_compressor.schemes import PerTensor, Scaling
from neural_compressor.torch.modules import QuantModule
from neural_compressor.torch.modules.matrix_stack import QuantMatrixStack
from neural_compressor.torch.modules.weighted import FLOATS

logger = logging.getLogger("neural_compressor")
FOR_ENGINES = ("compressed-tensors", "fp8", "modelopt")
"""Layouts whose readers multiply layers that share an input as one matrix."""


def tell_differences(
    layers: Mapping[str, QuantModule], specs: Mapping[str, Spec], layout: str, floats: torch.dtype
) -> None:
    """Say where readers compute otherwise than the layers here, or do not read them; ``specs`` are how these are stored."""
    _tell_own_scales(layers, layout)
    _tell_inputs_by_tensor(layers)
    _tell_gptq(specs, layout)
    _tell_layout_of_engines(layers, layout)
    _tell_scales_of_transformers(layers)
    _tell_experts(layers)
    _tell_own_rounding(layers, floats)


def tell_rounded_anew(groups: Iterable[Mapping[str, nn.Module]]) -> None:
    """Say which layers that engines multiply as one have fp8 weights with a scale each: engines take the largest for all."""
    found = []
    for layers in groups:
        scales = [
            float(m.get_buffer("weight_scale"))
            for m in layers.values()
            if isinstance(m, QuantModule) and _is_fp8_by_tensor(m)
        ]
        # By a power of two codes only move, but for the smallest.
        if any(math.frexp(scale / max(scales))[0] != 0.5 for scale in scales):
            found.append(", ".join(layers))
    if found:
        logger.warning(
            "engines multiply layers that read one input as one matrix with one scale, and round fp8 weights with a scale "
            "each anew, to the largest: results of %d matrices differ by about another such rounding (%s). "
            "w_granularity='per_channel', in layout='compressed-tensors', is read as it is stored",
            len(found),
            found[0],
        )


def _is_fp8_by_tensor(module: QuantModule) -> bool:
    weight = module.scheme.weight
    return weight is not None and weight.dtype.name == "fp8_e4m3" and isinstance(weight.granularity, PerTensor)


def _tell_own_scales(layers: Mapping[str, QuantModule], layout: str) -> None:
    """Say which layers scale their inputs by another rule than engines know, or than the file tells them."""
    schemes = {name: module.scheme for name, module in layers.items() if module.scheme.mode == "dynamic"}
    told = {name for name, scheme in schemes.items() if layout == "fp8" and has_powers_of_two(scheme)}
    activations = {name: scheme.activation for name, scheme in schemes.items() if name not in told}
    own = [name for name, each in activations.items() if each is not None and each.scaling not in (None, Scaling())]
    if own:
        logger.warning(
            "engines divide each input by its largest value over that of the type; here the scales of inputs are rounded or "
            "leave headroom, so results of an engine differ in the last digits from those of %d layers (%s, ...)",
            len(own),
            own[0],
        )


def _tell_inputs_by_tensor(layers: Mapping[str, QuantModule]) -> None:
    """Say which layers take one scale for all tokens from each input, where engines take one a token."""
    activations = {name: module.scheme.activation for name, module in layers.items() if module.scheme.mode == "dynamic"}
    own = [name for name, each in activations.items() if each is not None and isinstance(each.granularity, PerTensor)]
    if own:
        logger.warning(
            "engines take a scale for each token from inputs that have no stored one, or refuse other int8 inputs (vLLM, "
            "SGLang); %d layers (%s, ...) take one for all tokens. act_granularity='per_token' does as engines do",
            len(own),
            own[0],
        )


def _tell_gptq(specs: Mapping[str, Spec], layout: str) -> None:
    """Say which GPTQ files vLLM does not read."""
    found = {name: spec for name, spec in specs.items() if isinstance(spec, LinearSpec)}
    if not layout.startswith("gptq"):
        return
    if any(spec.act_order and spec.group_size != -1 for spec in found.values()):
        logger.warning(
            "vLLM (from 0.32 on, if not before) refuses GPTQ files whose groups follow an activation order; "
            "GPTQConfig(act_order=True, static_groups=True) has none in its files"
        )
    other = [name for name, spec in found.items() if not spec.symmetric or spec.bits not in (4, 8)]
    if other:
        logger.warning(
            "vLLM reads GPTQ files of symmetric weights in 4 or 8 bits, and not %s (%d layers): it reads "
            "layout='compressed-tensors' with these, where asymmetric weights have 4 or 8 bits",
            other[0],
            len(other),
        )


def _tell_layout_of_engines(layers: Mapping[str, QuantModule], layout: str) -> None:
    """Say that transformers takes codes for weights in a layout that only engines read."""
    if layout == "modelopt":
        logger.warning(
            "serving engines and load() read the layout 'modelopt'; transformers does not, and loads the codes as if they "
            "were weights. It reads layout='compressed-tensors'"
        )
    elif layout == "fp8" and any(_has_one_scale(module) for module in layers.values()):
        logger.warning(
            "serving engines and load() read the one scale a tensor of the layout 'fp8' (weight_scale, input_scale); "
            "transformers has other names for them, and computes without. It reads layout='compressed-tensors'"
        )


def _has_one_scale(module: QuantModule) -> bool:
    weight = module.scheme.weight
    return weight is not None and isinstance(weight.granularity, PerTensor)


def _tell_scales_of_transformers(layers: Mapping[str, QuantModule]) -> None:
    """Say that transformers, by compressed-tensors, has other scales for inputs than engines or OCP MX."""
    found = (module.scheme.activation for module in layers.values() if module.scheme.mode == "dynamic")
    schemes = [scheme for scheme in found if scheme is not None]
    if any(scheme.dtype.is_integer and scheme.dtype.scale_type is None for scheme in schemes):
        logger.warning(
            "int8 inputs by token are divided by their largest value over 127, as engines do; transformers "
            "(compressed-tensors) takes 127.5, so its results differ in the last digits"
        )
    if any(scheme.dtype.scale_type is not None and not scheme.dtype.has_tensor_scale for scheme in schemes):
        logger.warning(
            "scales of MX inputs are those of OCP MX, the power of two below the largest value of a block; transformers "
            "(compressed-tensors) takes the one above where a value is close to it, so its results differ"
        )


def tell_tied_head(model: nn.Module, settings: Mapping[str, Any]) -> None:
    """Say so where transformers ties an output head that is quantized, whatever its configuration says (T5)."""
    config: Any = model.config
    if getattr(type(config).from_dict(dict(settings)), "tie_word_embeddings", False):
        logger.warning(
            "transformers ties the output head of every %s to its embedding, and may fail to load one that is quantized; "
            "leave it in float with set_local and RTNConfig(dtype='fp32')",
            type(model).__name__,
        )


def tell_quantized_head(name: str, layout: str) -> None:
    if layout in FOR_ENGINES:
        logger.warning(
            "the output head %r is quantized; many releases of serving engines look for one in float, and fail or give "
            "nonsense. set_local(%r, RTNConfig(dtype='fp32')) leaves it in float",
            name,
            name,
        )


def _tell_experts(layers: Mapping[str, QuantModule]) -> None:
    """Say what transformers does not read of experts, which it puts into one parameter."""
    schemes = {name: module.scheme for name, module in layers.items() if isinstance(module, QuantMatrixStack)}
    found = {scheme.precision for scheme in schemes.values()}
    if "nvfp4" in found:
        logger.warning(
            "transformers drops the global scales of experts in NVFP4 (%s, ...) when it puts them into one parameter, and "
            "then computes something else; serving engines and load() read them. MXFP4 has no such scale",
            next(iter(schemes)),
        )
    if any(precision.startswith("mxfp8") for precision in found):
        logger.warning(
            "transformers does not load experts in MXFP8 (%s, ...); serving engines and load() do. It loads them in MXFP4, "
            "or in fp8 with a scale a channel",
            next(iter(schemes)),
        )
    if any(precision == "fp8_e4m3" for precision in found):
        logger.warning(
            "vLLM does not read experts in fp8 with inputs in float (%s, ...); it reads them in MXFP8, and in integers",
            next(iter(schemes)),
        )
    if len({scheme.weight for scheme in schemes.values()}) > 1:
        logger.warning(
            "transformers takes the experts of all layers to be quantized alike, and these are not (%s, ...): it does not "
            "load them; serving engines and load() do",
            next(iter(schemes)),
        )


def _tell_own_rounding(layers: Mapping[str, QuantModule], result: torch.dtype) -> None:
    """Say which layers round inputs or results in a way that no layout has a place for."""
    rounded = [
        name
        for name, module in layers.items()
        if (activation := module.scheme.activation) is not None and activation.rounding != "even"
    ]
    if rounded:
        logger.warning(
            "engines round inputs half way between two values to the even one, and a checkpoint does not say otherwise; "
            "their results differ from those of %d layers (%s, ...), the more the fewer bits inputs have. "
            "round_method='even' does as engines do",
            len(rounded),
            rounded[0],
        )
    outputs = {name: module.scheme.output.dtype for name, module in layers.items() if module.scheme.output is not None}
    narrowed = {name: kind.name for name, kind in outputs.items() if FLOATS[kind.name] not in (result, torch.float32)}
    if narrowed:
        first, kind_of_first = next(iter(narrowed.items()))
        logger.warning(
            "engines give results in the float type of the model, and a checkpoint does not say otherwise; %d layers "
            "(%s, ...) round theirs to %s. out_dtype=%r does as engines do",
            len(narrowed),
            first,
            kind_of_first,
            str(result).removeprefix("torch."),
        )
