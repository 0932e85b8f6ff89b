"""PyTorch: its adaptor, quantized modules and public API."""

from neural_compressor.errors import MissingDependencyError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        "PyTorch is not installed; install it with: pip install 'open-neural-compressor[torch]'"
    ) from error


def __getattr__(name: str) -> object:
    if name == "load_empty_model":
        from neural_compressor.torch.files.huggingface import load_empty_model

        return load_empty_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
