"""Formatting of numbers and names for tables and reports."""

from __future__ import annotations

import math
from html import escape

from neural_compressor.tuning.result import Measurement, Trial, TuningResult

MISSING = "–"


def shown_accuracy(value: float | None) -> str:
    """
    >>> shown_accuracy(0.98123456), shown_accuracy(None)
    ('0.9812', '–')
    """
    return MISSING if value is None else f"{value:.4f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.4g}"


def shown_accuracy_of(measured: Measurement) -> str:
    """The accuracy with its spread, where that is known.

    >>> shown_accuracy_of(Measurement(0.98, accuracy_spread=0.0123))
    '0.9800 ± 0.0123'
    """
    spread = "" if measured.accuracy_spread is None else f" ± {shown_accuracy(measured.accuracy_spread)}"
    return shown_accuracy(measured.accuracy) + spread


def shown_size(size: float | None) -> str:
    """
    >>> shown_size(820), shown_size(1_250_000)
    ('820 B', '1.25 MB')
    """
    if size is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def shown_latency(milliseconds: float | None) -> str:
    """
    >>> shown_latency(0.0421), shown_latency(12.34), shown_latency(2400.0)
    ('42.1 µs', '12.3 ms', '2.4 s')
    """
    if milliseconds is None:
        return MISSING
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.3g} s"
    return f"{milliseconds:.3g} ms" if milliseconds >= 0.1 else f"{1000 * milliseconds:.3g} µs"


def shown_ratio(ratio: float | None) -> str:
    """
    >>> shown_ratio(3.987), shown_ratio(None)
    ('3.99x', '–')
    """
    return MISSING if ratio is None else f"{ratio:.2f}x"


def shown_loss(trial: Trial, result: TuningResult) -> str:
    """The loss of a trial, as a percentage where the criterion is relative."""
    if not math.isfinite(trial.loss):
        return MISSING
    if not result.metadata.get("relative", True):
        return f"{trial.loss:.4g}"
    allowed = result.metadata.get("tolerable_loss")
    # 1.002% that misses a promise of 1% must not read as 1.00%
    close = allowed is not None and not trial.passed and round(trial.loss, 4) == round(allowed, 4)
    text = f"{100 * trial.loss:.{4 if close else 2}f}%"
    if close and allowed is not None and text == f"{100 * allowed:.4f}%":
        return f">{text}"
    return text.removeprefix("-") if float(text[:-1]) == 0 else text


def shown_loss_of(trial: Trial, result: TuningResult) -> str:
    """The loss of a trial with its spread, where that is known."""
    loss = shown_loss(trial, result)
    if trial.loss_spread is None or loss == MISSING:
        return loss
    relative = result.metadata.get("relative", True)
    return f"{loss} ± {f'{100 * trial.loss_spread:.2f}%' if relative else f'{trial.loss_spread:.2g}'}"


def trial_verdict(trial: Trial) -> str:
    """One word for what came of a trial: ``pass``, ``miss``, ``failed`` or ``unchecked``."""
    if trial.failed:
        return "failed"
    if math.isnan(trial.loss):
        return "unchecked"
    return "pass" if trial.passed else "miss"


def is_best(trial: Trial, result: TuningResult) -> bool:
    """Whether the returned model is the one of this trial."""
    return result.best is not None and result.best.number == trial.number


def shortened(text: str, length: int) -> str:
    """
    >>> shortened("fall back to float: encoder", 12)
    'fall back t…'
    """
    return text if len(text) <= length else text[: length - 1] + "…"


def printable(text: str) -> str:
    """``text`` without control characters: names come from models, and a terminal obeys escape codes.

    >>> printable("conv\\x1b[31m1")
    'conv�[31m1'
    """
    return "".join(char if char.isprintable() else "�" for char in text)


def escaped(text: object) -> str:
    """``text`` as it may stand in HTML, control characters made visible.

    >>> escaped("<script>")
    '&lt;script&gt;'
    """
    return escape(printable(str(text)))
