"""The plots of the report: accuracy against size, accuracy against latency."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from neural_compressor.tuning.result import Measurement, TuningResult

Cost = Callable[[Measurement], float | None]
_WIDTH, _HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 30, 18, 46


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


def _points(result: TuningResult, cost: Cost, cost_text: Callable[[float], str]) -> list[Mark]:
    models: list[tuple[Measurement | None, Mark]] = [(result.baseline, Mark(0, 0, "baseline", "baseline"))]
    for trial in result.trials:
        tip = f"trial {trial.number}: {printable(trial.stage)}\nloss {shown_loss(trial, result)}"
        models.append((trial.measurement, Mark(0, 0, trial_verdict(trial), tip, is_best(trial, result))))
    points = []
    for measured, point in models:
        x = cost(measured) if measured is not None else None
        if measured is not None and measured.accuracy is not None and x is not None:
            tip = f"{point.tip}\naccuracy {shown_accuracy(measured.accuracy)}, {cost_text(x)}"
            points.append(replace(point, x=float(x), y=measured.accuracy, tip=tip))
    return points


def _legend(points: list[Mark], result: TuningResult) -> str:
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


@dataclass(frozen=True)
class Mark:
    """One model. ``kind`` (``baseline``, ``pass``, ``miss``) is its style; ``tip`` shows on hover."""

    x: float
    y: float
    kind: str
    tip: str
    best: bool = False


@dataclass(frozen=True)
class Axis:
    """The values along one side, widened to round numbers."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def around(cls, values: Sequence[float], from_zero: bool = False) -> Axis:
        """An axis on which all ``values`` fit with some air.

        >>> Axis.around([0.0, 10.0]).ticks
        (-2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
        """
        low, high = min(values), max(values)
        if from_zero:
            low = min(low, 0.0)
        margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        low, high = low - (0 if from_zero and low == 0 else margin), high + margin
        step = _round_step((high - low) / 6)
        first, last = math.floor(low / step), math.ceil(high / step)
        return cls(first * step, last * step, tuple(round(n * step, 12) for n in range(first, last + 1)))

    def share(self, value: float) -> float:
        """Where ``value`` lies between the ends, from 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def scatter(
    points: Sequence[Mark],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_text: Callable[[float], str],
    promise: float | None = None,
) -> str:
    """The plot as an ``<svg>`` element. Every text is escaped. ``promise`` is drawn as a line across."""
    finite = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    x_axis = Axis.around([p.x for p in finite], from_zero=True)
    heights = [p.y for p in finite] + ([promise] if promise is not None else [])
    y_axis = Axis.around(heights)
    middle = _text(-(_TOP + (_HEIGHT - _TOP - _BOTTOM) / 2), 14, y_label, "label", "middle")
    parts = [
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_grid(x_axis, y_axis, x_text),
        _text(_LEFT + (_WIDTH - _LEFT - _RIGHT) / 2, _HEIGHT - 8, x_label, "label", "middle"),
        f'<g transform="rotate(-90)">{middle}</g>',
    ]
    if promise is not None:
        y = _y(y_axis, promise)
        parts.append(f'<line class="promise" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        # small and fast models, the best among them, stand at the left
        parts.append(_text(_WIDTH - _RIGHT - 5, y + 14, "promise", "promise-label", "end"))
    # the best and the baseline last, so that no other point covers them
    for point in sorted(finite, key=lambda p: (p.best, p.kind == "baseline")):
        parts.append(_mark(point, x_axis, y_axis))
    return "".join([*parts, "</svg>"])


def _grid(x_axis: Axis, y_axis: Axis, x_text: Callable[[float], str]) -> list[str]:
    decimals = _decimals(y_axis)
    lines = []
    for tick in y_axis.ticks:
        y = _y(y_axis, tick)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(_text(_LEFT - 8, y + 4, f"{tick:.{decimals}f}", "tick", "end"))
    for tick in x_axis.ticks:
        x = _x(x_axis, tick)
        lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        lines.append(_text(x, _HEIGHT - _BOTTOM + 16, x_text(tick) if tick else "0", "tick", "middle"))
    return lines


def _mark(point: Mark, x_axis: Axis, y_axis: Axis) -> str:
    x, y = _x(x_axis, point.x), _y(y_axis, point.y)
    tip = f"<title>{escape(point.tip)}</title>"
    if point.kind == "baseline":
        shape = (
            f'<rect class="mark baseline" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" rx="2">{tip}</rect>'
        )
    else:
        shape = f'<circle class="mark {escape(point.kind)}" cx="{x:.1f}" cy="{y:.1f}" r="5">{tip}</circle>'
    if not (point.best or point.kind == "baseline"):
        return shape
    ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="9.5"/>' if point.best else ""
    name = "best" if point.best else "baseline"
    above = y > _TOP + 30
    return ring + shape + _text(x, y - 15 if above else y + 25, name, "name", "middle")


def _text(x: float, y: float, text: str, style: str, anchor: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(axis: Axis, value: float) -> float:
    return _LEFT + axis.share(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.share(value) * (_HEIGHT - _TOP - _BOTTOM)


def _round_step(rough: float) -> float:
    """The round number next above ``rough``: 1, 2 or 5 times a power of ten."""
    magnitude: float = 10.0 ** math.floor(math.log10(rough))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough * (1 - 1e-9))


def _decimals(axis: Axis) -> int:
    step = (axis.high - axis.low) / max(len(axis.ticks) - 1, 1)
    return max(0, min(8, -math.floor(math.log10(step))))
