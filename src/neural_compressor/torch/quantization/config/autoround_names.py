"""Fields of AutoRound as other programs have them: rules about some layers, data and files, and those that are refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import torch

from neural_compressor.config.validators import as_list, listed
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.torch.modules.weighted import FLOATS
from neural_compressor.torch.quantization.config.fields import FLOAT
from neural_compressor.torch.quantization.texts import check_dataset

logger = logging.getLogger("neural_compressor")

_IMAGES = "calibration data is what the model is called with, images too"
_SAME = (True, False, None)

NOT_HERE: Mapping[str, tuple[tuple[Any, ...], str]] = {
    # The result is the model that was quantized, and what is longer than seqlen is cut, whatever these say.
    **dict.fromkeys(("reloading", "truncation"), (_SAME, "")),
    "model_free": (
        (None, False),
        "that is nearest rounding: RTNConfig(model_path=...) on an empty model reads layer by layer",
    ),
    **dict.fromkeys(("enable_norm_bias_tuning", "enable_alg_ext"), ((None, False), "weights alone are trained")),
    **dict.fromkeys(("processor", "image_processor", "template", "extra_data_dir"), ((None,), _IMAGES)),
    **dict.fromkeys(
        ("is_mllm", "quant_nontext_module"), ((None, False), "say which layers with white_list or set_local")
    ),
    # Blocks are worked on one at a time in any case, and results do not depend on it.
    **dict.fromkeys(("low_gpu_mem_usage", "low_cpu_mem_usage", "use_layer_wise"), (_SAME, "")),
}
"""By name, the values that ask for nothing else than what is done, and why another is refused."""

_LAYOUTS = {
    "gptq": ("auto_gptq", "auto_round:auto_gptq", "auto_round:gptq", "auto_round"),
    "awq": ("auto_awq", "auto_round:auto_awq", "auto_round:awq"),
    "compressed-tensors": ("llm_compressor", "auto_round:llm_compressor"),
    "fp8": (),
}
EXPORTS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"layout": layout} for layout, others in _LAYOUTS.items() for name in (layout, *others)},
    "gguf": {"format": "gguf"},
}
"""What ``save`` is told for each ``export_format``. The tensors of ``auto_round`` are those of GPTQ, of integer weights."""

BUDGET_FIELDS = ("target_bits", "options", "shared_layers")
"""Fields in whose place rules for layers come, once there is a model."""
RUN_FIELDS = (
    *("tokenizer", "dataset", "export_format", "output_dir", "static_kv_dtype", "static_attention_dtype"),
    *("scale_dtype", "device_map"),
    *BUDGET_FIELDS,
)
"""Fields that speak of a run over the whole model, and not of its layers."""
_FP8 = ("fp8", "fp8_e4m3", "float8_e4m3fn")


def written_format(value: Any) -> str | None:
    """A format of files that can be written."""
    if value is None or (isinstance(value, str) and value in EXPORTS):
        return value
    more = "; a GGUF file has the types that bits and group_size say: 'gguf'" if str(value).startswith("gguf") else ""
    raise ConfigError(f"got {value!r}, which is not written here{more}; {close_matches(str(value), EXPORTS)}")


def cache_dtype(value: Any) -> str | None:
    """The type of keys and values in a cache, or of queries too: fp8, of which checkpoints have scales."""
    name = str(value).removeprefix("torch.")
    if value is None or name in _FP8:
        return None if value is None else "fp8"
    raise ConfigError(f"got {value!r}, expected 'fp8', of which checkpoints have scales")


def average_bits(value: Any) -> float:
    """A budget of bits a weight."""
    if type(value) in (int, float) and 1 <= value <= 16:
        return float(value)
    raise ConfigError(f"got {value!r}, expected the bits that a weight may have on average, 1 to 16")


def layer_groups(value: Any) -> tuple[tuple[str, ...], ...] | None:
    """Groups of layers by the ends of their names."""
    if value is None:
        return None
    groups = (
        tuple(tuple(each) if isinstance(each, list | tuple) else () for each in value)
        if (isinstance(value, list | tuple))
        else ()
    )
    if (groups or value == []) and all(
        group and all(isinstance(text, str) and text for text in group) for group in groups
    ):
        return groups
    raise ConfigError(f"got {value!r}, expected groups of layers, as in [['q_proj', 'k_proj', 'v_proj']]")


def tokenizer_of(value: Any) -> Any:
    """What makes tokens of texts, or the folder where it is."""
    # Whether the folder is there is asked where it is read: a configuration may come from another machine.
    is_path = isinstance(value, str | PathLike) and bool(str(value)) and "\0" not in str(value)
    if value is None or is_path or (callable(value) and not isinstance(value, type)):
        return value
    raise ConfigError(f"got {value!r}, expected a tokenizer, or the folder where it is (nothing is fetched from a hub)")


def scale_type(value: Any) -> str | None:
    """The type in which scales are held; None is fp32."""
    for name, kind in FLOATS.items():
        if value in (name, kind, str(kind).removeprefix("torch."), str(kind)):
            return None if name == "fp32" else name
    if value is None:
        return None
    raise ConfigError(f"got {value!r}, expected one of {', '.join(FLOATS)} for scales")


def device_of(value: Any) -> str | None:
    """The device that a model is quantized on, as text; a mapping, or text with commas, may name one alone.

    >>> device_of(0), device_of("cuda:1"), device_of({"": "cpu"})
    ('0', 'cuda:1', 'cpu')
    """
    if value is None:
        return None
    many = value.values() if isinstance(value, Mapping) else value.split(",") if isinstance(value, str) else [value]
    if not all(isinstance(each, str | torch.device) or (type(each) is int and each >= 0) for each in many):
        raise ConfigError(f"got {value!r}, expected a device, as in 'cpu', 'auto', 0 or 'cuda:0'")
    names = {str(each).strip() for each in many}
    if len(names) != 1 or "" in names:
        raise ConfigError(f"got {value!r}, expected one, as in 'cuda:0': a model is quantized on one device")
    return names.pop()


def data_of(value: Any) -> Any:
    """Data to calibrate on; a list is held as a tuple, as it is no choice of values."""
    if value is not None:
        check_dataset(value)
    return tuple(value) if isinstance(value, list) else value


SAMPLERS = {"rand": "rand", "seq": "seq", "sequential": "seq"}


def sampler(value: Any) -> str:
    """The order in which samples are seen."""
    if isinstance(value, str) and value in SAMPLERS:
        return SAMPLERS[value]
    raise ConfigError(f"got {value!r}, which is no order of samples; {close_matches(str(value), SAMPLERS)}")


_NONE_IS_USUAL = ("nblocks", "dynamic_max_gap", "sampler", "disable_opt_rtn")
_IGNORED = ("ignore_layers", "fp_layers")
_LAYER_FIELDS = {"sym": "use_sym", "data_type": "dtype"}


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` without the names in :data:`NOT_HERE`; one that asks for something is an error."""
    if values.pop("enable_torch_compile", None):
        logger.warning(
            "AutoRoundConfig: enable_torch_compile is not read: training is not compiled, with the same result"
        )
    for name in [name for name in _NONE_IS_USUAL if values.get(name, "") is None]:
        del values[name]
    for name in [name for name in values if name in NOT_HERE]:
        admitted, reason = NOT_HERE[name]
        value = values.pop(name)
        if not any(value is each or (type(value) is type(each) and value == each) for each in admitted):
            said = reason or f"expected one of {listed(admitted)}"
            raise ConfigError(f"AutoRoundConfig.{name}: got {value!r}: {said}")
    return values


def block_selectors(values: dict[str, Any]) -> None:
    """Make a white list of ``to_quant_block_names``: names of blocks or lists of blocks, nested or with commas.

    >>> values = {"to_quant_block_names": [["model.layers.0"], "visual.blocks"]}
    >>> block_selectors(values)
    >>> values
    {'white_list': ['model\\\\.layers\\\\.0(\\\\..*)?', 'visual\\\\.blocks(\\\\..*)?']}
    """
    given = values.pop("to_quant_block_names", None)
    if given is None:
        return
    names = list(_block_names(given))
    if not names:
        raise ConfigError(f"AutoRoundConfig.to_quant_block_names: got {given!r}, expected names, as in 'model.layers'")
    for other in ("white_list", "quant_lm_head"):
        if values.get(other):
            raise ConfigError(
                f"AutoRoundConfig.to_quant_block_names: with it layers outside the blocks stay in float, and {other} "
                "speaks of others; leave out one of them, and name more layers in layer_config"
            )
    values["white_list"] = [rf"{re.escape(name)}(\..*)?" for name in names]


def _block_names(given: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield from filter(None, map(str.strip, given.split(",")))
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _block_names(each)
    else:
        raise ConfigError(
            f"AutoRoundConfig.to_quant_block_names: got {given!r}, expected names of blocks, as in 'model.layers'"
        )


def layer_rules(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Fields by selector of layers that ``layer_config`` and ``ignore_layers`` ask for, which are taken out of ``values``.

    >>> layer_rules({"ignore_layers": "lm_head", "layer_config": {"fc1": {"bits": 8, "sym": False}}})
    {'fc1': {'bits': 8, 'use_sym': False}, '.*lm_head.*': {'dtype': 'fp32'}}
    """
    rules: dict[str, dict[str, Any]] = {}
    given = values.pop("layer_config", None) or {}
    if not isinstance(given, Mapping) or not all(isinstance(each, Mapping | str) for each in given.values()):
        raise ConfigError(
            f"AutoRoundConfig.layer_config: got {given!r}, expected {{name of a layer: {{'bits': ..., ...}}}}, or the name "
            "of a scheme in place of the fields"
        )
    for layer, said in given.items():
        fields: Mapping[str, Any] = {"scheme": said} if isinstance(said, str) else said
        named = {_LAYER_FIELDS.get(name, name): value for name, value in fields.items()}
        if isinstance(named.get("bits"), int) and named["bits"] >= 16:
            named = {"dtype": FLOAT}
        rules[layer] = named
    for name in _IGNORED:
        layers = values.pop(name, None) or []
        for text in layers.split(",") if isinstance(layers, str) else as_list(layers):
            if not isinstance(text, str):
                raise ConfigError(
                    f"AutoRoundConfig.{name}: got {text!r}, expected names of layers, separated by commas"
                )
            if text.strip():
                rules[f".*{re.escape(text.strip())}.*"] = {"dtype": FLOAT}
    return rules
