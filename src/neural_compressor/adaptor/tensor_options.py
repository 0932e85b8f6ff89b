"""The options a framework YAML gives for the tensors of one op type, checked and completed."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.dtypes import DTYPES
from neural_compressor.errors import ConfigError
from neural_compressor.observers import OBSERVERS
from neural_compressor.registry import close_matches
from neural_compressor.schemes import GRANULARITIES

OpConfig = dict[str, Any]
"""``{'weight': {field: [options]}, 'activation': {field: [options], 'quant_mode': mode}}``; weight if it has one."""


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 4, 200, 200
SCHEMES = ("sym", "asym")
_DEFAULTS = {"scheme": ["sym"], "granularity": ["per_tensor"], "algorithm": ["minmax"]}
_FLAGS = ("reduce_range", "pair_safe")
ANY = "*"
"""Admits, besides what is listed, whatever a user names."""
_OPEN = ("dtype", "group_size", "algorithm")
_FIELDS = ("dtype", "bits", "scheme", "granularity", "algorithm", "group_size", "axis", *_FLAGS, "quant_mode")


def read_op_config(data: Any, mode: str, where: str) -> OpConfig:
    """The config of an op type in ``mode``, every field a list of known names.

    >>> config = read_op_config({"weight": {"dtype": "int8", "granularity": "per_channel"}}, "weight_only", "here")
    >>> config["weight"]["granularity"], config["activation"]
    (['per_channel'], {'dtype': ['fp32'], 'quant_mode': 'weight_only'})
    """
    if not isinstance(data, Mapping):
        fail(where, f"is {shown(data)}; a mapping with 'weight' and/or 'activation' is expected")
    for key in data:
        if key not in ("weight", "activation", "mode"):
            fail(f"{where}.{key}", "is unknown; known: weight, activation, mode")
    config: OpConfig = {}
    if "weight" in data:
        config["weight"] = _read_tensor(data["weight"], mode, f"{where}.weight")
    config["activation"] = _read_tensor(data.get("activation", {"dtype": ["fp32"]}), mode, f"{where}.activation")
    config["activation"]["quant_mode"] = mode
    if "mode" in data:
        config["mode"] = _options(data["mode"], f"{where}.mode", str)
    return config


def _read_tensor(data: Any, mode: str, where: str) -> dict[str, Any]:
    if not isinstance(data, Mapping) or "dtype" not in data:
        fail(where, f"is {shown(data)}; a mapping with at least 'dtype' is expected")
    for key in data:
        if key not in _FIELDS:
            fail(f"{where}.{key}", f"is unknown; {close_matches(str(key), _FIELDS)}")
    if data.get("quant_mode", mode) not in (mode, [mode]):
        fail(f"{where}.quant_mode", f"is {data['quant_mode']!r} inside the mode {mode!r}; leave it out")
    # What is open to any value is put back behind what is listed.
    is_open = [field for field in _OPEN if ANY in _as_list(data.get(field))]
    data = {**data, **{field: [v for v in _as_list(data[field]) if v != ANY] for field in is_open}}
    tensor = _read_listed(data, mode, where, is_open)
    return {**tensor, **{field: [*tensor.get(field, ()), ANY] for field in is_open}}


def _read_listed(data: Mapping[str, Any], mode: str, where: str, is_open: Sequence[str]) -> dict[str, Any]:
    """The fields of a tensor less those of ``is_open`` that list nothing."""
    dtypes = [] if "dtype" in is_open and not data["dtype"] else _read_dtypes(data, where)
    data = {field: value for field, value in data.items() if field not in is_open or value}
    if dtypes and not any(DTYPES[name].needs_scale for name in dtypes):
        return {"dtype": dtypes}
    tensor: dict[str, Any] = {"dtype": dtypes}
    # Weights that are quantized alone may have an algorithm that looks at what they are multiplied with.
    algorithms = (ALGORITHMS, OBSERVERS) if mode == "weight_only" else (OBSERVERS,)
    known = {"scheme": (SCHEMES,), "granularity": (GRANULARITIES,), "algorithm": algorithms}
    for field, names in known.items():
        if field in is_open and field not in data:
            continue
        tensor[field] = _options(data.get(field, _DEFAULTS[field]), f"{where}.{field}", str, *names)
    not_affine = [name for name in dtypes if DTYPES[name].needs_scale and not DTYPES[name].is_integer]
    if "asym" in tensor["scheme"] and not_affine:
        fail(
            f"{where}.scheme",
            f"admits 'asym', but {', '.join(not_affine)} has no zero point; only integers do: use 'sym'",
        )
    if "group_size" in data:
        tensor["group_size"] = _options(data["group_size"], f"{where}.group_size", int)
        if any(size < 1 and size != -1 for size in tensor["group_size"]):
            fail(f"{where}.group_size", f"is {tensor['group_size']}; sizes are positive, or -1 for a whole channel")
    if "per_group" in tensor["granularity"] and "group_size" not in tensor and "group_size" not in is_open:
        fail(f"{where}.group_size", "is missing; the granularity per_group needs it, such as [32, 128]")
    if "axis" in data:
        tensor["axis"] = _options(data["axis"], f"{where}.axis", int)
    for flag in (name for name in _FLAGS if name in data):
        tensor[flag] = _options(data[flag], f"{where}.{flag}", bool)
    plain = dtypes == ["int8"] and tensor["scheme"] == ["sym"] and "per_group" not in tensor["granularity"]
    if True in tensor.get("pair_safe", ()) and not (plain and where.endswith(".weight")):
        fail(f"{where}.pair_safe", "is for weights of dtype int8, scheme sym, per_tensor or per_channel")
    return tensor


def _read_dtypes(data: Mapping[str, Any], where: str) -> list[str]:
    """Canonical dtype names; ``dtype: int`` with ``bits: [4, 8]`` is ``[int4, int8]``."""
    names = _options(data["dtype"], f"{where}.dtype", str)
    if "bits" in data:
        bits = _options(data["bits"], f"{where}.bits", int)
        if any(name not in ("int", "uint") for name in names):
            fail(f"{where}.bits", f"goes with the dtype 'int' or 'uint', not with {names}")
        names = [f"{name}{width}" for name in names for width in bits]
    for name in names:
        if name not in DTYPES:
            fail(f"{where}.dtype", f"admits the unknown data type {name!r}; {close_matches(name, DTYPES.names())}")
    return [DTYPES[name].name for name in names]


def _options(data: Any, where: str, kind: type[Any], *known: Iterable[str]) -> list[Any]:
    """One value or a list of them, as a list without repetition; each has to be in one of ``known`` where there are any."""
    values = _as_list(data)
    if not values:
        fail(where, "is empty; give at least one option")
    for value in values:
        if type(value) is not kind:
            fail(where, f"holds {shown(value)}; each option has to be of type {kind.__name__}")
        if known and not any(value in names for names in known):
            fail(
                where, f"admits the unknown {where.rsplit('.', 1)[-1]} {value!r}; {close_matches(value, chain(*known))}"
            )
    return list(dict.fromkeys(values))


def shown(value: Any) -> str:
    """``value`` for a message; of a large one the beginning."""
    return _SHORT.repr(value)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def fail(where: str, message: str) -> NoReturn:
    """Say what is wrong at a place of a framework YAML."""
    raise ConfigError(f"framework YAML {where} {message}")
