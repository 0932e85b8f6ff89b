"""Files for ONNX Runtime to write and for us to read back, in the temporary folder of the system."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neural_compressor.errors import WorkspaceError
from neural_compressor.paths import MORE_SPACE, is_full, reason


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder that is gone when the block ends; an error of the disk says that it is about that folder."""
    folder = None
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    except OSError as error:
        # The block may read files of the user, too.
        within = folder is not None and str(error.filename or "").startswith(folder)
        if folder is not None and not within and not (is_full(error) and error.filename is None):
            raise
        place = folder or error.filename or "of the system"
        raise WorkspaceError(
            f"the temporary folder {place} cannot be written: {reason(error)}; {MORE_SPACE}"
        ) from error
