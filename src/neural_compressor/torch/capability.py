"""The framework YAML of eager PyTorch on CPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import nn

import neural_compressor.adaptor
from neural_compressor.adaptor.capability import is_float_config, op_configs
from neural_compressor.adaptor.query import QueryBackendCapability
from neural_compressor.adaptor.tensor_options import OpConfig
from neural_compressor.config.op_options import op_options
from neural_compressor.schemes import OpKey
from neural_compressor.torch.modules.kernels.integer import safe_weight
from neural_compressor.torch.structure.ops import op_classes

YAML = Path(neural_compressor.adaptor.__file__).with_name("pytorch_cpu.yaml")


def on_this_cpu(op_type: str, config: OpConfig) -> list[OpConfig]:
    """``config`` with weights on which the kernels of this machine are exact.

    Where these add products in 16 bits (no VNNI), 8-bit weights are safe in pairs if they are symmetric, and of 7 bits
    otherwise; each of its weight types then has a config of its own.
    """
    if config["activation"].get("quant_mode") == "weight_only":
        return [config]  # no kernel multiplies it with integers
    # How the range of an activation is found is nothing to a kernel.
    alike = {**config, "activation": {name: v for name, v in config["activation"].items() if name != "algorithm"}}
    options = [option for option in op_options([alike]) if option.weight is not None]
    safe = {option.weight: safe_weight(op_type, option) for option in options}
    if all(before == after for before, after in safe.items()):
        return [config]
    found: dict[tuple[str, str], OpConfig] = {}
    for after in safe.values():
        assert after is not None
        fields = after.to_dict()
        flags = {flag: [True] for flag in ("pair_safe", "reduce_range") if flag in fields}
        kind = {"dtype": [fields["dtype"]], "scheme": [fields["scheme"]]}
        found[fields["dtype"], fields["scheme"]] = {**config, "weight": {**config["weight"], **kind, **flags}}
    return list(found.values())


def opwise(query: QueryBackendCapability, ops: Mapping[OpKey, nn.Module]) -> dict[OpKey, list[OpConfig]]:
    """What each of ``ops`` can run with here, in the form of the framework YAML; ops of one type have one list.

    A linear layer of another class than Linear, and a parameter with the matrices of experts, can have their weights
    quantized alone, as a Linear can.
    """
    classes, by_type = op_classes(), dict[tuple[str, bool], list[OpConfig]]()
    for (_, kind), module in ops.items():
        known = type(module) is classes.get(kind)
        if (kind, known) in by_type:
            continue
        name = kind if known else "Linear"
        configs = [safe for config in op_configs(query, name) for safe in on_this_cpu(name, config)]
        by_type[kind, known] = [c for c in configs if known or _is_for_weights_alone(c)]
    return {key: by_type[key[1], type(m) is classes.get(key[1])] for key, m in ops.items()}


def _is_for_weights_alone(config: OpConfig) -> bool:
    if is_float_config(config):
        return bool(config["activation"]["dtype"] == "fp32")
    return bool(config["activation"].get("quant_mode") == "weight_only")


class PyTorchQuery(QueryBackendCapability):
    """Reads ``adaptor/pytorch_cpu.yaml``, with a user's file laid over it."""

    def __init__(self, overlay: str | Path | None = None) -> None:
        super().__init__(YAML, torch.__version__.split("+", maxsplit=1)[0], overlay=overlay)

    def known_op_types(self) -> Collection[str]:
        return op_classes()

    def known_float_types(self) -> Collection[str]:
        modules = {name for name, found in vars(torch.nn).items() if isinstance(found, type)}
        return {*op_classes(), *modules}
