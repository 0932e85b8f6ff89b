"""Expansion of the configs of a capability, whose fields may be lists, to single op schemes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from neural_compressor.adaptor.tensor_options import ANY
from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.config.validators import as_list
from neural_compressor.dtypes import DTYPES
from neural_compressor.schemes import OpScheme

TensorFields = dict[str, Any]
Named = Mapping[tuple[str, str], Collection[Any]]


def op_options(configs: Sequence[Mapping[str, Any]], named: Named | None = None) -> tuple[OpScheme, ...]:
    """Every scheme that ``configs`` admit, quantized and float, first-listed values first and without repetition.

    What is cheap to vary varies first: the algorithm of the activation, its scheme, then the weight's granularity. Where a
    field admits any value, ``named`` has those to take, by tensor and field, behind the listed ones.

    >>> weight = {"dtype": "int8", "granularity": ["per_channel", "per_tensor"]}
    >>> found = op_options([{"weight": weight, "activation": {"dtype": "uint8", "algorithm": ["minmax", "kl"]}}])
    >>> [(o.weight.granularity.name, o.activation.algorithm) for o in found][:3]
    [('per_channel', 'minmax'), ('per_channel', 'kl'), ('per_tensor', 'minmax')]
    """
    found = (option for config in configs for option in _expand(_filled(config, named or {})))
    return tuple(dict.fromkeys(found))


def _filled(config: Mapping[str, Any], named: Named) -> dict[str, Any]:
    """``config`` with the values it means where it admits any."""
    filled = dict(config)
    for tensor in ("weight", "activation"):
        for field, values in (config.get(tensor) or {}).items():
            if ANY in as_list(values):
                listed = [value for value in as_list(values) if value != ANY]
                more = sorted(
                    (v for v in named.get((tensor, field), ()) if v not in listed and _fits(field, v)), key=str
                )
                filled[tensor] = {**filled[tensor], field: [*listed, *more]}
    return filled


def _fits(field: str, value: Any) -> bool:
    """Whether a value that is named may be one of a quantized tensor: fp32, fp16 and bf16 are float, whoever names them."""
    return field != "dtype" or value not in DTYPES or DTYPES[value].needs_scale


def _expand(config: Mapping[str, Any]) -> Iterator[OpScheme]:
    weight = dict(config["weight"]) if config.get("weight") else None
    activation = dict(config.get("activation") or {"dtype": "fp32"})
    for mode in as_list(activation.pop("quant_mode", None)):
        for weight_fields, activation_fields in _pairs(weight, activation):
            moded = activation_fields if mode is None else {**activation_fields, "quant_mode": mode}
            scheme = OpScheme.from_dict({"activation": moded, "weight": weight_fields})
            if _is_coherent(scheme):
                yield scheme


def _pairs(weight: TensorFields | None, activation: TensorFields) -> Iterator[tuple[TensorFields, TensorFields]]:
    """All combinations of weight and activation fields, the slowest axis first."""
    w, a = _axes(weight or {}), _axes(activation)
    order = [(w, "dtype"), (a, "dtype"), (w, "rest"), (w, "algorithm"), (w, "scheme")]
    order += [(a, "granularity"), (a, "rest"), (w, "granularity"), (a, "scheme"), (a, "algorithm")]
    for choices in product(*(axes[name] for axes, name in order)):
        chosen = [(axes, choice) for (axes, _), choice in zip(order, choices, strict=True)]
        yield _merged(c for axes, c in chosen if axes is w), _merged(c for axes, c in chosen if axes is a)


def _merged(parts: Iterable[TensorFields]) -> TensorFields:
    return {name: value for part in parts for name, value in part.items()}


def _axes(tensor: TensorFields) -> dict[str, list[TensorFields]]:
    """The choices of each field, as dicts to be merged; ``rest`` holds the combinations of all other fields."""
    fields = dict(tensor)
    axes = {
        "dtype": _dtypes(fields),
        "granularity": _granularities(fields),
        "scheme": _choices("scheme", fields),
        "algorithm": _choices("algorithm", fields),
    }
    others = [[{name: value} for value in as_list(values)] for name, values in fields.items()]
    axes["rest"] = [_merged(parts) for parts in product(*others)]
    return axes


def _choices(name: str, fields: TensorFields) -> list[TensorFields]:
    return [{name: value} for value in as_list(fields.pop(name))] if name in fields else [{}]


def _dtypes(fields: TensorFields) -> list[TensorFields]:
    names, widths = _choices("dtype", fields), _choices("bits", fields)
    sized = [{**n, **w} for n in names for w in (widths if n.get("dtype") in ("int", "uint") else [{}])]
    return sized or [{}]


def _granularities(fields: TensorFields) -> list[TensorFields]:
    """Group sizes belong to per_group; where only sizes are given they imply it."""
    if "group_size" in fields:
        fields.setdefault("granularity", "per_group")
    names, sizes = _choices("granularity", fields), _choices("group_size", fields)
    return [{**n, **s} for n in names for s in (sizes if n.get("granularity") == "per_group" else [{}])]


def _is_coherent(option: OpScheme) -> bool:
    """Only integers have a zero point, and a method that moves it needs one."""
    tensors = [t for t in (option.weight, option.activation) if t is not None and not t.is_float]
    if not all(t.symmetric or t.dtype.is_integer for t in tensors):
        return False
    if option.method is None or option.method.name not in ALGORITHMS or option.weight is None:
        return True
    return not (ALGORITHMS[option.method.name].needs_zero_point and option.weight.symmetric)
