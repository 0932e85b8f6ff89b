"""Transforms of samples ``(image, label)``; the label stays as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from neural_compressor.data.images import pillow
from neural_compressor.errors import ConfigError
from neural_compressor.metric import known_framework
from neural_compressor.registry import close_matches


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


_FILTERS = {"bilinear": "BILINEAR", "nearest": "NEAREST", "bicubic": "BICUBIC"}


class ResizeTransform(ImageTransform):
    """An image (height, width, channels) of another ``size``: (height, width), or as many pixels for both.

    With ``keep_ratio`` one number is that of the shorter side. Values are those of Pillow, which looks at all pixels that
    become one.
    """

    def __init__(self, size: int | Sequence[int], interpolation: str = "bilinear", keep_ratio: bool = False) -> None:
        self.size = (size, size) if isinstance(size, int) else tuple(size)
        self.keep_ratio = keep_ratio and isinstance(size, int)
        if len(self.size) != 2 or any(not isinstance(each, int) or each < 1 for each in self.size):
            raise ConfigError(f"ResizeTransform: got size {size!r}, expected a number of pixels, or (height, width)")
        if interpolation not in _FILTERS:
            raise ConfigError(
                f"ResizeTransform: unknown interpolation {interpolation!r}; {close_matches(interpolation, _FILTERS)}"
            )
        self.interpolation = interpolation

    def change(self, image: np.ndarray) -> np.ndarray:
        height, width = self.size
        if self.keep_ratio:
            short = min(image.shape[:2])
            height, width = (round(side * self.size[0] / short) for side in image.shape[:2])
        library = pillow()
        how = library.Resampling[_FILTERS[self.interpolation]]
        planes = image[..., None] if image.ndim == 2 else image
        kind = image.dtype if image.dtype == np.uint8 else np.dtype(np.float32)
        resized = [
            np.asarray(
                library.fromarray(np.ascontiguousarray(planes[..., c].astype(kind))).resize((width, height), how)
            )
            for c in range(planes.shape[-1])
        ]
        return resized[0] if image.ndim == 2 else np.stack(resized, axis=-1)


class CropToBoundingBox(ImageTransform):
    """A part of an image (height, width, channels)."""

    def __init__(self, offset_height: int, offset_width: int, target_height: int, target_width: int) -> None:
        self.box = (offset_height, offset_width, target_height, target_width)

    def change(self, image: np.ndarray) -> np.ndarray:
        top, left, height, width = self.box
        if min(self.box) < 0 or top + height > image.shape[0] or left + width > image.shape[1]:
            raise ConfigError(
                f"CropToBoundingBox: an image of {image.shape[0]} x {image.shape[1]} has no part {self.box}"
            )
        return image[top : top + height, left : left + width]


class CropResizeTransform(ImageTransform):
    """A part of an image, resized: its corner ``x``, ``y``, its ``width`` and ``height``, and the ``size`` it gets."""

    def __init__(
        self, x: int, y: int, width: int, height: int, size: int | Sequence[int], interpolation: str = "bilinear"
    ) -> None:
        self._crop, self._resize = CropToBoundingBox(y, x, height, width), ResizeTransform(size, interpolation)

    def change(self, image: np.ndarray) -> np.ndarray:
        return self._resize.change(self._crop.change(image))


def _to_tensor() -> ComposeTransform:
    """Values from 0 to 1, channels first."""
    return ComposeTransform([RescaleTransform(), TransposeTransform((2, 0, 1))])


class TRANSFORMS(Mapping[str, Callable[..., Any]]):
    """Transforms by name. ``framework`` matters for ``Resize`` to one number: that of the shorter side in PyTorch.

    >>> image, _ = TRANSFORMS("pytorch", "preprocess")["Transpose"]((2, 0, 1))((np.zeros((4, 6, 3)), 0))
    >>> image.shape
    (3, 4, 6)
    """

    def __init__(self, framework: str, process: str = "preprocess") -> None:
        if process != "preprocess":
            raise ConfigError(f"TRANSFORMS: got {process!r}; there are transforms for 'preprocess'")
        keeps = known_framework(framework, "TRANSFORMS").startswith("pytorch")
        self._known: dict[str, Callable[..., Any]] = {
            "Compose": ComposeTransform,
            "Resize": partial(ResizeTransform, keep_ratio=keeps),
            "CenterCrop": CenterCropTransform,
            "CropToBoundingBox": CropToBoundingBox,
            "CropResize": CropResizeTransform,
            "Normalize": NormalizeTransform,
            "Rescale": RescaleTransform,
            "ToTensor": _to_tensor,
            "Transpose": TransposeTransform,
            "Cast": CastTransform,
        }

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self._known:
            raise ConfigError(
                f"there is no transform {name!r}; {close_matches(str(name), self._known)}. Any function of a sample (image, "
                "label) is one"
            )
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
