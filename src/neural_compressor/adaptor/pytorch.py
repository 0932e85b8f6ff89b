"""Names that programs written for the 2.x API import from here. (The adaptor is in :mod:`neural_compressor.torch`.)"""

from __future__ import annotations

from packaging.version import Version

from neural_compressor.errors import MissingDependencyError

__all__ = ["get_torch_version"]


def get_torch_version() -> Version:
    """The version of torch, without what follows a plus sign."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependencyError(
            "PyTorch is not installed; install it with: pip install 'open-neural-compressor[torch]'"
        ) from error
    return Version(torch.__version__.partition("+")[0])
