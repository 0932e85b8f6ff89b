"""Data sets on this machine: random arrays, and images in folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neural_compressor.config.process_options import options
from neural_compressor.errors import ConfigError, MissingDependencyError
from neural_compressor.metric import known_framework
from neural_compressor.paths import path_of
from neural_compressor.registry import close_matches

Transform = Callable[[Any], Any]
_IMAGES = (".jpeg", ".jpg", ".png", ".bmp")


class Dummy:
    """Random samples: ``shape`` is the number of samples and the shape of each. With ``label`` each comes with the label 0.

    >>> data = Dummy((4, 3, 8, 8), low=0.0, high=1.0)
    >>> len(data), data[0][0].shape
    (4, (3, 8, 8))
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        low: float = -128.0,
        high: float = 127.0,
        dtype: str = "float32",
        label: bool = True,
        transform: Transform | None = None,
    ) -> None:
        if len(shape) < 1 or low >= high:
            raise ConfigError(
                f"Dummy: got shape {shape!r}, low {low!r}, high {high!r}; expected samples and low < high"
            )
        self._data = np.random.default_rng(options.random_seed).uniform(low, high, shape).astype(dtype)
        self._label, self._transform = label, transform

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        sample = (self._data[index], 0) if self._label else self._data[index]
        return sample if self._transform is None else self._transform(sample)


class ImageFolder:
    """Images in one folder for each class, as arrays (height, width, 3) with the number of the class."""

    def __init__(self, root: str | Path, transform: Transform | None = None) -> None:
        folder = path_of(root, "root")
        if not folder.is_dir():
            raise ConfigError(
                f"ImageFolder: there is no folder {str(folder)!r}; give one that has a folder for each class"
            )
        self.classes = sorted(each.name for each in folder.iterdir() if each.is_dir())
        self._files = [
            (file, number)
            for number, name in enumerate(self.classes)
            for file in sorted((folder / name).iterdir())
            if file.suffix.lower() in _IMAGES
        ]
        if not self._files:
            raise ConfigError(
                f"ImageFolder: {str(folder)!r} has no images ({', '.join(_IMAGES)}) in folders of classes"
            )
        self._transform = transform

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingDependencyError("images are read by Pillow; install it with: pip install pillow") from error
        file, number = self._files[index]
        with Image.open(file) as image:
            sample = (np.asarray(image.convert("RGB")), number)
        return sample if self._transform is None else self._transform(sample)


class Datasets(Mapping[str, Callable[..., Any]]):
    """Data sets by name; they are the same for every ``framework``.

    >>> Datasets("pytorch")["dummy"](shape=(2, 3)).__len__()
    2
    """

    _KNOWN: Mapping[str, Callable[..., Any]] = {"dummy": Dummy, "ImageFolder": ImageFolder}

    def __init__(self, framework: str) -> None:
        self.framework = known_framework(framework, "Datasets")

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self._KNOWN:
            raise ConfigError(
                f"there is no data set {name!r} here, and nothing is downloaded; {close_matches(str(name), self._KNOWN)}. "
                "Any object with a length that gives (input, label) by position is a data set for DataLoader"
            )
        return self._KNOWN[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._KNOWN)

    def __len__(self) -> int:
        return len(self._KNOWN)
