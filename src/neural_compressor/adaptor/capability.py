"""Configs of the ops of a model, made of the framework YAML."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.adaptor.tensor_options import OpConfig
from neural_compressor.schemes import OpKey

#: The quantized precision that comes first where an op has several.
DEFAULT_PRECISION = "int8"
#: Float precisions, cheapest first; fp32 stands beside every op, listed or not.
FLOAT_PRECISIONS = ("bf16", "fp16", "fp32")


def float_config(precision: str, has_weight: bool = True) -> OpConfig:
    """The config of an op kept in a float precision.

    >>> float_config("bf16")
    {'weight': {'dtype': 'bf16'}, 'activation': {'dtype': 'bf16'}}
    """
    tensors = ("weight", "activation") if has_weight else ("activation",)
    return {tensor: {"dtype": precision} for tensor in tensors}


def op_configs(query: QueryBackendCapability, op_type: str, has_weight: bool = True) -> list[OpConfig]:
    """What an op of type ``op_type`` can run with.

    One config for each quantized precision and mode, int8 first and the others in the order of the YAML, then the float
    precisions the YAML lists for the op type, then fp32. Configs of an op type without a weight have no ``'weight'``:
    where the YAML gives none, or ``has_weight`` says so.
    """
    capabilities = query.entry.capabilities
    configs: list[OpConfig] = []
    for precision in sorted(capabilities, key=lambda name: name != DEFAULT_PRECISION):
        if not query.runs_in(op_type, precision):
            continue
        for mode, ops in capabilities[precision].items():
            found = ops.get(op_type, ops.get("*"))
            if found is not None and (has_weight or mode != "weight_only"):
                kept = {key: value for key, value in found.items() if has_weight or key != "weight"}
                configs.append(copy.deepcopy(kept))
    if configs:
        has_weight = any("weight" in config for config in configs)
    floats = [name for name in FLOAT_PRECISIONS if name == "fp32" or query.runs_in(op_type, name)]
    return configs + [float_config(name, has_weight) for name in floats]


def is_float_config(config: Mapping[str, Any]) -> bool:
    """Whether a config keeps the op in a float precision.

    >>> is_float_config(float_config("fp32"))
    True
    """
    tensors = [config[tensor] for tensor in ("weight", "activation") if tensor in config]
    return all("quant_mode" not in t and _options(t["dtype"]) <= set(FLOAT_PRECISIONS) for t in tensors)


def get_optype_wise_ability(quantizable_op_details: Mapping[OpKey, Sequence[OpConfig]]) -> dict[str, OpConfig]:
    """The op-type view of the op-wise details: for each op type its first quantized config, else its first config.

    >>> get_optype_wise_ability({("conv1", "Conv2d"): [{"activation": {"dtype": "int8"}}, float_config("fp32")]})
    {'Conv2d': {'activation': {'dtype': 'int8'}}}
    """
    ability: dict[str, OpConfig] = {}
    for (_, op_type), configs in quantizable_op_details.items():
        first = next((config for config in configs if not is_float_config(config)), configs[0] if configs else None)
        if first is not None and (op_type not in ability or is_float_config(ability[op_type])):
            ability[op_type] = copy.deepcopy(first)
    return ability


def _options(value: Any) -> set[Any]:
    return set(value) if isinstance(value, (list, tuple)) else {value}
