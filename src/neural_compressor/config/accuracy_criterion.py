"""The promise: how much accuracy may be lost."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from neural_compressor.config.base import ConfigModel
from neural_compressor.config.words import flag, non_negative, word


class AccuracyCriterion(ConfigModel):
    """How much of the float model's accuracy may be lost: a share of it (relative) or so many points (absolute).

    >>> AccuracyCriterion(tolerable_loss=0.02).relative
    0.02
    """

    higher_is_better: Annotated[bool, BeforeValidator(flag)] = True
    criterion: Annotated[str, BeforeValidator(word(("relative", "absolute")))] = "relative"
    tolerable_loss: Annotated[float, BeforeValidator(non_negative)] = 0.01

    @property
    def relative(self) -> float | None:
        """The tolerable loss where the criterion is relative, else None."""
        return self.tolerable_loss if self.criterion == "relative" else None

    @property
    def absolute(self) -> float | None:
        """The tolerable loss where the criterion is absolute, else None."""
        return self.tolerable_loss if self.criterion == "absolute" else None
