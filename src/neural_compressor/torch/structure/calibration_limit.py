"""How much of the calibration data is used."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from neural_compressor.torch.batches import batch_size, tensors_in
from neural_compressor.torch.structure.replay import Arguments, independent


@dataclass(frozen=True)
class CalibrationLimit:
    """At most so many samples (rows of batches), and so many tokens of each.

    Tokens are counted where there are: integers of shape (samples, tokens), such as ids and masks. What is as long as
    these is cut with them.

    >>> import torch
    >>> ids = torch.arange(12).reshape(3, 4)
    >>> CalibrationLimit(samples=4, tokens=2).cut(((ids,), {}), seen=2)[0][0].tolist()
    [[0, 1], [4, 5]]
    """

    samples: float = math.inf
    tokens: float = math.inf

    @classmethod
    def covering(cls, limits: Iterable[CalibrationLimit]) -> CalibrationLimit:
        """Enough for all of several."""
        listed = list(limits)
        return cls(max((each.samples for each in listed), default=0), max((each.tokens for each in listed), default=0))

    def cut(self, call: Arguments, seen: int) -> Arguments | None:
        """What is used of a call of the model behind ``seen`` samples; None where that is nothing."""
        rows, left = batch_size(call), self.samples - seen
        if left <= 0:
            return None
        numbers = [t for t in tensors_in(call) if t.dim() == 2 and not t.is_floating_point()]
        long = {t.shape[1] for t in numbers if t.shape[1] > self.tokens}

        def used(tensor: Tensor) -> Tensor:
            if tensor.dim() > 1 and tensor.shape[1] in long:
                tensor = tensor[:, : int(self.tokens)]
            return tensor[: int(left)] if rows > left and tensor.dim() and tensor.shape[0] == rows else tensor

        return independent(call, used)


UNLIMITED = CalibrationLimit()
