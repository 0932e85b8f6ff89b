"""Methods as the APIs spell them: a table from the names of each API to the options of the algorithms.

A name that an option has itself needs no entry, and one that stands for options an algorithm does not have says nothing
to it: a table holds for all the algorithms of its API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.errors import ConfigError
from neural_compressor.registry import close_matches
from neural_compressor.schemes import Method

Spelling = str | Callable[[Any], Mapping[str, Any]]
"""The option that a name stands for, or what makes options of its value."""
OptionTable = Mapping[str, Spelling]


def searched(value: bool) -> dict[str, Any]:
    """The option for a yes or no to a search of ranges."""
    return {"search": "mse" if value else None}


def _only(name: str, *right: Any, why: str) -> Callable[[Any], Mapping[str, Any]]:
    """No option: of the values that ``name`` has elsewhere only those that are ``right`` here; None was not given."""

    def check(value: Any) -> dict[str, Any]:
        if value is not None and value not in right:
            raise ConfigError(f"{name}: got {value!r}, expected {' or '.join(map(repr, right))}: {why}")
        return {}

    return check


def _ranges_searched(value: Any) -> dict[str, Any]:
    return {"auto_clip": value, "clip": value, **searched(value)}


def _full_range(value: Any) -> dict[str, Any]:
    return {"full_range": None if value else False}


RECIPE_OPTIONS: OptionTable = {
    "mse": searched,
    "actorder": "act_order",
    "blocksize": "block_size",
    "perchannel": _only("perchannel", True, why="there is a scale for each channel and group"),
    "correct_upstream": "upstream",
    "enable_auto_scale": "auto_scale",
    **dict.fromkeys(("enable_mse_search", "mse_range"), _ranges_searched),
    **dict.fromkeys(("enable_full_range", "sym_full_range"), _full_range),
    "n_samples": "nsamples",
    "n_blocks": "nblocks",
    "seq_len": "seqlen",
    "pad_max_length": "seqlen",
    "use_max_length": _only(
        "use_max_length", False, why="it leaves out shorter samples; give calibration data without them"
    ),
    **dict.fromkeys(("enable_quanted_input", "use_quant_input"), "quantized_input"),
    "return_int": _only("return_int", True, False, why="weights are stored as integers either way"),
    "group_dim": _only("group_dim", 1, why="groups run along the inputs of a layer"),
    "scale_dtype": _only("scale_dtype", "fp32", "float32", why="scales are kept in it"),
    "low_gpu_mem_usage": _only("low_gpu_mem_usage", True, False, why="blocks are worked on one at a time either way"),
    "not_use_best_mse": lambda value: {"keep_best": not value},
}
"""The names in the recipes ``rtn_args``, ``gptq_args`` and so on of the 2.x API."""


def method_of(algorithm: str, fields: Mapping[str, Any], table: OptionTable) -> Method:
    """The method that the ``fields`` of a configuration ask for; those that are no options of it are left aside.

    >>> method_of("gptq", {"bits": 4, "actorder": True, "percdamp": 0.1}, RECIPE_OPTIONS)
    Method(name='gptq', options={'act_order': True, 'percdamp': 0.1})
    """
    known = ALGORITHMS[algorithm].options_model.model_fields
    options: dict[str, Any] = {}
    for field, value in fields.items():
        spelling = table.get(field, field)
        found = spelling(value) if callable(spelling) else {spelling: value}
        options |= {name: option for name, option in found.items() if name in known}
    return ALGORITHMS[algorithm].method(**options)


def method_from_args(algorithm: str, args: Mapping[str, Any]) -> Method:
    """The method that the recipe ``<algorithm>_args`` asks for, where every name has to mean something.

    >>> method_from_args("gptq", {"actoder": True})
    Traceback (most recent call last):
    neural_compressor.errors.ConfigError: recipe gptq_args has no 'actoder'; did you mean 'actorder', ...
    """
    options = ALGORITHMS[algorithm].options_model.model_fields
    spelled = {name for name, spelling in RECIPE_OPTIONS.items() if _stands_for(spelling, options)}
    for name in args:
        if name not in spelled and name not in options:
            raise ConfigError(
                f"recipe {algorithm}_args has no {name!r}; {close_matches(str(name), {*spelled, *options})}"
            )
    by_option: dict[str, str] = {}
    for name in args:
        spelling = RECIPE_OPTIONS.get(name, name)
        if isinstance(spelling, str) and (other := by_option.setdefault(spelling, name)) != name:
            raise ConfigError(f"recipe {algorithm}_args: {other} and {name} say the same; leave one out")
    # A yes or no that is None was not given.
    args = {name: value for name, value in args.items() if value is not None or not callable(RECIPE_OPTIONS.get(name))}
    try:
        return method_of(algorithm, args, RECIPE_OPTIONS)
    except ConfigError as error:
        raise ConfigError(f"recipe {algorithm}_args: {error}") from None


def _stands_for(spelling: Spelling, options: Mapping[str, Any]) -> bool:
    names = spelling(None) if callable(spelling) else (spelling,)
    return not names or any(name in options for name in names)
