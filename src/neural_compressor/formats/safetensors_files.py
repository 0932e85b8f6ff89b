"""Checkpoints in safetensors files, one or many, read lazily: one tensor at a time, one file open at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from neural_compressor.errors import FormatError, MissingDependencyError
from neural_compressor.formats.json_files import read_json
from neural_compressor.schemes.arrays import Array

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
#: What pickled weights are called; unpickling runs whatever code the file holds.
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class SafetensorsCheckpoint:
    """The tensors of a folder with ``model.safetensors``, or with shards and ``model.safetensors.index.json``.

    Every header is read and checked at once, so that a damaged or missing file shows before any work starts; tensors are
    read when asked for. ``framework`` is ``"pt"`` for torch tensors or ``"np"`` for NumPy arrays.
    """

    def __init__(self, folder: str | Path, framework: str = "pt") -> None:
        self.folder = Path(folder)
        self.framework = framework
        self._open: tuple[Path, Any] | None = None
        #: The file of each tensor, in the order in which they are stored.
        self.files: dict[str, Path] = {}
        wanted = indexed_files(self.folder)
        for file in sorted(set(wanted.values())) or [self.folder / WEIGHTS]:
            for name in self._handle(file).offset_keys():
                if name in self.files:
                    raise FormatError(f"tensor {name!r} is in {self.files[name]} and again in {file}")
                self.files[name] = file
        for name, file in wanted.items():
            if self.files.get(name) != file:
                raise FormatError(f"{self.folder / INDEX} says that {file} holds {name!r}, and it does not")

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __contains__(self, name: object) -> bool:
        return name in self.files

    def __getitem__(self, name: str) -> Array:
        """Read one tensor."""
        handle = self._handle(self._file(name))
        with _errors_name(self._file(name)):
            return handle.get_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        handle = self._handle(self._file(name))
        with _errors_name(self._file(name)):
            return tuple(handle.get_slice(name).get_shape())

    def items(self) -> Iterator[tuple[str, Array]]:
        """Each tensor by name, one at a time, in the order in which they are stored."""
        for name in self.files:
            yield name, self[name]

    def close(self) -> None:
        """Close the file that is open; the next read opens what it needs."""
        if self._open is not None:
            self._open[1].__exit__(None, None, None)
            self._open = None

    def __enter__(self) -> SafetensorsCheckpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _file(self, name: str) -> Path:
        if name not in self.files:
            raise FormatError(f"{self.folder} holds no tensor {name!r}")
        return self.files[name]

    def _handle(self, file: Path) -> Any:
        if self._open is None or self._open[0] != file:
            self.close()
            self._open = (file, open_safetensors(file, self.framework))
        return self._open[1]


def open_safetensors(file: Path, framework: str = "pt") -> Any:
    """``safetensors.safe_open`` with errors that name the file and say what it is instead."""
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise MissingDependencyError(
            "checkpoints are read through the package 'safetensors', which is not installed: "
            "pip install 'open-neural-compressor[torch]'"
        ) from error
    _refuse_other_kinds(file)
    with _errors_name(file):
        # Mapping the file instead would count all of it as memory of the process.
        return safe_open(file, framework=framework, backend="pread")


@contextmanager
def _errors_name(file: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{file} is not a complete safetensors file ({error}); copy it again or quantize again"
        ) from error


def indexed_files(folder: Path) -> dict[str, Path]:
    """The file of each tensor by the index of ``folder``; nothing where the folder has a single file."""
    index = folder / INDEX
    if not index.exists():
        if not (folder / WEIGHTS).exists():
            raise FormatError(_nothing_to_read(folder))
        return {}
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise FormatError(f"{index} has no 'weight_map' of tensors to files")
    return {str(name): folder / _plain_file_name(value, index) for name, value in listed.items()}


def _plain_file_name(value: object, index: Path) -> str:
    """A file name out of an index, refused where it leads out of the folder."""
    if isinstance(value, str) and value and "\0" not in value:
        # Links are followed: the cache of the Hugging Face hub is made of them. A path in the index is not.
        kinds = (PurePosixPath(value), PureWindowsPath(value))
        if all(len(path.parts) == 1 and path.parts[0] != ".." and not path.anchor for path in kinds):
            return value
    raise FormatError(f"{index} points to {value!r}; a shard is a file of its own folder, given by its bare name")


def _refuse_other_kinds(file: Path) -> None:
    if file.suffix.lower() in PICKLES:
        raise FormatError(
            f"{file} is a pickle, which can run any code when it is read; convert it to safetensors first"
        )
    try:
        with open(file, "rb") as stream:
            start = stream.read(16)
    except FileNotFoundError as error:
        raise FormatError(f"{file} does not exist") from error
    except OSError as error:
        raise FormatError(f"{file} cannot be read: {error}") from error
    # The length of a header can look like the start of a pickle; the header behind it cannot.
    if start.startswith(_PICKLE_STARTS) and start[8:9] != b"{":
        raise FormatError(
            f"{file} is a pickle under another name, which can run any code when it is read; convert it to safetensors"
        )
    if start.startswith(b"version https://"):
        raise FormatError(f"{file} is a Git LFS pointer, not the file it stands for; fetch it with 'git lfs pull'")


def _nothing_to_read(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder with a checkpoint"
    found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in (*PICKLES, ".safetensors"))
    pickled = [name for name in found if not name.endswith(".safetensors")]
    if pickled:
        return (
            f"{folder} holds weights as pickles ({', '.join(pickled[:3])}), which can run any code when they are read; "
            "convert them to safetensors first"
        )
    return f"{folder} holds neither {WEIGHTS} nor {INDEX}" + (f"; found {', '.join(found[:3])}" if found else "")
