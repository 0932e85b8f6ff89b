"""Data sets on this machine: random arrays, and images in folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from neural_compressor.config.process_options import options
from neural_compressor.data.images import pillow
from neural_compressor.errors import ConfigError
from neural_compressor.metric import known_framework
from neural_compressor.paths import path_of
from neural_compressor.registry import close_matches

Transform = Callable[[Any], Any]
_IMAGES = (".jpeg", ".jpg", ".png", ".bmp")


def _no_filter(what: str, given: Any) -> None:
    if given is not None:
        raise ConfigError(f"{what}: got a filter, and all samples are given; take out of the data those that you want")


class Dummy:
    """Random samples: ``shape`` is the number of samples and the shape of each. With ``label`` each comes with the label 0.

    Of a list of shapes a sample is a tuple of arrays; ``low``, ``high`` and ``dtype`` may then be lists too.

    >>> data = Dummy((4, 3, 8, 8), low=0.0, high=1.0)
    >>> len(data), data[0][0].shape
    (4, (3, 8, 8))
    """

    def __init__(
        self,
        shape: Any,
        low: Any = -128.0,
        high: Any = 127.0,
        dtype: Any = "float32",
        label: bool = True,
        transform: Transform | None = None,
        filter: None = None,
    ) -> None:
        _no_filter("Dummy", filter)
        several = isinstance(shape, list) and any(isinstance(each, list | tuple) for each in shape)
        shapes = [tuple(each) for each in (shape if several else [shape])]
        parts = [each if isinstance(each, list) else [each] * len(shapes) for each in (low, high, dtype)]
        is_fitting = all(len(each) == len(shapes) for each in parts) and len({each[:1] for each in shapes}) == 1
        if not is_fitting or () in shapes or any(least >= most for least, most in zip(parts[0], parts[1], strict=True)):
            raise ConfigError(
                f"Dummy: got shape {shape!r}, low {low!r}, high {high!r}, dtype {dtype!r}; expected samples, as many of "
                "each input, and low < high"
            )
        random = np.random.default_rng(options.random_seed)
        self._data = [
            random.uniform(least, most, each).astype(kind)
            for each, least, most, kind in zip(shapes, *parts, strict=True)
        ]
        self._several, self._label, self._transform = several, label, transform

    def __len__(self) -> int:
        return len(self._data[0])

    def __getitem__(self, index: int) -> Any:
        arrays = tuple(each[index] for each in self._data)
        found = arrays if self._several else arrays[0]
        sample = (found, 0) if self._label else found
        return sample if self._transform is None else self._transform(sample)


class DummyV2:
    """Random samples of ``input_shape``, or of several inputs where it is a list of shapes, each with a label.

    The label has ``label_shape`` and is drawn likewise; without one it is 0. There are ``count`` samples, each known by its
    place and the random seed of the process.

    >>> inputs, label = DummyV2([(3, 4), (2,)], label_shape=(5,))[0]
    >>> [each.shape for each in inputs], label.shape
    ([(3, 4), (2,)], (5,))
    """

    def __init__(
        self,
        input_shape: Any,
        label_shape: tuple[int, ...] | None = None,
        low: float = -128.0,
        high: float = 127.0,
        dtype: str = "float32",
        transform: Transform | None = None,
        filter: None = None,
        count: int = 100,
    ) -> None:
        _no_filter("DummyV2", filter)
        several = isinstance(input_shape, list)
        shapes = [tuple(shape) for shape in (input_shape if several else [input_shape])]
        if not shapes or low >= high or count < 1:
            raise ConfigError(
                f"DummyV2: got input_shape {input_shape!r}, low {low!r}, high {high!r}, count {count!r}; expected a "
                "shape or a list of them, low < high, and at least one sample"
            )
        self._shapes, self._several = shapes, several
        self._label_shape, self._transform = label_shape, transform
        self._low, self._high, self._dtype, self._count = low, high, np.dtype(dtype), count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self._count:
            raise IndexError(index)
        random = np.random.default_rng([options.random_seed, index])

        def drawn(shape: tuple[int, ...]) -> np.ndarray:
            return random.uniform(self._low, self._high, shape).astype(self._dtype)

        inputs = [drawn(shape) for shape in self._shapes]
        label = 0 if self._label_shape is None else drawn(tuple(self._label_shape))
        sample = (tuple(inputs) if self._several else inputs[0], label)
        return sample if self._transform is None else self._transform(sample)


class ImageFolder:
    """Images in one folder for each class, as arrays (height, width, 3) with the number of the class."""

    def __init__(self, root: str | Path, transform: Transform | None = None, filter: None = None) -> None:
        _no_filter("ImageFolder", filter)
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
        file, number = self._files[index]
        with pillow().open(file) as image:
            sample = (np.asarray(image.convert("RGB")), number)
        return sample if self._transform is None else self._transform(sample)


class ImagenetRaw(ImageFolder):
    """Images in one folder with a list of them: lines of a file name and the number of its class.

    The list is ``image_list``, or ``val.txt`` or ``val_map.txt`` in the folder.
    """

    def __init__(
        self,
        data_path: str | Path,
        image_list: str | Path | None = None,
        transform: Transform | None = None,
        filter: None = None,
    ) -> None:
        _no_filter("ImagenetRaw", filter)
        folder = path_of(data_path, "data_path")
        lists = [path_of(image_list, "image_list")] if image_list else [folder / "val.txt", folder / "val_map.txt"]
        found = next((each for each in lists if each.is_file()), None)
        if found is None:
            raise ConfigError(f"ImagenetRaw: there is no list of images, {' or '.join(map(str, lists))}")
        self._files = []
        for number, line in enumerate(found.read_text(encoding="utf-8").splitlines(), 1):
            name, _, label = line.strip().rpartition(" ")
            if line.strip() and (not name or not label.isdigit() or not (folder / name).is_file()):
                raise ConfigError(
                    f"{found}, line {number}: got {line!r}, expected the name of an image in {folder} and its class"
                )
            if line.strip():
                self._files.append((folder / name, int(label)))
        if not self._files:
            raise ConfigError(f"{found} lists no images")
        self.classes = sorted({str(label) for _, label in self._files}, key=int)
        self._transform = transform


class Datasets(Mapping[str, Callable[..., Any]]):
    """Data sets by name; they are the same for every ``framework``.

    >>> Datasets("pytorch")["dummy"](shape=(2, 3)).__len__()
    2
    """

    _KNOWN: Mapping[str, Callable[..., Any]] = {
        "dummy": Dummy,
        "dummy_v2": DummyV2,
        "ImageFolder": ImageFolder,
        "ImagenetRaw": ImagenetRaw,
    }

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
