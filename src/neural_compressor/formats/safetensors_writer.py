"""Safetensors shards written one tensor at a time, so that memory never holds more than that."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from array_api_compat import is_torch_array

from neural_compressor.errors import FormatError
from neural_compressor.formats.byte_views import contiguous
from neural_compressor.formats.json_files import write_json
from neural_compressor.formats.safetensors_files import INDEX, WEIGHTS
from neural_compressor.schemes.arrays import Array

#: The names safetensors headers have for data types, by the last part of their names in NumPy and torch.
_TYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
DEFAULT_SHARD_BYTES = 5_000_000_000


class ShardWriter:
    """Safetensors files in ``folder``: ``model.safetensors``, or numbered shards with an index.

    Tensors are written as they are added. A shard is closed before it would pass ``shard_bytes``, though a tensor larger
    than that has a shard of its own.
    """

    def __init__(self, folder: str | Path, shard_bytes: int = DEFAULT_SHARD_BYTES) -> None:
        if shard_bytes < 1:
            raise FormatError(f"a shard holds at least a byte, not {shard_bytes}")
        self.folder = Path(folder)
        self.shard_bytes = shard_bytes
        self.total_bytes = 0
        self._shards: list[Path] = []
        self._shard_of: dict[str, int] = {}
        self._header: dict[str, Any] = {}
        self._size = 0
        self._data: IO[bytes] | None = None

    def add(self, name: str, array: Array) -> None:
        """Write one tensor."""
        if name in self._shard_of or name == "__metadata__":
            raise FormatError(f"a checkpoint holds one tensor under a name, and {name!r} is taken")
        kind = str(array.dtype).rpartition(".")[2]
        if kind not in _TYPES:
            raise FormatError(f"tensor {name!r} has the type {array.dtype}, which safetensors files do not know")
        data = _octets(array)
        if self._header and self._size + data.nbytes > self.shard_bytes:
            self._close_shard()
        if self._data is None:
            self._data = open(self.folder / f".shard-{len(self._shards)}.data", "wb")  # noqa: SIM115
        self._data.write(data)
        end = self._size + data.nbytes
        self._header[name] = {"dtype": _TYPES[kind], "shape": list(array.shape), "data_offsets": [self._size, end]}
        self._size = end
        self.total_bytes += data.nbytes
        self._shard_of[name] = len(self._shards)

    def close(self) -> list[Path]:
        """Give the shards their names, write the index where there are several, and return the files."""
        if self._header:
            self._close_shard()
        count = len(self._shards)
        if not count:
            raise FormatError(f"no tensor was written to {self.folder}")
        if count == 1:
            names = [WEIGHTS]
        else:
            names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
            weight_map = {name: names[shard] for name, shard in sorted(self._shard_of.items())}
            index = {"metadata": {"total_size": self.total_bytes}, "weight_map": weight_map}
            write_json(self.folder / INDEX, index)
        return [shard.rename(self.folder / name) for shard, name in zip(self._shards, names, strict=True)]

    def abandon(self) -> None:
        """Close what is open, leaving unfinished files behind for whoever owns the folder to remove."""
        if self._data is not None:
            self._data.close()
            self._data = None

    def _close_shard(self) -> None:
        """The shard's file: the length of the header, the header, and the data, which was waiting for it."""
        self.abandon()
        data = self.folder / f".shard-{len(self._shards)}.data"
        shard = self.folder / f".shard-{len(self._shards)}.safetensors"
        header = json.dumps({"__metadata__": {"format": "pt"}, **self._header}, separators=(",", ":")).encode()
        # Spaces behind the header keep the data aligned to 8 bytes.
        header += b" " * (-len(header) % 8)
        with open(shard, "wb") as target, open(data, "rb") as source:
            target.write(len(header).to_bytes(8, "little"))
            target.write(header)
            shutil.copyfileobj(source, target, 1 << 22)
        data.unlink()
        self._shards.append(shard)
        self._header, self._size = {}, 0


@contextmanager
def shards_in(folder: str | Path, shard_bytes: int = DEFAULT_SHARD_BYTES) -> Iterator[ShardWriter]:
    """A :class:`ShardWriter` that is closed at the end, or abandoned on an error."""
    writer = ShardWriter(folder, shard_bytes)
    try:
        yield writer
        writer.close()
    finally:
        writer.abandon()


def _octets(array: Array) -> memoryview:
    """The bytes of an array, little-endian, without a copy where they lie in order already."""
    if sys.byteorder != "little":
        raise FormatError("checkpoints are written on little-endian machines only")
    if is_torch_array(array):
        import torch

        flat = contiguous(array.detach().cpu()).reshape(-1)
        array = flat.view(torch.uint8).numpy()
    array = contiguous(array).reshape(-1)
    return memoryview(array.view("uint8")) if math.prod(array.shape) else memoryview(b"")
