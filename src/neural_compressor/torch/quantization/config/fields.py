"""Field types that several configurations share. Each takes a value, or a list of values that spans a space."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import PlainValidator

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.validators import (
    as_list,
    at_least,
    expecting,
    flag,
    group_size,
    is_whole,
    number_between,
    one_or_more,
    registered_dtype,
    seed,
    whole_between,
    word,
)
from neural_compressor.dtypes import DType, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Pass
from neural_compressor.torch.passes.rotation import ROTATE

FLOAT = "fp32"
"""The data type that leaves an op as it is."""
FOLDED = "folded"
"""The rotation that goes into the weights of the whole model, so that nothing is turned at run time."""


def weight_dtype(value: Any) -> str:
    """Validate the data type of a weight: ``"int"``, whose width is given apart, or a registered one of up to 8 bits.

    >>> weight_dtype("fp4"), weight_dtype("float32"), weight_dtype("int")
    ('fp4_e2m1', 'fp32', 'int')
    """
    if value == "int":
        return "int"
    if not isinstance(value, str):
        raise ConfigError(f"got {value!r}, expected the name of a data type, such as 'int' or 'nf4'")
    try:
        kind = dtype(value)
    except ConfigError as error:
        raise ConfigError(f"{error}; or 'int' with bits") from None
    if kind.name == FLOAT:
        return FLOAT
    if kind.bits > 8:
        hint = "; for whole layers in bf16 or fp16 use MixedPrecisionConfig" if not kind.needs_scale else ""
        raise ConfigError(
            f"got {value!r} of {kind.bits} bits, expected 1 to 8 bits, or 'fp32' to leave the op as it is{hint}"
        )
    if not kind.is_integer and not kind.signed:
        raise ConfigError(f"got {value!r}, which has no negative values; weights have both signs")
    return kind.name


def dtype_of(name: str, bits: int) -> DType:
    """The data type called ``name``, of ``bits`` bits where it is ``"int"``."""
    return dtype(f"int{bits}" if name == "int" else name)


def path_text(value: Any) -> str:
    """Validate a path; empty where there is none."""
    if value != "":
        path_of(value)
    return str(os.fspath(value))


def layer_map(value: Any) -> dict[str, list[str]]:
    """Validate which layers take the scales of others: names of layers by the name of the one that absorbs.

    >>> layer_map({"norm": "fc1"})
    {'norm': ['fc1']}
    """
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"got {value!r}, expected a dict of the names of layers by the layer that absorbs their scales"
        )
    found = {name: as_list(layers) for name, layers in value.items()}
    for name, layers in found.items():
        if not isinstance(name, str) or not layers or not all(isinstance(layer, str) for layer in layers):
            raise ConfigError(f"got {{{name!r}: {value[name]!r}}}, expected names of layers by the name of a layer")
    return found


def _rotation(value: Any) -> bool | str:
    return FOLDED if value == FOLDED else bool(value)


_group_dim = expecting(
    "1: groups run along the inputs of a weight, as every kernel reads them",
    lambda value: is_whole(value) and value == 1,
    int,
)
_folded = expecting(
    f"False or {FOLDED!r}: inputs are turned at run time (True) by RTNConfig and GPTQConfig",
    lambda value: value is False or value == FOLDED,
    _rotation,
)
_hadamard = expecting(
    f"False, True (inputs are turned at run time), or {FOLDED!r}",
    lambda value: isinstance(value, bool) or value == FOLDED,
    _rotation,
)
Flag = Annotated[bool, one_or_more(flag)]
Bits = Annotated[int, one_or_more(whole_between(1, 8, "bits"))]
GroupSize = Annotated[int, one_or_more(group_size)]
GroupDim = Annotated[int, one_or_more(_group_dim)]
WeightDtype = Annotated[str, one_or_more(weight_dtype)]
Dtype = Annotated[str, one_or_more(registered_dtype)]
Path = Annotated[str, PlainValidator(path_text)]
LayerMap = Annotated[dict[str, list[str]], PlainValidator(layer_map)]
Count = Annotated[int, one_or_more(at_least(1))]
Seed = Annotated[int, one_or_more(seed)]
Fraction = Annotated[float, one_or_more(number_between(0, 1))]
Hadamard = Annotated[bool | str, one_or_more(_hadamard)]
FoldedHadamard = Annotated[bool | str, one_or_more(_folded)]
ScaleSearch = Annotated[str, one_or_more(word(("none", "mse", "importance")))]


class TorchConfig(ComposableConfig):
    """The base of the configurations of PyTorch: with ``hadamard="folded"`` a rotation goes into the weights first."""

    @property
    def passes(self) -> tuple[Pass, ...]:
        return (ROTATE,) if getattr(self, "hadamard", False) == FOLDED else ()


def spelled(known: tuple[str, ...], same: Callable[[str], str]) -> Any:
    """A validator that admits the words in ``known`` in any spelling of which ``same`` makes one, and keeps that listed."""
    listed = {same(name): name for name in known}

    def check(value: Any) -> str:
        try:
            found = listed.get(same(value)) if isinstance(value, str) else None
        except ConfigError:
            found = None  # the message below names what is known here
        if found is None:
            raise ConfigError(f"got {value!r}; {close_matches(str(value), known)}")
        return found

    return check
