"""The table of ``weight_only_llm.py``, and how our algorithms stand against other toolkits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kept_cells import Cell
from rich.table import Table

PEER = "peer:"
"""What the names of other toolkits begin with."""


def slowest_peer(found: Sequence[Cell], scheme: str) -> float | None:
    """The seconds of the slowest other toolkit."""
    return max((c["seconds"] for c in found if c["scheme"] == scheme and c["algorithm"].startswith(PEER)), default=None)


def table_of(found: Sequence[Cell], title: str) -> Table:
    """All cells; the last column says how many times as long the slowest other toolkit took."""
    table = Table(title=title)
    for column in ("scheme", "algorithm", "perplexity", "seconds", "peak GiB", "slowest peer / this"):
        table.add_column(column, justify="right")
    for cell in found:
        slowest = slowest_peer(found, cell["scheme"])
        ratio = "" if slowest is None else f"{slowest / cell['seconds']:.1f}"
        numbers = (f"{cell['perplexity']:.2f}", f"{cell['seconds']:.1f}", f"{cell['peak_gib']:.2f}", ratio)
        table.add_row(cell["scheme"], cell["algorithm"], *numbers)
    return table


def summary(found: Sequence[Cell]) -> Iterator[str]:
    """For each scheme the best of ours against the best of the others; then what the others are and how they were set."""
    for scheme in dict.fromkeys(cell["scheme"] for cell in found):
        here = sorted((c for c in found if c["scheme"] == scheme), key=lambda cell: cell["perplexity"])
        peer = next((c for c in here if c["algorithm"].startswith(PEER)), None)
        ours = next((c for c in here if not c["algorithm"].startswith(PEER)), None)
        if peer and ours:
            yield (
                f"{scheme}: best peer {peer['algorithm']} {peer['perplexity']:.2f} ({peer['seconds']:.0f} s), "
                f"ours {ours['algorithm']} {ours['perplexity']:.2f} ({ours['seconds']:.0f} s), "
                f"{ours['perplexity'] / peer['perplexity'] - 1:+.1%}"
            )
    for cell in {c["algorithm"]: c for c in found if c["algorithm"].startswith(PEER)}.values():
        yield f"{cell['algorithm']}: version {cell['version']}, {cell['settings']}"
