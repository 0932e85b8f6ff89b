"""Weights in files of their own: checked when a model is read, so that a hostile one reads no other files."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from neural_compressor.errors import FormatError


def located(tensor: ir.ExternalTensor, path: Path) -> ir.ExternalTensor:
    """``tensor`` of the model read from ``path``, pointing to the file that it lies in; an error where that is none of its.

    Files lie in the folder of the model, or in that of what ``path`` leads to where it is a link: the caches that models
    are downloaded to have links to the model and to its data side by side, and both files in one folder elsewhere.
    """
    where = f"{path}: the weight {tensor.name!r} lies in {str(tensor.location)!r}"
    location = Path(tensor.location)
    if location.is_absolute() or ".." in location.parts:
        raise FormatError(f"{where}, outside of the model's folder; put the file beside the model")
    folders = [path.parent, path.resolve().parent]
    file = next((folder / location for folder in folders if (folder / location).is_file()), None)
    if file is None:
        raise FormatError(f"{where}, which does not exist; put the file beside the model")
    real = file.resolve()
    if not any(real.is_relative_to(folder.resolve()) for folder in folders):
        raise FormatError(f"{where}, a link to outside of the model's folder; put the file itself beside the model")
    offset, size = tensor.offset or 0, real.stat().st_size
    if tensor.length is not None and tensor.length != tensor.nbytes:
        raise FormatError(f"{where} with {tensor.length} bytes where its shape needs {tensor.nbytes}")
    if size < offset + tensor.nbytes:
        raise FormatError(f"{where}, which is truncated: {size} bytes, and the weight ends at {offset + tensor.nbytes}")
    # Without a folder to stay in, onnx_ir takes the file as it is, be it one of several hard links.
    return ir.ExternalTensor(
        str(real),
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=str(tensor.name),
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )
