"""A checkpoint's folder: rewritten tensor by tensor, and put in place only when it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neural_compressor.errors import FormatError, WorkspaceError
from neural_compressor.formats.base import CheckpointFormat, Layer, Spec
from neural_compressor.formats.json_files import read_json, write_json
from neural_compressor.formats.safetensors_files import INDEX, PICKLES, WEIGHTS, SafetensorsCheckpoint, indexed_files
from neural_compressor.formats.safetensors_writer import DEFAULT_SHARD_BYTES, shards_in
from neural_compressor.paths import output_folder, write_errors
from neural_compressor.schemes.arrays import Array

CONFIG, QCONFIG = "config.json", "qconfig.json"
Transform = Callable[[str, Array], Mapping[str, Array]]
#: The settings of a quantization that the source had, and the new checkpoint does not.
_OLD_SETTINGS = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
_WEIGHT_FILES = (".safetensors", ".index.json", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", *PICKLES)


@dataclass(frozen=True)
class RewrittenCheckpoint:
    """What :func:`quantize_checkpoint` did."""

    path: Path
    tensors_read: int
    tensors_written: int
    weight_bytes: int
    copied: tuple[str, ...]


def quantize_checkpoint(
    src_dir: str | Path,
    dst_dir: str | Path,
    transform: Transform,
    *,
    config: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    files: Callable[[dict[str, Any]], Mapping[str, dict[str, Any]]] | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    framework: str = "pt",
    overwrite: bool = False,
) -> RewrittenCheckpoint:
    """Write a checkpoint anew, file to file, without building the model: memory holds about one tensor.

    ``transform(name, tensor)`` gives the tensors that take the place of one: ``{name: tensor}`` keeps it, ``{}`` drops it.
    When all are written ``config`` turns the content of ``config.json`` into the new one, and ``files`` gives further JSON
    files that belong to it. Tokenizer and other small files are copied. ``dst_dir`` appears when it is complete; an existing
    one that is not empty is written to only with ``overwrite``: then the checkpoint there is replaced, and other files stay.
    """
    src, dst = Path(src_dir), Path(dst_dir)
    read = written = 0
    with SafetensorsCheckpoint(src, framework) as source, new_folder(dst, overwrite, keep=src) as folder:
        settings = read_json(src / CONFIG) if (src / CONFIG).exists() else {}
        with shards_in(folder, shard_bytes) as shards:
            for name, tensor in source.items():
                read += 1
                for new_name, array in transform(name, tensor).items():
                    shards.add(new_name, array)
                    written += 1
        settings = settings if config is None else config(settings)
        if settings:
            write_json(folder / CONFIG, settings)
        for file, content in (files(settings) if files is not None else {}).items():
            write_json(folder / file, content)
        copied = copy_small_files(src, folder)
    return RewrittenCheckpoint(dst, read, written, shards.total_bytes, copied)


class LayerCompression:
    """The transform for :func:`quantize_checkpoint` that stores layers in a format, and its ``config`` and ``files``.

    ``quantize(layer, weight)`` gives the quantized weight of a layer, or None for one that stays in float. What the format
    cannot store stays in float too, and :attr:`refused` says why.

    >>> import numpy as np
    >>> from neural_compressor.dtypes import dtype
    >>> from neural_compressor.formats import FORMATS, LinearWeight
    >>> from neural_compressor.schemes import PerGroup, TensorScheme, quantize
    >>> scheme = TensorScheme(dtype("int4"), True, PerGroup(32))
    >>> rtn = LayerCompression(FORMATS["gptq"], lambda _, w: LinearWeight.from_quantized(quantize(w, scheme)))
    >>> sorted(rtn("a.fc.weight", np.ones((32, 64), np.float32)))
    ['a.fc.g_idx', 'a.fc.qweight', 'a.fc.qzeros', 'a.fc.scales']
    """

    def __init__(self, format: CheckpointFormat[Any], quantize: Callable[[str, Array], Layer | None]) -> None:
        self.format = format
        self.quantize = quantize
        #: How each layer that was quantized is.
        self.specs: dict[str, Spec] = {}
        #: The matrices that stay in float.
        self.kept: list[str] = []
        #: Why those do that were to be quantized.
        self.refused: dict[str, str] = {}

    def __call__(self, name: str, tensor: Array) -> dict[str, Array]:
        """The tensors that take the place of one."""
        layer, _, part = name.rpartition(".")
        if part != "weight" or len(tensor.shape) != 2:
            return {name: tensor}
        weight = self.quantize(layer, tensor)
        reason = None if weight is None else self.format.why_not(weight)
        if reason is not None:
            self.refused[layer] = reason
        if weight is None or reason is not None:
            self.kept.append(layer)
            return {name: tensor}
        self.specs[layer] = weight.spec
        return {f"{layer}.{part}": array for part, array in self.format.compress(weight, layer).items()}

    def config(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The content of ``config.json`` with the block that describes what was quantized."""
        return {**settings, "quantization_config": self.format.config(self.specs, self.kept, complete=False)}

    def files(self, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The further JSON files of the format."""
        return self.format.files(settings["quantization_config"])


@contextmanager
def new_folder(
    path: str | Path, overwrite: bool = False, keep: Path | None = None, needed: int | None = None
) -> Iterator[Path]:
    """A folder to write to that becomes ``path`` when the block ends well, and is gone when it does not.

    Where ``path`` is a link, it stays one, and the folder it leads to is replaced. What is there with ``overwrite`` stays,
    but for the files of a checkpoint. ``keep`` is a folder that is read meanwhile and must not be replaced. ``needed`` is
    about how many bytes will be written, for the error of a full disk.
    """
    path = output_folder(path)
    if keep is not None and path.resolve() in (keep.resolve(), *keep.resolve().parents):
        raise FormatError(f"the checkpoint in {keep} is read while the new one is written; write it to another folder")
    taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if path.exists() and not path.is_dir():
        raise WorkspaceError(f"{path} is no folder; give the path of a new one")
    if taken and not overwrite:
        raise WorkspaceError(f"{path} exists and is not an empty folder; choose another, or pass overwrite=True")
    with write_errors(path, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            yield part
            os.chmod(part, 0o755)
            if taken:
                _take_over(path, part)
            _put_in_place(part, path)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def copy_small_files(src: Path, dst: Path) -> tuple[str, ...]:
    """Copy what is in ``src`` besides weights and is not yet in ``dst``: tokenizer, generation settings, licence."""
    copied = []
    for file in sorted(src.iterdir()):
        other = file.name.startswith(".") or file.name.endswith(_WEIGHT_FILES) or file.name in _OLD_SETTINGS
        if file.is_file() and not other and not (dst / file.name).exists():
            shutil.copyfile(file, dst / file.name)
            copied.append(file.name)
    return tuple(copied)


def checkpoint_files(folder: Path) -> set[str]:
    """The names of the files in ``folder`` that are a checkpoint: settings, weights, and shards that its index names."""
    if (folder / QCONFIG).exists():  # what is saved with its plan has two files
        return {QCONFIG, WEIGHTS}
    try:
        shards = {file.name for file in indexed_files(folder).values()}
    except FormatError:  # of an index that is damaged nothing is known to be a shard
        shards = set()
    return {CONFIG, *_OLD_SETTINGS, WEIGHTS, INDEX, *shards}


def _take_over(old: Path, new: Path) -> None:
    """Have what a user put beside the checkpoint in ``old`` in ``new`` too: linked where that is possible, else copied."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:
            shutil.copy2(source, target, follow_symlinks=False)

    replaced = checkpoint_files(old)
    for entry in old.iterdir():
        target = new / entry.name
        if entry.name in replaced or target.exists():
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, target, symlinks=True, copy_function=link)
        else:
            link(str(entry), str(target))


def _put_in_place(part: Path, path: Path) -> None:
    if not path.exists():
        part.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    path.rename(old / "replaced")
    try:
        part.rename(path)
    except BaseException:
        (old / "replaced").rename(path)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)
