"""Checks of a plan that are the same for every framework: its passes, the ops that it names, and their weights."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.registry import Registry, close_matches
from neural_compressor.schemes import Method, OpKey, OpScheme, Pass


def read_pass(step: Pass, passes: Registry[type[Any]], what: str) -> Any:
    """The dataclass that ``passes`` over ``what`` has for ``step``, with its options; unknown names are refused."""
    if step.name not in passes:
        raise ConfigError(f"no pass over {what} is called {step.name!r}; {close_matches(step.name, passes)}")
    kind = passes[step.name]
    known = [each.name for each in fields(kind)]
    for name in step.options:
        if name not in known:
            raise ConfigError(f"the pass {step.name} has no {name!r}; {close_matches(name, known)}")
    return kind(**step.options)


def check_known(key: OpKey, known: Collection[OpKey]) -> None:
    """Refuse an op that is none of those ``known``, with close matches of its type.

    >>> check_known(("fc", "Linear"), [("fc1", "Linear"), ("fc2", "Linear")])
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: the plan names 'fc' (Linear), which the model does not have; did you mean ...
    """
    if key not in known:
        names = [name for name, kind in known if kind == key[1]] or [name for name, _ in known]
        raise ConfigError(
            f"the plan names {key[0]!r} ({key[1]}), which the model does not have; {close_matches(key[0], names)}"
        )


def check_no_method(key: OpKey, scheme: OpScheme) -> None:
    """Refuse a method for the weight of an op that is rounded to nearest.

    >>> check_no_method(("fc", "Linear"), OpScheme.from_dict({"weight": {"dtype": "int8"}}))
    """
    if scheme.method is None or scheme.method == Method("rtn"):
        return
    elsewhere = "is for linear layers whose weight is quantized alone"
    if scheme.method.name == "qat":
        elsewhere = "finds weights in training: prepare_qat, or training.prepare_compression"
    raise ConfigError(
        f"the weight of a {scheme.mode} {key[1]} is rounded to nearest (rtn); method {scheme.method} {elsewhere}"
    )


def check_weight_range(scheme: OpScheme) -> None:
    """Refuse another range of a weight than its smallest and largest value: nothing estimates one.

    >>> check_weight_range(OpScheme.from_dict({"weight": {"dtype": "int8", "algorithm": "kl"}}))
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: the weight has the algorithm 'kl', which is for activations; ...
    """
    if scheme.weight is not None and scheme.weight.algorithm != "minmax":
        raise ConfigError(
            f"the weight has the algorithm {scheme.weight.algorithm!r}, which is for activations; leave it at 'minmax', or "
            "name a method that finds weights which are quantized alone"
        )
