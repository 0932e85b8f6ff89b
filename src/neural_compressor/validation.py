"""Messages of pydantic's validation errors in the words of this project."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from neural_compressor.registry import close_matches


def explain(error: ValidationError, subject: str, noun: str, known: Iterable[str]) -> str:
    """One line for each thing that is wrong with ``subject``, whose ``known`` settings are called ``noun``."""
    names = list(known)
    return "\n".join(_sentence(dict(item), subject, noun, names) for item in error.errors())


def _sentence(item: dict[str, Any], subject: str, noun: str, known: list[str]) -> str:
    field = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        return f"{subject} has no {noun} {field!r}; {close_matches(field, known)}"
    cause = item.get("ctx", {}).get("error")
    problem = str(cause) if cause is not None else f"got {item['input']!r}; {item['msg']}"
    return f"{subject}.{field}: {problem}" if field else f"{subject}.{problem}"
