import base64
import dataclasses
import hashlib
import json
import math
import re
from html.parser import HTMLParser

import pytest
from sample_result import HOSTILE, sample_result

from neural_compressor.errors import WorkspaceError
from neural_compressor.report.html import keep_report, render
from neural_compressor.tuning.result import Measurement


class Page(HTMLParser):
    """What a browser would make of the file: elements, their attributes, their text."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts, self.tables, self._table = [], [], {}, None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs))
        if tag == "table":
            self._table = self.tables.setdefault(attrs["id"], [])
        elif tag == "tr" and self._table is not None:
            self._table.append([])
        elif tag in ("td", "th"):
            self._table[-1].append("")

    def handle_endtag(self, tag):
        if tag == "table":
            self._table = None

    def handle_data(self, data):
        self.texts.append((self.elements[-1] if self.elements else None, data))
        if self._table and self._table[-1]:
            self._table[-1][-1] += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)


def test_the_tables_hold_every_trial_and_every_op():
    result = sample_result()
    page = Page(render(result))
    trials, ops = page.tables["trials"], page.tables["ops"]
    assert trials[0][:5] == ["#", "stage", "verdict", "accuracy", "loss"]
    assert trials[1][1] == "baseline"
    assert len(trials) == 2 + len(result.trials)
    best = trials[1 + result.best.number]
    assert best[:3] == [str(result.best.number), result.best.stage, "pass best"]
    assert best[3:5] == [f"{result.best.measurement.accuracy:.4f}", f"{100 * result.best.loss:.2f}%"]
    assert "eval_func returned nan" in trials[-1][1]
    assert [row[0] for row in ops[1:]] == [op.name for op in result.ops]
    assert ops[1][1:8] == ["Conv2d", "int8", "uint8", "static", "9.41 kB", "42.3 dB", "38.1 dB"]
    assert ops[1][8:] == ["25.0%", "50.0%", "integersonednn.qconv"]
    assert ops[2][-1] == "simulatedno 4-bit kernel"
    assert ops[5][-1] == "floatthe framework YAML has no quantized LayerNorm"
    assert ops[7][6] == "exact"


def words_of(html):
    return " ".join(
        text for element, text in Page(html).texts if element is None or element[0] not in ("style", "script")
    )


def test_it_says_what_each_trial_changed_and_not_the_whole_plan():
    result = sample_result()
    trials = Page(render(result)).tables["trials"]
    assert trials[0][-1] == "what it changed"
    assert [row[-1] for row in trials[1:5]] == [
        "",
        "",
        "from 1: op1: weight-only int8 → fp32",
        "from 2: op2: weight-only int8 → fp32",
    ]
    assert [trial["changes"] for trial in data_of(render(result))["trials"]] == [row[-1] for row in trials[2:]]


def test_it_says_why_ops_are_not_in_integers_and_what_would_help():
    html = render(sample_result())
    (groups,) = re.findall(r'<ul class="groups">(.*?)</ul>', html)
    lines = [re.sub("<.*?>", "", line) for line in re.findall("<li>.*?</li>", groups)]
    assert lines[0] == "simulated1 Conv2d: no 4-bit kernel (features.1.conv)"
    assert "float1 LayerNorm: the framework YAML has no quantized LayerNorm (norm)" in lines
    assert len(lines) == 4
    assert "take 8 bits" in html
    result = sample_result()
    result.ops = [op for op in result.ops if not op.simulated]
    assert "take 8 bits" not in render(result)


def test_it_says_with_what_the_run_was_made_and_how_to_load_the_model():
    result = sample_result()
    words = words_of(render(result))
    for part in ("Some CPU", "AVX2, VNNI", "4 usable", "3.11.9", "2026-01-31 12:00 UTC", "approach: static"):
        assert part in words
    assert result.metadata["loading"].strip() in words
    assert re.search(r"Batch size:\s*32", words)
    assert data_of(render(result))["metadata"]["environment"]["versions"] == {"python": "3.11.9", "numpy": "2.0.0"}


def test_it_says_how_many_samples_calibration_saw():
    result = sample_result()
    size = result.best.plan.calib_sampling_size
    assert "Calibration:" not in words_of(render(result))
    result.metadata["samples_seen"] = {size: 37}
    assert "Calibration: 37 samples" in " ".join(words_of(render(result)).split())


def test_a_latency_has_its_spread_and_the_rounds_it_is_of():
    result = sample_result()
    assert "rounds" not in words_of(render(result)), "nothing is told of what was not measured"
    best = dataclasses.replace(result.best.measurement, latency_spread=0.034, latency_rounds=120)
    result.trials[result.best.number - 1] = result.best = dataclasses.replace(result.best, measurement=best)
    html = render(result)
    row = Page(html).tables["trials"][1 + result.best.number]
    assert row[7] == f"{best.latency_ms:.3g} ms ± 3.4%"
    assert "median of 120 rounds" in html


def test_the_plots_hold_every_measured_model_and_the_promise():
    result = sample_result()
    html = render(result)
    for plot in re.findall(r"<svg.*?</svg>", html):
        marks = re.findall(r'class="mark (\w+)"', plot)
        assert marks.count("baseline") == 1
        assert marks.count("pass") == sum(trial.passed for trial in result.trials)
        assert marks.count("miss") == sum(not trial.passed for trial in result.trials) - 1  # one failed
        assert plot.count("<title>") == len(marks)
        assert plot.count('class="ring"') == 1
        assert plot.count('class="promise"') == 1
    assert html.count("<svg") == 2


def test_nothing_is_fetched_from_anywhere():
    page = Page(render(sample_result(hostile=HOSTILE)))
    for tag, attrs in page.elements:
        for name in ("src", "href", "action", "srcset"):
            assert attrs.get(name, "data:,") == "data:,", (tag, attrs)
    style = "".join(text for element, text in page.texts if element and element[0] == "style")
    assert "url(" not in style
    assert "@import" not in style


def test_hostile_names_stay_text():
    page = Page(render(sample_result(hostile=HOSTILE)))
    assert page.count("script") == 2
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert page.tables["ops"][1][0] == "features.0.conv" + HOSTILE
    assert page.tables["trials"][2][1].startswith("default" + HOSTILE)
    assert page.tables["trials"][3][-1] == f"from 1: op1{HOSTILE}: weight-only int8 → fp32"
    texts = [text for _, text in page.texts]
    assert f"model = quantization.load('out{HOSTILE}', float_model)" in texts
    assert f"Some CPU{HOSTILE}" in texts


def test_the_browser_is_told_to_run_our_script_and_no_other():
    html = render(sample_result())
    (script,) = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', html)
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def data_of(html):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.S)
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_the_data_block_is_the_result_as_plain_json():
    result = sample_result(hostile=HOSTILE)
    data = data_of(render(result))
    assert data["title"] == result.title
    assert data["baseline"] == {
        "accuracy": 0.9833, "latency_ms": 4.21, "size_bytes": 1310000, "footprint_bytes": None,
        "output_sqnr": None, "latency_spread": None, "latency_rounds": None, "accuracy_spread": None,
        "accuracy_samples": None,
    }  # fmt: skip
    assert [trial["loss"] for trial in data["trials"]][:-1] == [trial.loss for trial in result.trials][:-1]
    assert data["trials"][-1]["loss"] is None
    assert data["ops"][0]["name"] == result.ops[0].name
    assert data["ops"][6]["weight_sqnr"] is None  # infinite: exact
    assert data["best"] == result.best.number


def test_a_run_without_evaluation_or_latency_or_ops_has_a_report_too():
    result = sample_result(1)
    trial = dataclasses.replace(result.trials[0], loss=math.nan, measurement=Measurement(None, None, 400_000))
    bare = dataclasses.replace(
        result, trials=[trial], best=trial, met=False, criterion="none", ops=(), metadata={}, baseline=None
    )
    page = Page(render(bare))
    words = " ".join(text for _, text in page.texts)
    assert "Nothing to plot" in words
    assert "unchecked" in words
    assert "ops" not in page.tables
    assert "nan" not in re.sub(r"<style>.*?</style>", "", render(bare), flags=re.S).lower().replace(
        "eval_func returned nan", ""
    )
    data_of(render(bare))


def test_one_trial_that_equals_the_baseline_can_be_plotted():
    result = sample_result(1)
    same = dataclasses.replace(result.trials[0], measurement=result.baseline, loss=0.0)
    html = render(dataclasses.replace(result, trials=[same], best=same, metadata={}))
    assert html.count("<svg") == 2


def test_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "report.html"
    keep_report(sample_result(), path.parent)
    before = path.read_text(encoding="utf-8")
    assert before.startswith("<!DOCTYPE html>")
    broken = sample_result()
    broken.title = "lone \ud800 surrogate is made visible"
    keep_report(broken, path.parent)
    broken.trials = None
    after = path.read_text(encoding="utf-8")
    with pytest.raises(TypeError):
        keep_report(broken, path.parent)
    assert path.read_text(encoding="utf-8") == after
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.html", "reports"]
    assert len(list((path.parent / "reports").iterdir())) == 2


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(WorkspaceError, match="cannot write"):
        keep_report(sample_result(), tmp_path / "file")


def test_each_run_keeps_its_report_and_the_last_has_a_fixed_name(tmp_path):
    kept = []
    for title in ("first", "second", "second"):
        result = sample_result()
        result.title = title
        result.metadata["study"] = f"{title}-0123"
        kept.append(keep_report(result, tmp_path))
        assert title in kept[-1].read_text(encoding="utf-8")
        assert (tmp_path / "report.html").read_bytes() == kept[-1].read_bytes()
    assert sorted((tmp_path / "reports").iterdir()) == sorted(kept)
    assert len(set(kept)) == 3
    assert re.fullmatch(r"\d{8}-\d{6}-first-0123\.html", kept[0].name)


def test_a_model_that_is_not_faster_than_float_is_no_green_verdict():
    slow = dataclasses.replace(sample_result(), verdict="nothing tried is faster than float here", beats_float=False)
    assert 'class="verdict met"' in render(sample_result())
    assert 'class="verdict missed"' in render(slow)
    assert data_of(render(slow))["beats_float"] is False
