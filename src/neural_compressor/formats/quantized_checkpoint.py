"""Reading a quantized checkpoint layer by layer, whatever its format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neural_compressor.errors import FormatError
from neural_compressor.formats.base import Layer, format_of
from neural_compressor.formats.json_files import read_json
from neural_compressor.formats.kv_cache import KVScales, kv_tensors, read_kv_scales
from neural_compressor.formats.safetensors_files import SafetensorsCheckpoint
from neural_compressor.schemes.arrays import Array

#: Where older checkpoints keep their settings, and whose they are.
_OWN_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}


def quantization_config(folder: str | Path) -> dict[str, Any]:
    """The quantization settings of a checkpoint: from ``config.json``, or from the file that older tools wrote."""
    folder = Path(folder)
    settings = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    for key in ("quantization_config", "compression_config"):
        block = settings.get(key)
        if block is not None:
            if not isinstance(block, dict):
                raise FormatError(f"{key!r} in {folder / 'config.json'} is not a JSON object")
            return block
    for name, method in _OWN_FILES.items():
        if (folder / name).exists():
            return {"quant_method": method, **read_json(folder / name)}
    raise FormatError(f"{folder} holds no quantized checkpoint: its config.json has no 'quantization_config'")


class QuantizedCheckpoint:
    """A folder with a quantized model: its layers, its other tensors as they are.

    Nothing but names and shapes is read until it is asked for.
    """

    def __init__(self, folder: str | Path, framework: str = "pt") -> None:
        self.folder = Path(folder)
        self.quantization_config = quantization_config(folder)
        self.format = format_of(self.quantization_config)
        self.tensors = SafetensorsCheckpoint(folder, framework)
        self._parts = self.format.layers(self.tensors)
        if not self._parts:
            raise FormatError(
                f"{folder} is said to be a {self.format.name} checkpoint and holds no layer of that format"
            )
        self._caches = kv_tensors(self.tensors)
        self._layer_of = {full: layer for layer, parts in self._parts.items() for full in parts.values()}

    @property
    def layers(self) -> list[str]:
        """The names of the quantized layers."""
        return list(self._parts)

    @property
    def others(self) -> list[str]:
        """The names of the tensors that belong to no quantized layer or cache."""
        of_caches = {full for parts in self._caches.values() for full in parts.values()}
        return [name for name in self.tensors if name not in self._layer_of and name not in of_caches]

    def kv_scales(self) -> dict[str, KVScales]:
        """The scales of keys and values of each attention that has a cache in eight bits."""
        found = {}
        for attention, parts in self._caches.items():
            tensors = {part: self.tensors[full] for part, full in parts.items()}
            try:
                found[attention] = read_kv_scales(tensors, attention, self.quantization_config)
            except FormatError as error:
                raise FormatError(f"{self.tensors.files[next(iter(parts.values()))]}: {error}") from error
        if self.quantization_config.get("kv_cache_scheme") and not found:
            raise FormatError(f"{self.folder} has a 'kv_cache_scheme' and no k_scale and v_scale of any attention")
        return found

    def layer(self, name: str) -> Layer:
        """Read one quantized layer."""
        if name not in self._parts:
            raise FormatError(f"{self.folder} holds no quantized layer {name!r}")
        tensors = {part: self.tensors[full] for part, full in self._parts[name].items()}
        try:
            layer: Layer = self.format.decompress(tensors, self.quantization_config, name)
            return layer
        except FormatError as error:
            raise FormatError(f"{self.tensors.files[self._parts[name][self.format.key]]}: {error}") from error

    def items(self) -> Iterator[tuple[str, Layer | Array]]:
        """Each quantized layer and each other tensor by name, one at a time, as they come in the files."""
        done = set()
        for name in self.tensors:
            layer = self._layer_of.get(name)
            if layer is None:
                yield name, self.tensors[name]
            elif layer not in done:
                done.add(layer)
                yield layer, self.layer(layer)

    def close(self) -> None:
        """Close the file that is open."""
        self.tensors.close()

    def __enter__(self) -> QuantizedCheckpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
