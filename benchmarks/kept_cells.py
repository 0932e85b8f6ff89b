"""The cells of a long table, kept in a JSON file so that it can be made in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
"""What was measured and how, and what was found: ``perplexity`` and more, or ``error``."""


class KeptCells:
    """Cells of a file; with no path they are kept until the program ends.

    A cell is written as soon as it is measured. What failed, and so has no number called ``done``, is measured again.
    """

    def __init__(self, path: str | None, done: str = "perplexity") -> None:
        self._done = done
        self._path = None if path is None else Path(path)
        has_file = self._path is not None and self._path.exists()
        self._cells: list[Cell] = json.loads(self._path.read_text()) if self._path and has_file else []

    def find(self, what: Cell) -> Cell | None:
        """The cell that was measured so, if it is there."""
        return next((cell for cell in self._cells if what.items() <= cell.items() and self._done in cell), None)

    def add(self, what: Cell, found: Cell) -> Cell:
        """Keep what was found, in place of what was found so before."""
        cell = {**found, **what}
        self._cells = [*(other for other in self._cells if not what.items() <= other.items()), cell]
        if self._path is not None:
            part = self._path.with_name(self._path.name + ".part")
            part.write_text(json.dumps(self._cells, indent=1) + "\n")
            part.replace(self._path)
        return cell
