"""The scale methods of :class:`FP8Config`: a name, or a dict, and the four parts each tensor's scale is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from neural_compressor.dtypes import DType
from neural_compressor.errors import ConfigError
from neural_compressor.name_pattern import NamePattern
from neural_compressor.registry import close_matches
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PER_TOKEN, Scaling, TensorScheme


@dataclass(frozen=True)
class ScaleParts:
    """Granularity, value, rounding, backoff; ``pts`` is a scale a tensor, ``pcs`` one a channel of weights, or a token."""

    granularity: str
    scale_value_type: str
    rounding_method: str
    backoff: float

    def scheme(self, kind: DType, tensor: str, device: str) -> TensorScheme:
        """The scheme of a ``weight`` or ``activation`` of an fp8 type; scales of the hardware are those of ``device``."""
        fine = PER_CHANNEL if tensor == "weight" else PER_TOKEN
        rounding = device if self.rounding_method == "hw" else self.rounding_method
        scaling = Scaling(self.scale_value_type, rounding, self.backoff)
        return TensorScheme(kind, granularity=fine if self.granularity == "pcs" else PER_TENSOR, scaling=scaling)


@dataclass(frozen=True)
class ScaleMethod:
    """The parts for weights and for activations."""

    weight: ScaleParts
    activation: ScaleParts
    dynamic: bool = False


def _method(act_rounding: str, weight: tuple[str, str, str], value: str = "maxabs") -> ScaleMethod:
    granularity, weight_value, rounding = weight
    return ScaleMethod(
        ScaleParts(granularity, weight_value, rounding, 0.5), ScaleParts("pts", value, act_rounding, 0.25)
    )


def _dynamic(weight: ScaleParts) -> ScaleMethod:
    # The range of an activation is known when its scale is chosen: there is nothing to leave headroom for.
    return ScaleMethod(weight, ScaleParts("pcs", "maxabs", "pow2", 1.0), dynamic=True)


SCALE_METHODS = {
    "unit_scale": _method("none", ("pts", "unit", "none"), "unit"),
    "hw_aligned_single_scale": _method("hw", ("pts", "unit", "hw"), "unit"),
    "maxabs_hw": _method("hw", ("pts", "maxabs", "hw")),
    "maxabs_pow2": _method("pow2", ("pts", "maxabs", "pow2")),
    "maxabs_arbitrary": _method("none", ("pts", "maxabs", "none")),
    "maxabs_hw_opt_weight": _method("hw", ("pts", "opt", "hw")),
    "maxabs_pow2_opt_weight": _method("pow2", ("pts", "opt", "pow2")),
    "act_maxabs_hw_weights_pcs_maxabs_pow2": _method("hw", ("pcs", "maxabs", "pow2")),
    "act_maxabs_hw_weights_pcs_opt_pow2": _method("hw", ("pcs", "opt", "pow2")),
    "act_maxabs_pow2_weights_pcs_maxabs_pow2": _method("pow2", ("pcs", "maxabs", "pow2")),
    "act_maxabs_pow2_weights_pcs_opt_pow2": _method("pow2", ("pcs", "opt", "pow2")),
    "act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw": _dynamic(ScaleParts("pts", "maxabs", "hw", 0.5)),
    "maxabs_pcs_pow2": _dynamic(ScaleParts("pcs", "maxabs", "pow2", 0.5)),
}
"""Every scale method that has a name."""
STATIC, DYNAMIC = "maxabs_hw", "act_maxabs_pcs_pow2_weight_maxabs_pts_pow2_hw"
"""What is taken where nothing is said."""

_SPELLINGS = {
    "granularity": {"pts": "pts", "per_tensor": "pts", "pcs": "pcs", "per_channel": "pcs", "per_token": "pcs"},
    "scale_value_type": {"maxabs": "maxabs", "opt": "opt", "unit": "unit", "fixed_value": "unit"},
    "rounding_method": {
        **dict.fromkeys(("none", "identity", "scale_unit"), "none"),
        **dict.fromkeys(("hw", "hw_aligned", "hw_aligned_fixed"), "hw"),
        "pow2": "pow2",
    },
}
_PLACES = ("default", "nodes", "layers", "layer_types")
_TENSORS = ("weight", "activation")


def read_scale_method(value: Any) -> str | dict[str, Any]:
    """Validate a name in either case, or the dict form, whose words are kept in their usual spelling.

    >>> read_scale_method("MAXABS_POW2")
    'maxabs_pow2'
    >>> read_scale_method({"default": {"weight": {"granularity": "PCS"}}})["default"]["weight"]["granularity"]
    'pcs'
    """
    if isinstance(value, str):
        if value.lower() not in SCALE_METHODS:
            raise ConfigError(f"got {value!r}; {close_matches(value.lower(), SCALE_METHODS)}")
        return value.lower()
    if not isinstance(value, Mapping) or not value:
        raise ConfigError(f"got {value!r}, expected a scale method or a dict with {', '.join(_PLACES)}")
    _only(value, _PLACES, "the dict")
    found: dict[str, Any] = {}
    for place, given in value.items():
        if place == "default":
            found[place] = _read_parts(given, "default")
            continue
        if not isinstance(given, Mapping):
            raise ConfigError(f"{place}: got {given!r}, expected {{name: {{weight, activation}}}}")
        found[place] = {str(name): _read_parts(parts, f"{place} {name!r}") for name, parts in given.items()}
    return found


def _read_parts(value: Any, where: str) -> Any:
    if isinstance(value, str):
        return read_scale_method(value)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: got {value!r}, expected {{weight: ..., activation: ...}} or the name of a method")
    _only(value, _TENSORS, where)
    return {tensor: _read_part(part, f"{where}, {tensor}") for tensor, part in value.items()}


def _read_part(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: got {value!r}, expected {', '.join(_SPELLINGS)} and backoff")
    _only(value, (*_SPELLINGS, "backoff"), where)
    found: dict[str, Any] = {}
    for field, given in value.items():
        if field == "backoff":
            Scaling(backoff=given)  # which checks it
            found[field] = given
            continue
        known = _SPELLINGS[field]
        word = given.lower() if isinstance(given, str) else given
        if "smoothquant" in str(word):
            raise ConfigError(
                f"{where}.{field}: {given!r} smooths the model: put SmoothQuantConfig's pass before instead"
            )
        if word not in known:
            raise ConfigError(f"{where}.{field}: got {given!r}; {close_matches(str(word), known)}")
        found[field] = known[word]
    return found


def _only(value: Mapping[Any, Any], known: tuple[str, ...], where: str) -> None:
    for name in value:
        if name not in known:
            raise ConfigError(f"{where} has {name!r}; {close_matches(str(name), known)}")


def scale_method(value: str | Mapping[str, Any], name: str, op_type: str, dynamic: bool) -> ScaleMethod:
    """The method for an op: what names it exactly (``nodes``), then ``layers`` (found in its name), types, the default."""
    usual = SCALE_METHODS[DYNAMIC if dynamic else STATIC]
    if isinstance(value, str):
        return _method_called(value, dynamic)
    parts = value.get("default", {})
    for place, names in (("layer_types", {op_type}), ("layers", None), ("nodes", {name})):
        for given, said in value.get(place, {}).items():
            if given in names if names else NamePattern.of(f".*(?:{given}).*").matches(name):
                parts = said
    if isinstance(parts, str):
        return _method_called(parts, dynamic)
    weight, activation = (replace(getattr(usual, tensor), **parts.get(tensor, {})) for tensor in _TENSORS)
    return ScaleMethod(weight, activation, dynamic)


def _method_called(name: str, dynamic: bool) -> ScaleMethod:
    """A method by its name; over a range of their own activations need no headroom, whatever it leaves them."""
    method = SCALE_METHODS[name]
    return replace(method, activation=replace(method.activation, backoff=1.0)) if dynamic else method


def names_of(value: str | Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a dict form speaks of, with the place it does so."""
    places = {} if isinstance(value, str) else value
    return [(place, name) for place in ("nodes", "layers", "layer_types") for name in places.get(place, {})]


def with_backoff(method: ScaleMethod, params: Mapping[str, Any]) -> ScaleMethod:
    """``method`` with the headroom that ``scale_params`` say."""
    weight, activation = params.get("weight_backoff"), params.get("input_backoff")
    return replace(
        method,
        weight=method.weight if weight is None else replace(method.weight, backoff=weight),
        activation=method.activation if activation is None else replace(method.activation, backoff=activation),
    )


def read_scale_params(value: Any) -> dict[str, float]:
    """Validate ``scale_params``: the headroom of inputs and of weights.

    >>> read_scale_params({"input_backoff": 0.5})
    {'input_backoff': 0.5}
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"got {value!r}, expected {{'input_backoff': ..., 'weight_backoff': ...}}")
    _only(value, ("input_backoff", "weight_backoff"), "the dict")
    return {name: asdict(Scaling(backoff=given))["backoff"] for name, given in value.items()}
