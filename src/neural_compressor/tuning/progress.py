"""What the tuning loop tells whoever watches it."""

from __future__ import annotations

from typing import Protocol

from neural_compressor.tuning.result import Measurement, Trial


class Progress(Protocol):
    """Callbacks of a tuning run, in the order in which they come."""

    def baseline_start(self) -> None: ...

    def baseline_done(self, measurement: Measurement) -> None: ...

    def trial_start(self, number: int, stage: str) -> None: ...

    def trial_done(self, trial: Trial) -> None: ...

    def interrupted(self, message: str) -> None: ...


class Silent:
    """Watches and says nothing."""

    def baseline_start(self) -> None:
        """Nothing to say."""

    def baseline_done(self, measurement: Measurement) -> None:
        """Nothing to say."""

    def trial_start(self, number: int, stage: str) -> None:
        """Nothing to say."""

    def trial_done(self, trial: Trial) -> None:
        """Nothing to say."""

    def interrupted(self, message: str) -> None:
        """Nothing to say."""
