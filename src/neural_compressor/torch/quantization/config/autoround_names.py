"""Names that AutoRound has elsewhere: those that stand for rules about some layers, and those that are refused, with why."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from neural_compressor.config.validators import as_list, listed
from neural_compressor.errors import ConfigError
from neural_compressor.torch.quantization.config.fields import FLOAT

_DATA = (
    "data runs through the prepared model: get_dataloader(tokenizer, dataset_name=texts) of "
    "neural_compressor.torch.algorithms.weight_only.autoround makes batches of local texts"
)
_FILES = "files are written by save(model, folder, format='huggingface', layout=...)"
_DEVICE = "a model is quantized where it is: move it before prepare"
_AUTO_SCHEME = "which layer gets how many bits is found by autotune over a config_set, or said with set_local"
_IMAGES = "calibration data is what the model is called with, images too"
_SAME = (True, False, None)

NOT_HERE: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "tokenizer": ((None,), _DATA),
    "dataset": ((None,), _DATA),
    "truncation": ((None, False), _DATA),
    "export_format": ((None,), _FILES),
    "output_dir": ((None,), _FILES),
    "reloading": ((None, True), _FILES),
    "model_free": ((None, False), "the model is given; quantized_checkpoint streams one that is larger than memory"),
    "target_bits": ((None,), _AUTO_SCHEME),
    "options": ((None,), _AUTO_SCHEME),
    "shared_layers": ((None,), _AUTO_SCHEME),
    "static_kv_dtype": ((None,), "scales of keys and values are found by save(format='huggingface', kv_cache=batches)"),
    "static_attention_dtype": ((None,), "attention computes in float; FP8Config(kv_cache=True) rounds keys and values"),
    "device_map": ((None,), _DEVICE),
    "device": ((None,), _DEVICE),
    "enable_torch_compile": ((None, False), "training is not compiled; convert's result may be, with torch.compile"),
    "nblocks": ((None, 1), "one block is trained at a time"),
    "sampler": ((None, "rand"), "samples are drawn at random, by the seed"),
    "lr_scheduler": ((None,), "the learning rate falls linearly to 0"),
    "disable_opt_rtn": ((None, False), "with iters=0 scales are searched; RTNConfig rounds without"),
    "dynamic_max_gap": ((None, -1), "all iters steps are made"),
    "super_bits": ((None,), "scales stay floats; RTNConfig and GPTQConfig have use_double_quant"),
    "super_group_size": ((None,), "scales stay floats; RTNConfig and GPTQConfig have use_double_quant"),
    **dict.fromkeys(("processor", "image_processor", "template", "extra_data_dir"), ((None,), _IMAGES)),
    **dict.fromkeys(
        ("is_mllm", "quant_nontext_module"), ((None, False), "say which layers with white_list or set_local")
    ),
    "to_quant_block_names": ((None,), "say which layers with white_list"),
    # Blocks are worked on one at a time in any case, and results do not depend on it.
    **dict.fromkeys(("low_gpu_mem_usage", "low_cpu_mem_usage", "use_layer_wise"), (_SAME, "")),
}
"""By name, the values that ask for nothing else than what is done, and why another is refused."""

_IGNORED = ("ignore_layers", "fp_layers")
_LAYER_FIELDS = {"sym": "use_sym", "data_type": "dtype"}


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` without the names in :data:`NOT_HERE`; one that asks for something is an error."""
    for name in [name for name in values if name in NOT_HERE]:
        admitted, reason = NOT_HERE[name]
        value = values.pop(name)
        if not any(value is each or (type(value) is type(each) and value == each) for each in admitted):
            said = reason or f"expected one of {listed(admitted)}"
            raise ConfigError(f"AutoRoundConfig.{name}: got {value!r}: {said}")
    return values


def layer_rules(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Fields by selector of layers that ``layer_config`` and ``ignore_layers`` ask for, which are taken out of ``values``.

    >>> layer_rules({"ignore_layers": "lm_head", "layer_config": {"fc1": {"bits": 8, "sym": False}}})
    {'fc1': {'bits': 8, 'use_sym': False}, '.*lm_head.*': {'dtype': 'fp32'}}
    """
    rules: dict[str, dict[str, Any]] = {}
    given = values.pop("layer_config", None) or {}
    if not isinstance(given, Mapping) or not all(isinstance(each, Mapping) for each in given.values()):
        raise ConfigError(
            f"AutoRoundConfig.layer_config: got {given!r}, expected {{name of a layer: {{'bits': ..., ...}}}}"
        )
    for layer, fields in given.items():
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
