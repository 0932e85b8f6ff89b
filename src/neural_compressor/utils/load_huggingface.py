"""Folders that Hugging Face's libraries and serving engines read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neural_compressor.errors import ConfigError
from neural_compressor.model import unwrapped
from neural_compressor.torch.quantization import load, save

__all__ = ["OptimizedModel", "save_for_huggingface_upstream"]

_USUAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("from_tf", "force_download"), (False, None)),
    **dict.fromkeys(("cache_dir", "use_auth_token"), (None, False)),
    "revision": ("main", None),
}
"""Arguments about the hub, with the values that they have where they say nothing."""


def save_for_huggingface_upstream(model: Any, tokenizer: Any, output_dir: str | Path, **options: Any) -> None:
    """Write a quantized model and its tokenizer into one folder; ``options`` are those of ``save(format="huggingface")``."""
    save(unwrapped(model), output_dir, format="huggingface", **options)
    tokenizer.save_pretrained(output_dir)


class OptimizedModel:
    """Quantized models of folders that :func:`save_for_huggingface_upstream` wrote."""

    @classmethod
    def from_pretrained(cls, model_name_or_path: str | Path, config: Any = None, **others: Any) -> Any:
        """The quantized model of a folder, of the class that its ``config.json`` names, or by ``config``."""
        import transformers

        for name, value in others.items():
            if name not in _USUAL or value not in _USUAL[name]:
                raise ConfigError(
                    f"from_pretrained: got {name}={value!r}; it reads the folder of a quantized model as it is"
                )
        if config is None:
            return load(model_name_or_path, format="huggingface")
        architecture = next(iter(getattr(config, "architectures", None) or ()), None)
        kind = getattr(transformers, str(architecture), None)
        if kind is None:
            raise ConfigError(
                f"from_pretrained: config.architectures names {architecture!r}, which transformers does not have; leave "
                "config out, and that of the folder counts"
            )
        return load(model_name_or_path, kind(config), format="huggingface")
