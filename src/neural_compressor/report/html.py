"""The report: one HTML file with everything inside, readable with no network."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from datetime import datetime
from html import escape
from importlib.resources import files
from itertools import count
from pathlib import Path
from string import Template
from typing import Any

import yaml

from neural_compressor.paths import write_text_atomically
from neural_compressor.report.differences import differences
from neural_compressor.report.plots import plots
from neural_compressor.report.quantities import (
    MISSING,
    escaped,
    printable,
    shown_accuracy,
    shown_latency,
    shown_loss_of,
    shown_size,
)
from neural_compressor.report.tables import op_section, trial_table
from neural_compressor.tuning.result import Measurement, TuningResult, size_ratio, speed_up
from neural_compressor.tuning.workspace import slug, workspace_errors


def keep_report(result: TuningResult, workspace: str | Path) -> Path:
    """Write the report of this run to a file of its own in ``reports``, which is returned, and a copy of it as
    ``report.html``, which is that of the last run."""
    workspace = Path(workspace).expanduser().absolute()
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{slug(str(result.metadata.get('study', result.title)))}"
    folder = workspace / "reports"
    path = next(p for n in count(1) if not (p := folder / f"{name}{'' if n == 1 else f'-{n}'}.html").exists())
    text = render(result)
    for target in (path, workspace / "report.html"):
        with workspace_errors(target.parent, target):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(target, text)
    return path


def render(result: TuningResult) -> str:
    """The report as HTML. Names and messages come from models and users: every one is escaped."""
    script = _piece("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_piece("report.html")).substitute(
        title=escaped(result.title),
        # the browser runs this script and no other, whatever a name contains
        script_hash=f"sha256-{digest}",
        style=_piece("report.css"),
        script=script,
        verdict=escaped(result.verdict[:1].upper() + result.verdict[1:]),
        verdict_kind="met" if result.satisfied else "missed" if result.criterion != "none" else "unchecked",
        facts=_facts(result),
        notes="".join(f'<p class="notes">Note: {escaped(note)}.</p>' for note in result.metadata.get("notes", ())),
        cards=cards(result),
        plots=plots(result),
        trials=trial_table(result),
        ops=op_section(result),
        background=background(result),
        footer=_footer(result),
        data=_data_block(report_data(result)),
    )


def report_data(result: TuningResult) -> dict[str, Any]:
    """The report as plain data: the result, and for each trial what it changed."""
    data = result.to_dict()
    for trial, change in zip(data["trials"], differences(result.trials), strict=True):
        trial["changes"] = change
    return data


def _piece(name: str) -> str:
    return (files("neural_compressor.report") / name).read_text(encoding="utf-8")


def _facts(result: TuningResult) -> str:
    resumed = sum(trial.resumed for trial in result.trials)
    facts = {
        "Promise": result.criterion if result.criterion != "none" else "",
        "Strategy": result.metadata.get("strategy", ""),
        "Objective": ", ".join(result.metadata.get("objective", ())),
        "Trials": f"{len(result.trials)}{f' ({resumed} from the journal)' if resumed else ''}",
        "Time": f"{result.seconds:.1f} s" if result.seconds else "",
        "Stopped because": result.metadata.get("stopped", ""),
        "Batch size": result.metadata.get("batch_size") or "",
        "Calibration": _calibration(result),
        "Evaluation": _evaluation(result),
        "Date": result.metadata.get("environment", {}).get("date", ""),
    }
    return "".join(f"<li>{name}: <b>{escaped(value)}</b></li>" for name, value in facts.items() if value)


def _calibration(result: TuningResult) -> str:
    """How many samples the best plan was calibrated with, as far as the adaptor has counted them."""
    plan = result.best.plan if result.best else None
    if plan is None:
        return ""
    seen = result.metadata.get("samples_seen", {})
    if count := seen.get(plan.calib_sampling_size, seen.get(str(plan.calib_sampling_size))):
        return f"{count} sample{'' if count == 1 else 's'}"
    return f"up to {plan.calib_sampling_size} samples" if "static" in plan.modes else ""


def _evaluation(result: TuningResult) -> str:
    """How many samples accuracies are of, as far as the evaluation tells."""
    if result.baseline is None or result.baseline.accuracy is None:
        return ""
    count = result.baseline.accuracy_samples
    return "one number for the whole model" if count is None else f"{count} sample{'' if count == 1 else 's'}"


def cards(result: TuningResult) -> str:
    """The figures at the head of the report: accuracy, size, latency and the ops that were quantized, of the best model."""
    baseline = result.baseline or Measurement(None)
    best = (result.best.measurement if result.best else None) or Measurement(None)
    quantized = sum(op.mode != "float" for op in result.ops)
    simulated = sum(op.simulated for op in result.ops)
    return "".join(
        [
            _accuracy(result, baseline, best),
            _gain(
                "Size",
                size_ratio(baseline, best),
                ("smaller", "larger"),
                *(shown_size(each.size_bytes) for each in (baseline, best)),
            ),
            _gain(
                "Latency",
                speed_up(baseline, best),
                ("faster", "slower"),
                *(shown_latency(each.latency_ms) for each in (baseline, best)),
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
    loss = shown_loss_of(result.best, result) if result.best else MISSING
    change = f"gains {loss[1:]}" if loss.startswith("-") else f"loses {loss}"
    detail = f"{shown_accuracy(baseline.accuracy)} → {shown_accuracy(best.accuracy)}, {change}"
    return _card("Accuracy", shown_accuracy(best.accuracy), detail, "good" if result.met else "warn")


def _gain(name: str, ratio: float | None, words: tuple[str, str], before: str, after: str) -> str:
    if ratio is None:
        return _card(name, after, "not measured" if after == MISSING else "")
    better, worse = words
    big = f"{ratio:.2f}× {better}" if ratio >= 1 else f"{1 / ratio:.2f}× {worse}"
    return _card(name, big, f"{before} → {after}", "good" if ratio > 1.005 else "warn" if ratio < 0.995 else "")


def _card(name: str, big: str, small: str, tone: str = "") -> str:
    return (
        f'<div class="card"><h3>{escape(name)}</h3><p class="big {tone}">{escape(big)}</p>'
        f'<p class="small">{escape(small)}</p></div>'
    )


def _footer(result: TuningResult) -> str:
    places = {
        "Best model": result.metadata.get("best_model", ""),
        "Journal": result.metadata.get("storage", ""),
        "Study": result.metadata.get("study", ""),
    }
    return "".join(f"<div>{name}: {escaped(value)}</div>" for name, value in places.items() if value)


def _data_block(data: Any) -> str:
    """JSON that cannot close its script element; what is not finite becomes null, as JSON has no word for it."""
    text = json.dumps(_finite(data), default=str, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def background(result: TuningResult) -> str:
    """Panels for the loading snippet, the configuration, the machine and the versions; nothing for what is not known."""
    known = result.metadata.get("environment", {})
    panels = [
        _panel("Load the model", _code(result.metadata.get("loading", ""))),
        _panel("Configuration as given", _configuration(result.metadata.get("configuration"))),
        _panel("Machine", _definitions(known.get("machine", {}))),
        _panel("Versions", _definitions(known.get("versions", {}))),
    ]
    found = "".join(panels)
    return f'<h2>Use it, repeat it</h2><section class="plots">{found}</section>' if found else ""


def _panel(title: str, content: str) -> str:
    return f'<div class="panel"><h3>{escape(title)}</h3>{content}</div>' if content else ""


def _configuration(given: Any) -> str:
    if given is None:
        return ""
    if not given:
        return "<p>The defaults.</p>"
    return _code(yaml.safe_dump(given, sort_keys=False, allow_unicode=True, default_flow_style=None, width=100))


def _code(text: str) -> str:
    lines = "\n".join(printable(line) for line in text.splitlines())
    return f"<pre><code>{escape(lines)}</code></pre>" if text else ""


def _definitions(facts: Mapping[str, Any]) -> str:
    rows = [f"<dt>{escaped(name)}</dt><dd>{escaped(fact)}</dd>" for name, fact in facts.items()]
    return f"<dl>{''.join(rows)}</dl>" if rows else ""
