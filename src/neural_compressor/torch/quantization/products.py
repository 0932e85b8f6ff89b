"""Products that forwards compute by functions, made ops where a configuration names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from neural_compressor.config.composable import ComposableConfig
from neural_compressor.config.composition import Composition
from neural_compressor.config.op_selector import Claim
from neural_compressor.schemes import OpKey
from neural_compressor.torch.files.streaming import is_empty
from neural_compressor.torch.modules.function_products import open_products
from neural_compressor.torch.passes.survey import products_on
from neural_compressor.torch.quantization.config import FP8Config
from neural_compressor.torch.structure.ops import find_ops


def may_name_products(model: nn.Module, config: Composition) -> bool:
    """Whether a rule or list of ``config`` speaks of no module that is an op or stays in float, or of products alone."""
    if not isinstance(config, Composition) or is_empty(model):
        return False
    ops, in_float = find_ops(model)
    types = dict([*in_float, *ops])
    selectors = [claim.selector for part in config.parts for claim in part.claims() if claim.selector is not None]
    fp8 = (each for each in config.every if isinstance(each, FP8Config))
    entries = (entry for each in fp8 for entry in each.listed_among(types.items()))
    chosen = [*(selector.select(types) for selector in selectors), *entries]
    return any(all(types[name] == "MatMul" for name in names) for names in chosen)


def open_function_products(model: nn.Module, example_inputs: Any) -> bool:
    """Make modules of all products that ``model`` computes by functions; whether it could be run to find them."""
    found = products_on(model, example_inputs)
    open_products(model, found or {})
    return found is not None


def are_named(claim: Claim[ComposableConfig] | None, key: OpKey, types: Mapping[str, str]) -> bool:
    """Whether a claim speaks of the product ``key`` and of no ops but products."""
    found: Iterable[list[str]] = []
    if claim is None:
        return False
    if isinstance(claim.config, FP8Config):
        found = claim.config.listed_among(types.items(), "allowlist")
    chosen = [*found, *([] if claim.selector is None else [claim.selector.select(types)])]
    return any(key[0] in names and all(types[name] == "MatMul" for name in names) for names in chosen)
