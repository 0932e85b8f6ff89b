"""Selection of nodes: the configuration each node of a model gets, and why others stay in float."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from neural_compressor.config.composition import Composition
from neural_compressor.config.op_selector import OpSelector
from neural_compressor.errors import ConfigError, NothingToQuantizeError
from neural_compressor.onnx.quantization.config.fields import OnnxConfig

PRODUCTS = ("MatMul", "Gemm")
"""Types of node of which ``quant_last_matmul`` means the last."""
CONTRIBUTED_TYPES = ("Attention", "EmbedLayerNormalization", "FusedConv")
"""Operators of ONNX Runtime itself that a list of types may name, whether the model has them or not."""


@dataclass(frozen=True)
class Selection:
    """The configurations of the nodes to quantize, and the reasons of those that the configuration keeps in float.

    ``named`` are the nodes asked for by name: where one cannot be quantized, that has to be said. ``meant`` are these and
    those asked for by their type. ``kept`` are those of ``left`` that a rule or a list keeps there.
    """

    configs: Mapping[str, OnnxConfig]
    left: Mapping[str, str]
    named: frozenset[str]
    meant: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()

    def of(self, approach: str) -> dict[str, Any]:
        """The configurations of one approach."""
        return {name: config for name, config in self.configs.items() if config.approach == approach}


def select(config: Composition, kinds: Mapping[str, str]) -> Selection:
    """What ``config`` says of the nodes in ``kinds``, which holds their types by name in the order they run.

    A rule or a name that matches no node is an error that names close matches.
    """
    for part in config.parts:
        _require_types(part, kinds)
    given = config.assign(kinds)
    bounds = {id(each): _bounds(each, kinds) for each in config.every}
    configs: dict[str, OnnxConfig] = {}
    left: dict[str, str] = {}
    named: set[str] = set()
    meant: set[str] = set()
    kept: set[str] = set()
    for name, assigned in given.items():
        claim = assigned.claim
        if claim is None:
            left[name] = "no part of the configuration claims it"
            continue
        each: Any = claim.config
        if id(each) not in bounds:
            bounds[id(each)] = _bounds(each, kinds)
        bound = bounds[id(each)]
        by_name = name in (bound.only or ()) or (claim.selector is not None and claim.selector.text == name)
        if not each.quantizes:
            left[name] = "its configuration leaves it in float"
            kept.add(name)
        elif reason := bound.reason(name, kinds[name], explicit=assigned.explicit):
            left[name] = reason
            kept |= {name} & bound.excluded
        else:
            configs[name] = each
            named |= {name} if by_name else set()
            meant |= {name} if assigned.explicit or bound.is_narrow else set()
    return Selection(configs, left, frozenset(named), frozenset(meant), frozenset(kept))


@dataclass(frozen=True)
class _Bounds:
    """The nodes that a configuration speaks of."""

    types: tuple[str, ...] | None
    usual: tuple[str, ...] | None
    only: frozenset[str] | None
    excluded: frozenset[str]
    last: str | None

    @property
    def is_narrow(self) -> bool:
        """Whether a list says which nodes or types are meant."""
        return self.only is not None or self.types is not None

    def reason(self, name: str, kind: str, explicit: bool) -> str:
        """Why a node stays in float; empty where it does not."""
        if name in self.excluded:
            return "nodes_to_exclude names it"
        if self.only is not None and name not in self.only:
            return "nodes_to_quantize does not name it"
        if self.types is not None and kind not in self.types:
            return f"op_types_to_quantize does not name {kind}"
        asked = explicit or self.is_narrow
        if self.usual is not None and not asked and kind not in self.usual:
            return f"{kind} is quantized where op_types_to_quantize or a rule names it"
        return "quant_last_matmul=False" if name == self.last else ""


def _bounds(config: OnnxConfig, kinds: Mapping[str, str]) -> _Bounds:
    only = _nodes(config, "nodes_to_quantize", kinds)
    products = [name for name, kind in kinds.items() if kind in PRODUCTS]
    return _Bounds(
        types=_types(config, kinds),
        usual=config.usual_types,
        only=frozenset(only) if config.nodes_to_quantize else None,
        excluded=frozenset(_nodes(config, "nodes_to_exclude", kinds)),
        last=products[-1] if products and not config.quant_last_matmul else None,
    )


def _nodes(config: OnnxConfig, field: str, kinds: Mapping[str, str]) -> list[str]:
    where = f"{type(config).__name__}.{field}"
    return named_nodes(getattr(config, field), kinds, where, by_type=False)


def named_nodes(wanted: Iterable[str], kinds: Mapping[str, str], where: str, by_type: bool = True) -> list[str]:
    """The nodes that a list of names and regular expressions, and of types where these count, means."""
    known = kinds if by_type else dict.fromkeys(kinds, "")
    found: list[str] = []
    for text in wanted:
        if not isinstance(text, str):
            raise ConfigError(f"{where}: got {text!r}, expected the name or the type of a node")
        selector = OpSelector(text)
        matched = selector.select(known)
        if not matched:
            raise ConfigError(f"{where}: {text!r} matches no node of the model; {selector.alternatives(kinds)}")
        found += matched
    return found


def _types(config: OnnxConfig, kinds: Mapping[str, str]) -> tuple[str, ...] | None:
    for kind in config.op_types_to_quantize or ():
        if kind not in kinds.values() and not onnx.defs.has(kind) and kind not in CONTRIBUTED_TYPES:
            hint = OpSelector(kind, is_type=True).alternatives(kinds)
            raise ConfigError(
                f"{type(config).__name__}.op_types_to_quantize: there is no type of node {kind!r}; {hint}"
            )
    return config.op_types_to_quantize


def _require_types(part: Any, kinds: Mapping[str, str]) -> None:
    """Refuse a list of types that speaks of no node at all; what is no type is told of elsewhere."""
    listed, known = part.op_types_to_quantize, sorted(set(kinds.values()))
    if listed and not set(listed) & set(known):
        _types(part, kinds)
        raise NothingToQuantizeError(
            f"{type(part).__name__}.op_types_to_quantize names {', '.join(listed)}, and the model has no node of these "
            f"types; it has {', '.join(known) or 'none'}"
        )


def require_onnx(config: Any) -> None:
    """Refuse what is no configuration for ONNX models."""
    if not isinstance(config, Composition):
        raise ConfigError(
            f"got {config!r} as quant_config, expected a configuration such as StaticQuantConfig(reader) or RTNConfig()"
        )
    for part in config.parts:
        if not isinstance(part, OnnxConfig):
            raise ConfigError(
                f"{type(part).__name__} is a configuration for {part.framework}, expected one for ONNX models"
            )
