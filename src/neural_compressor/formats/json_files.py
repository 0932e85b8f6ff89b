"""JSON files of checkpoints, read with errors that name them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from neural_compressor.errors import FormatError
from neural_compressor.paths import write_text_atomically


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in ``file``."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FormatError(f"{file} does not exist") from error
    # A file nested too deeply runs out of stack before it is found to be wrong.
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise FormatError(f"{file} holds a JSON {type(content).__name__}, and an object was expected")
    return content


def write_json(file: Path, content: dict[str, Any]) -> None:
    """Write ``content`` so that a person can read it; what was there is replaced when the new is complete."""
    write_text_atomically(file, json.dumps(content, indent=2) + "\n")
