"""Schedules of the learning rate: by name, as factors, or those of a scheduler of torch."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from neural_compressor.config.validators import listed
from neural_compressor.errors import ConfigError

SCHEDULES = ("linear", "cosine", "constant")


def schedule(value: Any) -> Any:
    """The name of a schedule of learning rates, or a factor for each step; a list is no choice of values."""
    if value is None:
        return "linear"
    listed_factors = isinstance(value, list | tuple) and all(
        type(each) in (int, float) and 0 <= each < math.inf for each in value
    )
    if (isinstance(value, str) and value in SCHEDULES) or (listed_factors and value):
        return value if isinstance(value, str) else tuple(map(float, value))
    raise ConfigError(
        f"got {value!r}, expected one of {', '.join(SCHEDULES)}, a factor for each step, a scheduler of torch, or a "
        "function that makes one, as in lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)"
    )


def factors(given: Any, iters: Any) -> tuple[float, ...]:
    """What a scheduler makes of a learning rate in each of ``iters`` steps.

    ``given`` makes one for an optimizer with a learning rate of 1, or is one: a copy of it then goes on from where it is,
    and factors are relative to the learning rate that its optimizer started with.

    >>> factors(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5), 4)
    (1.0, 1.0, 0.5, 0.5)
    """
    if not isinstance(iters, int) or iters < 1:
        raise ConfigError(f"AutoRoundConfig.lr_scheduler: a scheduler is asked for each step, and iters is {iters!r}")
    scheduler = _copied(given) if isinstance(given, LRScheduler) else _made(given)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError(
            "AutoRoundConfig.lr_scheduler: ReduceLROnPlateau follows a metric, which training here does not have; give a "
            "scheduler that counts steps, or dynamic_max_gap to end training that gains nothing"
        )
    groups = scheduler.optimizer.param_groups
    starts = [float(group["initial_lr"]) if isinstance(given, LRScheduler) else 1.0 for group in groups]
    if not all(starts):
        raise ConfigError(
            "AutoRoundConfig.lr_scheduler: its optimizer starts with a learning rate of 0; give one above"
        )
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no step of an optimizer comes before that of the scheduler
        for step in range(iters):
            rates = [float(group["lr"]) / start for group, start in zip(groups, starts, strict=True)]
            if not all(math.isclose(rate, rates[0], rel_tol=1e-6) for rate in rates):
                raise ConfigError(
                    f"AutoRoundConfig.lr_scheduler: groups of parameters have different factors ({listed(rates)} in step "
                    f"{step}), and all weights have one here; give a scheduler of one group, or a factor for each step"
                )
            found.append(rates[0])
            scheduler.step()
    return tuple(found)


def _copied(scheduler: LRScheduler) -> LRScheduler:
    """A scheduler in the same state, of an optimizer that has the same groups and none of the parameters."""
    groups = []
    for group in scheduler.optimizer.param_groups:
        fields = {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
        groups.append({**fields, "params": [torch.zeros(1, requires_grad=True)]})
    stand_in = torch.optim.SGD(groups, lr=1.0)
    return copy.deepcopy(scheduler, {id(scheduler.optimizer): stand_in})


def _made(maker: Any) -> LRScheduler:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    expected = "expected a scheduler of torch.optim.lr_scheduler for the optimizer that the function is called with"
    try:
        scheduler = maker(optimizer)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ConfigError(f"AutoRoundConfig.lr_scheduler: {maker!r} raised {said}; {expected}") from error
    if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is not optimizer:
        raise ConfigError(f"AutoRoundConfig.lr_scheduler: {maker!r} gave a {type(scheduler).__name__}, {expected}")
    return scheduler
