"""Writing GGUF files, through the ``gguf`` package of llama.cpp."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from neural_compressor.errors import FormatError, MissingDependencyError
from neural_compressor.formats.gguf_blocks import BLOCK, BLOCK_BYTES, GGUF, block_type
from neural_compressor.formats.linear_weight import LinearWeight
from neural_compressor.paths import output_file, write_errors
from neural_compressor.schemes.arrays import Array, as_float32

#: How a float matrix may be stored.
FLOAT_TYPES = ("F32", "F16", "BF16", *BLOCK_BYTES)


def gguf_package() -> ModuleType:
    """The ``gguf`` package."""
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise MissingDependencyError(
            "GGUF files are written through the package 'gguf', which is not installed: "
            "pip install 'open-neural-compressor[gguf]'"
        ) from error


def encode_tensor(value: Array | LinearWeight, float_as: str, name: str = "") -> tuple[npt.NDArray[Any], str]:
    """A tensor as the bytes or numbers a GGUF file stores, and the name of their type.

    The codes of a quantized weight are taken as they are. A float matrix becomes ``float_as``, or float16 where that is a
    block type and the rows are not made of whole blocks. Vectors and scalars stay float32.
    """
    if float_as not in FLOAT_TYPES:
        raise FormatError(f"float tensors of a GGUF file become one of {', '.join(FLOAT_TYPES)}, not {float_as!r}")
    if isinstance(value, LinearWeight):
        return _numpy(GGUF().compress(value, name)["weight"]), str(block_type(value.spec))
    values = _numpy(as_float32(value))
    if not np.all(np.isfinite(values)):
        raise FormatError(f"tensor {name!r} holds NaN or Inf, which must not reach a GGUF file")
    kind = float_as if values.ndim > 1 else "F32"
    if kind in BLOCK_BYTES and values.shape[-1] % BLOCK:
        kind = "F16"
    package = gguf_package()
    return package.quants.quantize(np.ascontiguousarray(values), package.GGMLQuantizationType[kind]), kind


def write_gguf(
    path: str | Path,
    architecture: str,
    describe: Callable[[Any], None],
    tensors: Iterable[tuple[str, npt.NDArray[Any], str]],
) -> dict[str, str]:
    """Write tensors (name, data, type name) and the metadata that ``describe`` adds to the ``gguf.GGUFWriter`` it is given.

    The file appears under ``path`` only when it is complete. Returns the type of each tensor.
    """
    package, path = gguf_package(), output_file(path)
    types: dict[str, str] = {}
    weight_of_type: dict[str, int] = {}
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        os.close(handle)
        # With a temporary file the writer holds one tensor at a time.
        writer = package.GGUFWriter(part, architecture, use_temp_file=True)
        try:
            for name, data, kind in tensors:
                writer.add_tensor(name, data, raw_dtype=package.GGMLQuantizationType[kind])
                types[name] = kind
                weight_of_type[kind] = weight_of_type.get(kind, 0) + data.nbytes
            writer.add_quantization_version(package.GGML_QUANT_VERSION)
            writer.add_file_type(_file_type(package, weight_of_type))
            describe(writer)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            os.chmod(part, 0o644)
            os.replace(part, path)
        finally:
            writer.close()
            Path(part).unlink(missing_ok=True)
    return types


def _file_type(package: ModuleType, weight_of_type: dict[str, int]) -> Any:
    """The type that most of the file has, as llama.cpp names it."""
    kind = max(weight_of_type, key=lambda k: weight_of_type[k], default="F32")
    return package.LlamaFileType["ALL_F32" if kind == "F32" else f"MOSTLY_{kind}"]


def _numpy(x: Array) -> npt.NDArray[Any]:
    return np.asarray(x.cpu() if hasattr(x, "cpu") else x)
