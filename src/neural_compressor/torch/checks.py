"""Checks of a float model before any work is done on it."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from neural_compressor.errors import ConfigError, QuantizationError

M = TypeVar("M", bound=nn.Module)

PREPARED = "_prepared"
"""The attribute of a prepared model that holds what is about to be done to it."""


def require_module(model: Any, function: str) -> None:
    """Refuse what is no eager model; ``function`` is what it was given to."""
    if isinstance(model, torch.jit.ScriptModule):
        raise ConfigError(f"{function}: the model is compiled by torch.jit; give the torch.nn.Module it was made from")
    if isinstance(model, nn.Module) and hasattr(model, "_orig_mod"):
        raise ConfigError(
            f"{function}: the model is compiled by torch.compile; give the torch.nn.Module it was made from"
        )
    if isinstance(model, nn.Module) and model._compiled_call_impl is not None:
        raise ConfigError(
            f"{function}: the model is compiled by its method compile; quantize it first, compile it then"
        )
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise ConfigError(f"{function}: the model is {what}; expected a torch.nn.Module")


def require_values(model: nn.Module) -> None:
    """Refuse a model with parameters on the meta device, naming the first one."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise QuantizationError(
                f"parameter {name!r} has no values (meta device): load the weights of the model first"
            )


def check_finite(model: nn.Module) -> None:
    """Refuse a model with parameters that are not made yet, or that hold NaN or Inf, naming the first one."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise QuantizationError(
                f"parameter {name!r} has no shape yet, as the input of its lazy module has not been seen: run the float "
                "model on a batch first"
            )
        if parameter.is_floating_point() and not parameter.is_meta and not bool(torch.isfinite(parameter).all()):
            raise QuantizationError(
                f"parameter {name!r} of shape {tuple(parameter.shape)} holds NaN or Inf; repair the float model first"
            )


def copy_of(model: M, memo: dict[int, Any] | None = None) -> M:
    """A deep copy of ``model``, with what is in ``memo`` for objects of these ids; one that fails says why."""
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise QuantizationError(
            f"a model of type {type(model).__name__} cannot be copied: {type(error).__name__}: {error}. Causes are "
            "an attribute such as a lock or an open file, or a weight that a hook computes (torch.nn.utils.weight_norm); "
            "remove it, or use torch.nn.utils.parametrizations"
        ) from error


def require_same_config(given: Any, prepared: Any) -> None:
    """Refuse another configuration for ``convert`` than the model was prepared with."""
    if prepared is not None and getattr(given, "identity", None) != prepared.identity:
        raise ConfigError(
            f"convert: the model was prepared with {prepared!r}, and quant_config is {given!r}; leave it out, or prepare "
            "the float model with it"
        )
