"""Batches of a data set as NumPy arrays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from neural_compressor.config.process_options import options
from neural_compressor.config.validators import at_least, word
from neural_compressor.errors import ConfigError
from neural_compressor.metric import known_framework, known_frameworks

_OTHERS = {"sampler": None, "batch_sampler": None, "num_workers": 0, "pin_memory": False, "distributed": False}
"""Arguments of loaders elsewhere, with the values that they have when they are left out."""


class DefaultDataLoader:
    """Batches of ``batch_size`` samples; samples that are tuples or mappings are stacked part by part.

    With ``shuffle`` the order is drawn once, by the random seed of the process: each round gives the same batches.
    ``last_batch="discard"`` leaves out a last batch that is not full.

    >>> [batch.tolist() for batch in DefaultDataLoader([1, 2, 3], batch_size=2)]
    [[1, 2], [3]]
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        last_batch: str = "rollover",
        collate_fn: Callable[[Sequence[Any]], Any] | None = None,
        shuffle: bool = False,
        **others: Any,
    ) -> None:
        for name, value in others.items():
            if name not in _OTHERS or value != _OTHERS[name]:
                raise ConfigError(
                    f"{type(self).__name__}: got {name}={value!r}; batches are made in this process, in the order of the "
                    "data or shuffled once. Any loader that can be gone over again serves, that of torch too"
                )
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise ConfigError(
                f"dataset is a {type(dataset).__name__}; expected one with a length whose samples are taken by position"
            )
        self.dataset = dataset
        self.batch_size = at_least(1)(batch_size)
        self._whole_only = word(("rollover", "discard"))(last_batch) == "discard"
        self._collate = collate_fn or stacked
        self._order = list(range(len(dataset)))
        if shuffle:
            random.Random(options.random_seed).shuffle(self._order)

    def __len__(self) -> int:
        return len(self._order) // self.batch_size if self._whole_only else -(-len(self._order) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        for number in range(len(self)):
            places = self._order[number * self.batch_size : (number + 1) * self.batch_size]
            yield self._collate([self.dataset[place] for place in places])


class DataLoader(DefaultDataLoader):
    """:class:`DefaultDataLoader`, whose arrays are torch tensors where the ``framework`` is PyTorch."""

    def __init__(self, framework: str, dataset: Any, batch_size: int = 1, **kwargs: Any) -> None:
        super().__init__(dataset, batch_size, **kwargs)
        self._as_torch = known_framework(framework, "DataLoader").startswith("pytorch")

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield _as_torch(batch) if self._as_torch else batch


class Loaders(Mapping[str, Callable[..., DataLoader]]):
    """Loaders by framework.

    >>> len(DATALOADERS["onnxruntime"]([1, 2, 3], batch_size=2))
    2
    """

    def __getitem__(self, framework: str) -> Callable[..., DataLoader]:
        return partial(DataLoader, known_framework(framework, "DATALOADERS"))

    def __iter__(self) -> Iterator[str]:
        return iter(known_frameworks())

    def __len__(self) -> int:
        return len(known_frameworks())


DATALOADERS = Loaders()


def stacked(samples: Sequence[Any]) -> Any:
    """Samples as one batch."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: stacked([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(stacked(part) for part in zip(*samples, strict=True))
    return np.stack([np.asarray(sample) for sample in samples])


def _as_torch(batch: Any) -> Any:
    import torch

    if isinstance(batch, Mapping):
        return {name: _as_torch(part) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_as_torch(part) for part in batch)
    return torch.as_tensor(batch) if isinstance(batch, np.ndarray) else batch
