"""The figures at the head of the report."""

from __future__ import annotations

from html import escape

from neural_compressor.report.quantities import (
    MISSING,
    shown_accuracy,
    shown_latency,
    shown_loss,
    shown_size,
    size_ratio,
    speed_up,
)
from neural_compressor.tuning.result import Measurement, TuningResult


def cards(result: TuningResult) -> str:
    """Accuracy, size, latency and the ops that were quantized, of the best model."""
    baseline = result.baseline or Measurement(None)
    best = (result.best.measurement if result.best else None) or Measurement(None)
    quantized = sum(op.mode != "float" for op in result.ops)
    simulated = sum(op.simulated for op in result.ops)
    return "".join(
        [
            _accuracy(result, baseline, best),
            _gain("Size", size_ratio(baseline, best), ("smaller", "larger"), *map(shown_size, _sizes(baseline, best))),
            _gain(
                "Latency", speed_up(baseline, best), ("faster", "slower"), *map(shown_latency, _times(baseline, best))
            ),
            _card(
                "Quantized ops",
                f"{quantized} of {len(result.ops)}" if result.ops else MISSING,
                f"{simulated} simulated, {quantized - simulated} on low-bit kernels" if quantized else "",
            ),
        ]
    )


def _accuracy(result: TuningResult, baseline: Measurement, best: Measurement) -> str:
    if best.accuracy is None:
        return _card("Accuracy", MISSING, "no evaluation was given")
    loss = shown_loss(result.best, result) if result.best else MISSING
    change = f"gains {loss[1:]}" if loss.startswith("-") else f"loses {loss}"
    detail = f"{shown_accuracy(baseline.accuracy)} → {shown_accuracy(best.accuracy)}, {change}"
    return _card("Accuracy", shown_accuracy(best.accuracy), detail, "good" if result.met else "warn")


def _gain(name: str, ratio: float | None, words: tuple[str, str], before: str, after: str) -> str:
    if ratio is None:
        return _card(name, after, "not measured" if after == MISSING else "")
    better, worse = words
    big = f"{ratio:.2f}× {better}" if ratio >= 1 else f"{1 / ratio:.2f}× {worse}"
    return _card(name, big, f"{before} → {after}", "good" if ratio > 1.005 else "warn" if ratio < 0.995 else "")


def _sizes(*measurements: Measurement) -> list[int | None]:
    return [m.size_bytes for m in measurements]


def _times(*measurements: Measurement) -> list[float | None]:
    return [m.latency_ms for m in measurements]


def _card(name: str, big: str, small: str, tone: str = "") -> str:
    return (
        f'<div class="card"><h3>{escape(name)}</h3><p class="big {tone}">{escape(big)}</p>'
        f'<p class="small">{escape(small)}</p></div>'
    )
