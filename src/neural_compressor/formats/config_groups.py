"""The ``config_groups`` of a compressed-tensors configuration: which layers are quantized how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from neural_compressor.errors import FormatError
from neural_compressor.formats.linear_weight import LinearSpec
from neural_compressor.formats.stored_tensors import group_size_of, option
from neural_compressor.name_pattern import file_pattern


def config_groups(specs: Mapping[str, LinearSpec], complete: bool = True, layout: str | None = None) -> dict[str, Any]:
    """One group for each way of quantizing, targeting the layers by name.

    Where all are quantized alike and the list of ignored layers is ``complete``, the group targets the class instead, as
    is the custom.

    >>> groups = config_groups({"a.fc": LinearSpec(4, 128, True)})
    >>> groups["group_0"]["targets"], groups["group_0"]["weights"]["strategy"]
    (['Linear'], 'group')
    """
    if not specs:
        raise FormatError("a compressed-tensors checkpoint needs a quantized layer, and none was given")
    layers: dict[LinearSpec, list[str]] = {}
    for name, spec in specs.items():
        layers.setdefault(spec, []).append(name)
    alike = len(layers) == 1 and complete
    groups: dict[str, Any] = {}
    for number, (spec, names) in enumerate(layers.items()):
        whole_row = spec.group_size == -1
        groups[f"group_{number}"] = {
            "targets": ["Linear"] if alike else names,
            "weights": {
                "num_bits": spec.bits,
                "type": "int",
                "symmetric": spec.symmetric,
                "strategy": "channel" if whole_row else "group",
                "group_size": None if whole_row else spec.group_size,
                "dynamic": False,
            },
            "input_activations": None,
            "output_activations": None,
        }
        if layout is not None:
            groups[f"group_{number}"]["format"] = layout
    return groups


def spec_of(config: Mapping[str, Any], name: str) -> LinearSpec:
    """What the groups of a configuration say of one layer: a target that is its name, a pattern, or its class.

    >>> spec_of({"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}}}, "a.fc").bits
    4
    """
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not all(isinstance(group, Mapping) for group in groups.values()):
        raise FormatError("a compressed-tensors configuration has 'config_groups', each with 'targets' and 'weights'")
    for matches in (_by_name, _by_pattern, _by_class):
        for group in groups.values():
            if any(matches(target, name) for target in group.get("targets", ())):
                return _spec(group.get("weights"))
    raise FormatError("no group of the compressed-tensors configuration targets it")


def _by_name(target: str, name: str) -> bool:
    return target == name


def _by_pattern(target: str, name: str) -> bool:
    return target.startswith("re:") and file_pattern(target[3:], "a target of a config group").matches_start(name)


def _by_class(target: str, name: str) -> bool:
    # Classes are not known here; a stored layer that nothing names more closely is of one of them.
    return re.fullmatch(r"[A-Za-z_]\w*", target) is not None and target != name


def _spec(weights: Any) -> LinearSpec:
    if not isinstance(weights, Mapping) or weights.get("type", "int") != "int":
        raise FormatError(f"the group has no integer weights: {weights!r}")
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "channel")
    if strategy not in ("group", "channel"):
        raise FormatError(f"the weights have scales per {strategy}; group and channel are read")
    bits = option(weights, "num_bits")
    if not 1 <= bits <= 8:
        raise FormatError(f"compressed-tensors integers have 1 to 8 bits, found {bits}")
    size = group_size_of(weights, "group_size") if strategy == "group" else -1
    return LinearSpec(bits, size, bool(weights.get("symmetric", True)))
