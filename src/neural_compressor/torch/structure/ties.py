"""Parameters that several modules hold together, and those that no longer are one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def tied_parameters(model: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several.

    >>> model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    >>> model[1].weight = model[0].weight
    >>> tied_parameters(model)
    [['0.weight', '1.weight']]
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [tied for tied in names.values() if len(tied) > 1]


def untie_stored(model: nn.Module, stored: Mapping[str, Tensor]) -> None:
    """Give parameters of ``model`` that are one, and of which ``stored`` has a tensor for each, values of their own."""
    for tied in tied_parameters(model):
        known = [name for name in tied if name in stored]
        if len({id(stored[name]) for name in known}) > 1:
            for name in known:
                old = model.get_parameter(name)
                set_parameter(model, name, old.detach().clone())
            forget_ties(model)


def set_parameter(model: nn.Module, name: str, value: Tensor) -> None:
    """Put ``value`` in the place of the parameter ``name``; what that was tied to keeps what it has."""
    owner, _, own = name.rpartition(".")
    module = model.get_submodule(owner)
    module._parameters[own] = nn.Parameter(value, requires_grad=module.get_parameter(own).requires_grad)


def forget_ties(model: nn.Module) -> None:
    """Have a model of transformers know that parameters are no longer one, or it would tie them when it is loaded.

    Its configuration has one switch for all that is tied: what still is one gets values of its own, too (biases of heads,
    the embedding of an encoder).
    """
    switched = set[str]()
    for prefix, module in model.named_modules():
        config: Any = getattr(module, "config", None)
        text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
        for each in (config, text):
            if getattr(each, "tie_word_embeddings", False):
                each.tie_word_embeddings = False
        ties = getattr(module, "all_tied_weights_keys", None)
        if isinstance(ties, dict):
            switched |= {f"{prefix}.{name}".lstrip(".") for name in (*ties, *ties.values())}
            ties.clear()
    for first, *others in tied_parameters(model):
        for name in switched.intersection(others):
            set_parameter(model, name, model.get_parameter(first).detach().clone())
