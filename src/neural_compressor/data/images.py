"""Pillow, which reads and resizes images, imported where it is needed."""

from __future__ import annotations

from typing import Any

from neural_compressor.errors import MissingDependencyError


def pillow() -> Any:
    """Pillow, which is needed when an image is."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingDependencyError("images are read and resized by Pillow: pip install pillow") from error
    return Image
