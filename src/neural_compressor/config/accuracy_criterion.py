"""The promise: how much accuracy may be lost."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, model_validator

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.words import flag, non_negative, word
from neural_compressor.errors import ConfigError


class AccuracyCriterion(ConfigModel):
    """How much of the float model's accuracy may be lost: a share of it (relative) or so many points (absolute).

    A relative loss is at most 1, all of it.

    >>> AccuracyCriterion(tolerable_loss=0.02).relative
    0.02
    """

    higher_is_better: Annotated[bool, BeforeValidator(flag)] = True
    criterion: Annotated[str, BeforeValidator(word(("relative", "absolute")))] = "relative"
    tolerable_loss: Annotated[float, BeforeValidator(non_negative)] = 0.01

    @model_validator(mode="after")
    def _share_of_the_whole(self) -> AccuracyCriterion:
        check_loss(self.criterion, self.tolerable_loss)
        return self

    @property
    def relative(self) -> float | None:
        """The tolerable loss where the criterion is relative, else None."""
        return self.tolerable_loss if self.criterion == "relative" else None

    @property
    def absolute(self) -> float | None:
        """The tolerable loss where the criterion is absolute, else None."""
        return self.tolerable_loss if self.criterion == "absolute" else None


def check_loss(criterion: str, tolerable_loss: float) -> None:
    """Refuse a relative loss of more than everything, which nobody means."""
    if criterion == "relative" and tolerable_loss > 1:
        raise ConfigError(
            f"tolerable_loss: got {tolerable_loss:g} with criterion 'relative', which is {tolerable_loss:.0%} of the float "
            f"model's metric, expected a share from 0 to 1; did you mean {tolerable_loss / 100:g} ({tolerable_loss:g} "
            "percent), or criterion 'absolute'?"
        )
