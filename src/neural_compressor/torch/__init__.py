"""PyTorch: its adaptor, quantized modules and public API."""

from neural_compressor.errors import MissingDependencyError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        "PyTorch is not installed; install it with: pip install 'open-neural-compressor[torch]'"
    ) from error
