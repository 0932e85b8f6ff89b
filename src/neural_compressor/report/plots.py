"""The plots of the report: accuracy against size, accuracy against latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import escape

from neural_compressor.report.quantities import (
    is_best,
    printable,
    shown_accuracy,
    shown_latency,
    shown_loss,
    shown_size,
    trial_verdict,
)
from neural_compressor.report.scatter import Point, scatter
from neural_compressor.tuning.result import Measurement, TuningResult

Cost = Callable[[Measurement], float | None]


def plots(result: TuningResult) -> str:
    """Both plots, each in its panel with a legend."""
    return "".join(
        [
            _panel(result, "size", lambda m: m.size_bytes, shown_size),
            _panel(result, "latency", lambda m: m.latency_ms, shown_latency),
        ]
    )


def _panel(result: TuningResult, cost_name: str, cost: Cost, cost_text: Callable[[float], str]) -> str:
    title = f"Accuracy against {cost_name}"
    points = _points(result, cost, cost_text)
    if len(points) < 2:
        why = "no accuracy was measured" if _unchecked(result) else f"{cost_name} was not measured"
        return f'<div class="panel"><h3>{title}</h3><p class="empty">Nothing to plot: {why}.</p></div>'
    direction = "higher" if result.metadata.get("higher_is_better", True) else "lower"
    svg = scatter(
        points,
        title=f"{title} of the baseline and each trial",
        x_label=f"{cost_name} (smaller is better)",
        y_label=f"accuracy ({direction} is better)",
        x_text=cost_text,
        promise=result.metadata.get("promise"),
    )
    return f'<div class="panel"><h3>{title}</h3>{svg}{_legend(points, result)}</div>'


def _points(result: TuningResult, cost: Cost, cost_text: Callable[[float], str]) -> list[Point]:
    models: list[tuple[Measurement | None, Point]] = [(result.baseline, Point(0, 0, "baseline", "baseline"))]
    for trial in result.trials:
        tip = f"trial {trial.number}: {printable(trial.stage)}\nloss {shown_loss(trial, result)}"
        models.append((trial.measurement, Point(0, 0, trial_verdict(trial), tip, is_best(trial, result))))
    points = []
    for measured, point in models:
        x = cost(measured) if measured is not None else None
        if measured is not None and measured.accuracy is not None and x is not None:
            tip = f"{point.tip}\naccuracy {shown_accuracy(measured.accuracy)}, {cost_text(x)}"
            points.append(replace(point, x=float(x), y=measured.accuracy, tip=tip))
    return points


def _legend(points: list[Point], result: TuningResult) -> str:
    words = {
        "baseline": "baseline",
        "pass": "keeps the promise",
        "miss": "misses it",
        "best": "best",
        "promise": "promise",
    }
    present = {p.kind for p in points} | ({"best"} if any(p.best for p in points) else set())
    present |= {"promise"} if result.metadata.get("promise") is not None else set()
    items = [
        f'<li><span class="dot {kind}"></span>{escape(word)}</li>' for kind, word in words.items() if kind in present
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _unchecked(result: TuningResult) -> bool:
    return result.baseline is None or result.baseline.accuracy is None
