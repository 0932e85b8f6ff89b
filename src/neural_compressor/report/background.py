"""The last part of the report: how to load the model, and what the run was made with."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import yaml

from neural_compressor.report.quantities import printable
from neural_compressor.tuning.result import TuningResult


def background(result: TuningResult) -> str:
    """Panels for the loading snippet, the configuration, the machine and the versions; nothing for what is not known."""
    known = result.metadata.get("environment", {})
    panels = [
        _panel("Load the model", _code(result.metadata.get("loading", ""))),
        _panel("Configuration as given", _configuration(result.metadata.get("configuration"))),
        _panel("Machine", _facts(known.get("machine", {}))),
        _panel("Versions", _facts(known.get("versions", {}))),
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


def _facts(facts: Mapping[str, Any]) -> str:
    rows = [
        f"<dt>{escape(printable(name))}</dt><dd>{escape(printable(str(fact)))}</dd>" for name, fact in facts.items()
    ]
    return f"<dl>{''.join(rows)}</dl>" if rows else ""
