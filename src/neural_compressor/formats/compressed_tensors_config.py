"""The configuration of a compressed-tensors checkpoint: which layers are quantized how, as JSON and as schemes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from neural_compressor.dtypes import DType, IntType, dtype
from neural_compressor.errors import FormatError
from neural_compressor.formats.base import Spec
from neural_compressor.formats.linear_weight import LinearSpec
from neural_compressor.formats.stored_tensors import group_size_of, option
from neural_compressor.name_pattern import file_pattern
from neural_compressor.schemes import (
    PER_CHANNEL,
    PER_TENSOR,
    PER_TOKEN,
    Granularity,
    OpScheme,
    PerBlock,
    PerGroup,
    TensorScheme,
)

METHOD = "compressed-tensors"
_STRATEGIES = {"per_tensor": "tensor", "per_channel": "channel", "per_group": "group", "per_token": "token"}
_PARTS: dict[str, Granularity] = {
    "tensor": PER_TENSOR,
    "channel": PER_CHANNEL,
    "token": PER_TOKEN,
    "attn_head": PER_CHANNEL,
}
_LAYOUTS = {
    "fp8_e4m3": "float-quantized",
    "mxfp8_e4m3": "mxfp8-quantized",
    "mxfp4": "mxfp4-pack-quantized",
    "nvfp4": "nvfp4-pack-quantized",
}
"""The layout of weights that are no integers."""
FLOATS = tuple(_LAYOUTS)
"""The data types of weights, besides integers."""
_EXPERT = re.compile(r"(.*\.experts\.)\d+(\..+)")


def block(
    specs: Mapping[str, Spec],
    ignore: Iterable[str] = (),
    complete: bool = True,
    layout: str | None = None,
    kv_cache: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The ``quantization_config``; ``layout`` is that of all layers, by default what :func:`layout_of` says of each."""
    layouts = {layout_of(spec) if layout is None else layout for spec in specs.values()}
    return {
        "quant_method": METHOD,
        "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": config_groups(specs, complete, layout),
        "ignore": sorted(ignore),
        "kv_cache_scheme": None if kv_cache is None else dict(kv_cache),
        "global_compression_ratio": None,
    }


def layout_of(spec: Spec) -> str:
    """The name of the layout in which a layer is stored.

    >>> layout_of(OpScheme(TensorScheme(dtype("nvfp4")), mode="weight_only"))
    'nvfp4-pack-quantized'
    """
    if isinstance(spec, LinearSpec):
        return "pack-quantized"
    return _LAYOUTS.get("" if spec.weight is None else spec.weight.dtype.name, "int-quantized")


def config_groups(specs: Mapping[str, Spec], complete: bool = True, layout: str | None = None) -> dict[str, Any]:
    """One group for each way of quantizing, targeting the layers by name.

    Where all are quantized alike and the list of ignored layers is ``complete``, the group targets the class instead, as
    is the custom; an output head by its name too, as engines have a class of their own for it.

    >>> groups = config_groups({"a.fc": LinearSpec(4, 128, True)})
    >>> groups["group_0"]["targets"], groups["group_0"]["weights"]["strategy"]
    (['Linear'], 'group')
    """
    if not specs:
        raise FormatError("a compressed-tensors checkpoint needs a quantized layer, and none was given")
    layers: dict[Spec, list[str]] = {}
    for name, spec in specs.items():
        layers.setdefault(spec, []).append(name)
    alike = len(layers) == 1 and complete
    groups: dict[str, Any] = {}
    for number, (spec, names) in enumerate(layers.items()):
        activation = None if isinstance(spec, LinearSpec) else spec.activation
        static = not isinstance(spec, LinearSpec) and spec.mode == "static"
        # Blocks take their scales from each input whatever is known beforehand: the scale of the tensor (nvfp4) is.
        when = (activation is not None and activation.dtype.has_tensor_scale and "local") if static else True
        groups[f"group_{number}"] = {
            "targets": ["Linear", *filter(is_output_head, names)] if alike else _targets(names, specs),
            "weights": _weight_args(spec),
            "input_activations": None if activation is None else tensor_args(activation, when),
            "output_activations": None,
        }
        # Readers before the field was made know packed integers alone, and take weight-only ones for these.
        stored_as = layout_of(spec) if layout is None else layout
        if stored_as != "pack-quantized" or len({layout_of(each) for each in layers}) > 1:
            groups[f"group_{number}"]["format"] = stored_as
    return groups


def is_output_head(name: str) -> bool:
    """Whether a layer is what engines take for the output head."""
    return name.rpartition(".")[2] == "lm_head"


def _targets(names: Iterable[str], specs: Mapping[str, Spec]) -> list[str]:
    """Layers by name; the experts of a mixture by one pattern, from which transformers tells how experts are quantized.

    >>> _targets(["a.q", "a.experts.0.up", "a.experts.1.up"], dict.fromkeys(("a.q", "a.experts.0.up", "a.experts.1.up")))
    ['a.q', 're:a\\\\.experts\\\\.\\\\d+\\\\.up$']
    """
    names = list(names)
    taken = set(names)
    shared = {all_experts(name) for name in specs.keys() - taken}
    patterns = {name: f"re:{own}" for name in names if (own := all_experts(name)) and own not in shared}
    return list(dict.fromkeys(patterns.get(name, name) for name in names))


def all_experts(name: str) -> str:
    """The pattern that a layer of an expert has in common with those of the others; empty where it is of none."""
    found = _EXPERT.fullmatch(name)
    return rf"{re.escape(found[1])}\d+{re.escape(found[2])}$" if found else ""


def _weight_args(spec: Spec) -> dict[str, Any]:
    if not isinstance(spec, LinearSpec):
        if spec.weight is None:
            raise FormatError("a linear layer of a checkpoint has a quantized weight")
        return tensor_args(spec.weight, dynamic=False)
    whole_row = spec.group_size == -1
    return {
        "num_bits": spec.bits,
        "type": "int",
        "symmetric": spec.symmetric,
        "strategy": "channel" if whole_row else "group",
        "group_size": None if whole_row else spec.group_size,
        "dynamic": False,
    }


def tensor_args(scheme: TensorScheme, dynamic: bool | str) -> dict[str, Any]:
    """How a tensor is quantized, in the words of the configuration.

    >>> args = tensor_args(TensorScheme(dtype("fp8_e4m3"), granularity=PerBlock(128, 128)), dynamic=False)
    >>> args["strategy"], args["block_structure"]
    ('block', [128, 128])
    """
    kind, part = scheme.dtype, scheme.granularity
    args: dict[str, Any] = {
        "num_bits": kind.bits,
        "type": "int" if kind.is_integer else "float",
        "symmetric": scheme.symmetric,
        "strategy": _STRATEGIES.get(part.name, "block"),
        "group_size": part.size if isinstance(part, PerGroup) else None,
        "dynamic": dynamic,
    }
    if kind.block_size is not None:
        scales = "torch.float8_e4m3fn" if kind.has_tensor_scale else "torch.uint8"
        args |= {"strategy": "tensor_group" if kind.has_tensor_scale else "group", "group_size": kind.block_size}
        args |= {"scale_dtype": scales, "zp_dtype": scales}
    if isinstance(part, PerBlock):
        args["block_structure"] = [part.rows, part.columns]
    return args


# -- reading ----------------------------------------------------------------------------------------------------------


def group_of(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The group of a configuration that speaks of one layer: by a target that is its name, a pattern, or its class."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not all(isinstance(group, Mapping) for group in groups.values()):
        raise FormatError("a compressed-tensors configuration has 'config_groups', each with 'targets' and 'weights'")
    for label, group in groups.items():
        targets = group.get("targets")
        if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
            raise FormatError(f"'targets' of the config group {label!r} is a list of names, found {targets!r}")
    for matches in (_by_name, _by_pattern, _by_class):
        for group in groups.values():
            if any(matches(target, name) for target in group["targets"]):
                return dict(group)
    raise FormatError("no group of the compressed-tensors configuration targets it")


def spec_of(config: Mapping[str, Any], name: str) -> LinearSpec:
    """What the groups of a configuration say of one layer with integer weights.

    >>> spec_of({"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}}}, "a.fc").bits
    4
    """
    weights = group_of(config, name).get("weights")
    if not isinstance(weights, Mapping) or weights.get("type", "int") != "int":
        raise FormatError(f"the group has no integer weights: {weights!r}")
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "channel")
    if strategy not in ("group", "channel"):
        raise FormatError(f"the weights have scales per {strategy}; group and channel are read")
    size = group_size_of(weights, "group_size") if strategy == "group" else -1
    return LinearSpec(_integer_bits(weights), size, bool(weights.get("symmetric", True)))


def op_scheme_of(config: Mapping[str, Any], name: str, in_exponents: bool = False) -> OpScheme:
    """What the groups of a configuration say of one layer, of its inputs too.

    ``in_exponents`` says that fp8 in groups of 32 is MX, which some configurations leave to the name of the layout.

    >>> inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    >>> weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    >>> group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    >>> op_scheme_of({"config_groups": {"group_0": group}}, "fc").activation.granularity
    PerToken()
    """
    group = group_of(config, name)
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping):
        raise FormatError(f"the group has no weights: {weights!r}")
    if group.get("output_activations"):
        raise FormatError("the group quantizes the outputs of layers, which is not read; only weights and inputs are")
    weight = tensor_scheme_of(weights, "weights", in_exponents)
    if not inputs:
        return OpScheme(weight, None, "weight_only")
    activation = tensor_scheme_of(inputs, "input_activations", in_exponents)
    return OpScheme(weight, activation, "dynamic" if inputs.get("dynamic") is True else "static")


def tensor_scheme_of(args: Any, where: str, in_exponents: bool = False) -> TensorScheme:
    """What the words of a configuration say of a tensor; ``where`` names them in errors."""
    if not isinstance(args, Mapping):
        raise FormatError(f"{where!r} is a JSON object, found {args!r}")
    size, sizes = args.get("group_size"), args.get("block_structure")
    strategy = args.get("strategy") or ("tensor" if size is None else "channel" if size == -1 else "group")
    if not isinstance(strategy, str):
        raise FormatError(f"'strategy' of {where} is a word, found {strategy!r}")
    part: Granularity
    if strategy in ("group", "tensor_group"):
        part = PerGroup(group_size_of(args, "group_size"))
    elif strategy == "block":
        if not isinstance(sizes, (list, tuple)) or len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
            raise FormatError(f"'block_structure' of {where} is [rows, columns], found {sizes!r}")
        part = PerBlock(*sizes)
    elif strategy in _PARTS:
        part = _PARTS[strategy]
    else:
        raise FormatError(f"{where} has scales per {strategy}; tensor, channel, token, group and block are read")
    kind = _dtype(args, strategy, where, in_exponents)
    return TensorScheme(kind, bool(args.get("symmetric", True)), part)


def _dtype(args: Mapping[str, Any], strategy: str, where: str, in_exponents: bool) -> DType:
    if args.get("type", "int") == "int":
        return IntType(_integer_bits(args))
    bits, size = option(args, "num_bits"), args.get("group_size")
    in_exponents = size == 32 and (in_exponents or "uint8" in str(args.get("scale_dtype", "")))
    found = {
        "nvfp4": bits == 4 and strategy == "tensor_group" and size == 16,
        "mxfp4": bits == 4 and strategy == "group" and size == 32,
        "mxfp8_e4m3": bits == 8 and strategy == "group" and in_exponents,
        "fp8_e4m3": bits == 8 and strategy != "tensor_group" and not in_exponents,
    }
    name = next((name for name, fits in found.items() if fits), None)
    if args.get("type") != "float" or name is None:
        raise FormatError(
            f"{where} is {args.get('type')} of {bits} bits with scales per {strategy} of {size}; "
            f"integers and {', '.join(FLOATS)} are read"
        )
    return dtype(name)


def _integer_bits(args: Mapping[str, Any]) -> int:
    bits = option(args, "num_bits")
    if not 1 <= bits <= 8:
        raise FormatError(f"compressed-tensors integers have 1 to 8 bits, found {bits}")
    return bits


def _by_name(target: str, name: str) -> bool:
    return target == name


def _by_pattern(target: str, name: str) -> bool:
    return target.startswith("re:") and file_pattern(target[3:], "a target of a config group").matches_start(name)


def _by_class(target: str, name: str) -> bool:
    # Classes are not known here; a stored layer that nothing names more closely is of one of them, and no attention.
    return re.fullmatch(r"[A-Za-z_]\w*(?<!Attention)", target) is not None and target != name
