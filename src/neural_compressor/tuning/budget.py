"""How long tuning goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from neural_compressor.errors import ConfigError


@dataclass(frozen=True)
class Budget:
    """When to stop: ``timeout`` seconds (0: at the first model that keeps the promise) or ``max_trials``."""

    timeout: float = 0.0
    max_trials: int = 100

    def __post_init__(self) -> None:
        if self.timeout < 0 or math.isnan(self.timeout):
            raise ConfigError(f"timeout must be at least 0 seconds (0: stop at the first pass), got {self.timeout!r}")
        if self.max_trials < 1:
            raise ConfigError(f"max_trials must be at least 1, got {self.max_trials!r}")

    @classmethod
    def from_config(cls, config: Any) -> Budget:
        """The budget that a ``TuningCriterion`` describes."""
        return cls(float(config.timeout), int(config.max_trials))

    def exceeds(self, other: Budget) -> bool:
        """Whether a run that ended with ``other`` may have more to do."""
        return self.max_trials > other.max_trials or self.timeout > other.timeout

    def end(self, trials: int, spent_s: float, passed: bool) -> str:
        """Why to stop after a trial that ``passed`` or did not; empty while there is reason to go on."""
        if self.timeout == 0 and passed:
            return "the promise is kept"
        if trials >= self.max_trials:
            return f"max_trials={self.max_trials} reached"
        if 0 < self.timeout <= spent_s:
            return f"timeout={self.timeout:g} s reached"
        return ""
