"""The configurations that autotune tries, and what it promises."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PlainValidator, model_validator

from neural_compressor.config.base import ConfigModel, named_arguments
from neural_compressor.config.composition import Composition
from neural_compressor.config.criteria import AccuracyCriterion, TuningCriterion, check_loss, objectives
from neural_compressor.config.process_options import usual_seed
from neural_compressor.config.validators import Flag, Seed, at_least, finite, is_whole, non_negative, optional, word
from neural_compressor.errors import ConfigError
from neural_compressor.paths import path_of
from neural_compressor.registry import close_matches

Sampler = Callable[[Sequence[Composition]], Sequence[Composition]]
SAMPLERS = ("sequential", "random")
_POSITIONAL = ("config_set", "sampler", "tolerable_loss", "max_trials")


def _config_set(value: Any) -> tuple[Composition, ...]:
    given = value if isinstance(value, list | tuple) else [value]
    if len(given) == 1 and isinstance(given[0], list | tuple):
        given = given[0]  # ([...],), as guides print it
    found = tuple(Composition.from_dict(item) if isinstance(item, Mapping) else item for item in given)
    for item in found:
        if not isinstance(item, Composition):
            raise ConfigError(f"got {item!r}, expected a configuration such as RTNConfig(), or a list of them")
    if not found:
        raise ConfigError("got an empty list, expected at least one configuration to try")
    return found


def _sampler(value: Any) -> Any:
    if value is None or callable(value):
        return value
    if isinstance(value, str) and value in SAMPLERS:
        return value
    raise ConfigError(
        f"got {value!r}, expected a function of a list of configurations; {close_matches(str(value), SAMPLERS)}"
    )


def _at(singles: Sequence[Composition], choice: Any) -> Any:
    """What a sampler chose: a configuration, or its position."""
    if not is_whole(choice):
        return choice
    if not 0 <= choice < len(singles):
        raise ConfigError(f"the sampler returned the position {choice}; there are {len(singles)} configurations to try")
    return singles[choice]


class TuningConfig(ConfigModel):
    """What autotune tries, in which order, and when it stops.

    ``config_set`` is one configuration or a list of them; list-valued parameters span a space. ``sampler`` orders what
    there is to try: ``"sequential"`` (the default), ``"random"`` (seeded by ``seed``), or a function from the list of
    configurations to those to try, or to their positions. The promise is ``tolerable_loss``, a share of the float
    model's metric or so many points of it (``criterion`` ``"relative"`` or ``"absolute"``); below 0 it is a gain to reach.
    ``timeout`` is in seconds; 0 stops at the first model that keeps the promise. The journal lies in ``workspace``.
    """

    config_set: Annotated[tuple[Composition, ...], PlainValidator(_config_set)]
    sampler: Annotated[str | Sampler | None, PlainValidator(_sampler)] = None
    tolerable_loss: Annotated[float, PlainValidator(finite)] = 0.01
    max_trials: Annotated[int, PlainValidator(at_least(1))] = 100
    higher_is_better: Flag = True
    criterion: Annotated[str, PlainValidator(word(("relative", "absolute")))] = "relative"
    timeout: Annotated[float, PlainValidator(non_negative)] = 0
    workspace: Annotated[Path | None, PlainValidator(optional(path_of))] = None
    seed: Seed = Field(default_factory=usual_seed)

    @model_validator(mode="after")
    def _share_of_the_whole(self) -> TuningConfig:
        check_loss(self.criterion, self.tolerable_loss)
        return self

    def __init__(self, *args: Any, **values: Any) -> None:
        named = named_arguments(type(self), _POSITIONAL, args, values)
        if "config_set" not in named:
            raise ConfigError("TuningConfig needs config_set: a configuration such as RTNConfig(), or a list of them")
        super().__init__(**named)

    @classmethod
    def require(cls, given: Any) -> None:
        """Refuse what is ``given`` as ``tune_config`` and is none."""
        if not isinstance(given, cls):
            raise ConfigError(
                f"tune_config is a {type(given).__name__}; expected TuningConfig(config_set=...), with what is to be tried"
            )

    @property
    def accuracy_criterion(self) -> AccuracyCriterion:
        """The promise."""
        return AccuracyCriterion(
            higher_is_better=self.higher_is_better, criterion=self.criterion, tolerable_loss=self.tolerable_loss
        )

    @property
    def tuning_criterion(self) -> TuningCriterion:
        """The budget; of the models that keep the promise the smallest is the best."""
        return TuningCriterion(max_trials=self.max_trials, timeout=self.timeout, objective=objectives("modelsize"))

    def expand(self) -> list[Composition]:
        """The single configurations of all sets in their order, each once."""
        found: dict[str, Composition] = {}
        for config in self.config_set:
            for single in config.expand():
                found.setdefault(single.identity, single)
        return list(found.values())

    def candidates(self) -> list[Composition]:
        """What is tried, in order: the expanded sets as the sampler arranges them."""
        singles = self.expand()
        if callable(self.sampler):
            chosen = [_at(singles, choice) for choice in self.sampler(singles)]
            known = {single.identity for single in singles}
            for config in chosen:
                if not isinstance(config, Composition) or config.identity not in known:
                    raise ConfigError(f"the sampler returned {config!r}, which is not one of the configurations to try")
            return list({config.identity: config for config in chosen}.values())
        if self.sampler == "random":
            random.Random(self.seed).shuffle(singles)
        return singles
