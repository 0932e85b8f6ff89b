"""Keras models read from files of a user: ``.keras`` and ``.h5``, without running code that stands in them."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neural_compressor.errors import FormatError

_MEMBERS = ("metadata.json", "config.json", "model.weights.h5", "assets/", "keras_metadata.json")


def read_keras(path: Path) -> Any:
    """The model in a file, for inference. Layers that hold code are refused, and so is what Keras does not write."""
    import keras

    if not path.is_file():
        raise FormatError(f"there is no file {path}")
    _check_config(_config_of(path), path)
    try:
        return keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras raises TypeError, ValueError, KeyError, OSError and more
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FormatError(
            f"{path} cannot be read as a Keras model: {first}. Classes of your own have to be imported and registered "
            "(keras.saving.register_keras_serializable) before"
        ) from error


def _config_of(path: Path) -> Any:
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if not name.startswith(_MEMBERS) or ".." in name.split("/"):
                        raise FormatError(f"{path} holds {name!r}, which no Keras file has; it is not read")
                return json.loads(archive.read("config.json"))
        import h5py

        with h5py.File(path, "r") as file:
            config = file.attrs.get("model_config")
        if config is None:
            raise FormatError(f"{path} holds weights without a model; build the model, load_weights, and give that")
        return json.loads(config)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise FormatError(f"{path} is no whole Keras file: {error}") from error


_WITH_CODE = ("Lambda", "__lambda__", "TorchModuleWrapper", "FlaxLayer", "JaxLayer", "TFSMLayer")


def _check_config(config: Any, path: Path) -> None:
    for part in _mappings(config):
        if re.split(r"[.>]", str(part.get("class_name")))[-1] in _WITH_CODE:  # a name may have its package before it
            name = (part.get("config") or {}).get("name") if isinstance(part.get("config"), dict) else None
            raise FormatError(
                f"{path} has a {part['class_name']} layer{f' ({name})' if name else ''}, whose code is in the file and is "
                "not run; write it as keras.ops in a registered class, or load the model yourself and give the object"
            )


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield each
            pending += each.values()
        elif isinstance(each, list):
            pending += each
