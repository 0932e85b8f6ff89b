"""Transforms of samples ``(image, label)``; the label stays as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neural_compressor.errors import ConfigError


class ImageTransform(ABC):
    """A function of the image of a sample."""

    @abstractmethod
    def change(self, image: np.ndarray) -> np.ndarray:
        """The image as it should be."""

    def __call__(self, sample: tuple[Any, Any]) -> tuple[np.ndarray, Any]:
        image, label = sample
        return self.change(np.asarray(image)), label


class ComposeTransform:
    """One transform after the other.

    >>> image, label = ComposeTransform([RescaleTransform(), TransposeTransform((2, 0, 1))])((np.ones((4, 6, 3)) * 255, 5))
    >>> image.shape, float(image.max()), label
    ((3, 4, 6), 1.0, 5)
    """

    def __init__(self, transform_list: Sequence[Callable[[Any], Any]]) -> None:
        self.transform_list = list(transform_list)

    def __call__(self, sample: Any) -> Any:
        for transform in self.transform_list:
            sample = transform(sample)
        return sample


class RescaleTransform(ImageTransform):
    """Values from 0 to 255 become values from 0 to 1."""

    def change(self, image: np.ndarray) -> np.ndarray:
        return image.astype(np.float32) / 255


class NormalizeTransform(ImageTransform):
    """Subtract ``mean`` and divide by ``std``; lists run along the last axis, or the first where that alone fits."""

    def __init__(self, mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> None:
        self.mean, self.std = np.asarray(mean, np.float32), np.asarray(std, np.float32)
        if (self.std == 0).any():
            raise ConfigError(f"NormalizeTransform: got std {std!r}, expected numbers other than 0")

    def change(self, image: np.ndarray) -> np.ndarray:
        count = max(self.mean.size, self.std.size)
        first = count > 1 and image.ndim == 3 and image.shape[0] == count and image.shape[-1] != count
        shape = (-1, 1, 1) if first else (-1,)
        return (image - self.mean.reshape(shape)) / self.std.reshape(shape)


class TransposeTransform(ImageTransform):
    """The axes in another order."""

    def __init__(self, perm: Sequence[int]) -> None:
        self.perm = tuple(perm)

    def change(self, image: np.ndarray) -> np.ndarray:
        return image.transpose(self.perm)


class CastTransform(ImageTransform):
    """Another data type."""

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype = np.dtype(dtype)

    def change(self, image: np.ndarray) -> np.ndarray:
        return image.astype(self.dtype)


class CenterCropTransform(ImageTransform):
    """The middle of an image (height, width, channels), of ``size`` by ``size`` or (height, width)."""

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.height, self.width = (size, size) if isinstance(size, int) else size

    def change(self, image: np.ndarray) -> np.ndarray:
        high, wide = image.shape[:2]
        if high < self.height or wide < self.width:
            raise ConfigError(
                f"CenterCropTransform: an image of {high} x {wide} is smaller than {self.height} x {self.width}"
            )
        top, left = (high - self.height) // 2, (wide - self.width) // 2
        return image[top : top + self.height, left : left + self.width]
