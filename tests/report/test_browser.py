"""The report in a real browser, cut off from every network."""

import re
import shutil
import subprocess

import pytest
from sample_result import HOSTILE, sample_result

from neural_compressor.report.html import keep_report, render

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=127.0.0.1:9", "--enable-logging=stderr", "--v=0",
]  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)"),
]


def opened(path, tmp_path, *flags):
    """The page after its scripts ran, and what it wrote to the console."""
    profile = tmp_path / "profile"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_it_opens_without_a_network_and_without_complaints(tmp_path):
    result = sample_result(40)
    dom, console = opened(keep_report(result, tmp_path), tmp_path)
    assert console == []
    assert "Promise met: trial" in dom
    assert dom.count("<circle") >= 40
    for op in result.ops:
        assert op.name in dom
    assert "the framework YAML has no quantized LayerNorm" in dom


def test_a_hostile_name_is_inert(tmp_path):
    path = keep_report(sample_result(hostile=HOSTILE), tmp_path)
    dom, console = opened(path, tmp_path)
    assert console == []
    assert "<title>owned" not in dom
    assert dom.count("<script") == 2
    assert "<img" not in dom
    # the same without the policy that lets no other script run: escaping alone must hold
    path.write_text(re.sub(r"<meta http-equiv=.*?>", "", path.read_text(encoding="utf-8")), encoding="utf-8")
    dom, console = opened(path, tmp_path)
    assert console == []
    assert "<title>owned" not in dom
    assert "<img" not in dom


def test_the_policy_would_stop_a_script_that_slipped_in(tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(sample_result()).replace("</main>", "<script>document.title='owned'</script></main>"))
    dom, console = opened(path, tmp_path)
    assert "<title>owned" not in dom
    assert any("Content Security Policy" in line for line in console)


def with_script(html, script):
    """The page with the policy lifted and a script of the test at its end."""
    return re.sub(r"<meta http-equiv=.*?>", "", html).replace("</body>", f"<script>{script}</script></body>")


def column(dom, table, index):
    (body,) = re.findall(rf'<table id="{table}">.*?<tbody>(.*?)</tbody>', dom, flags=re.S)
    rows = re.findall(r"<tr(.*?)>(.*?)</tr>", body, flags=re.S)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.S)[index] for attrs, row in rows if "hidden" not in attrs]
    return [re.sub(r"<.*?>", "", cell) for cell in cells]


def test_headings_sort_and_the_filter_hides(tmp_path):
    result = sample_result()
    script = """
        const click = (table, index) => document.querySelectorAll(`#${table} th button`)[index].click();
        click("ops", 6);
        click("trials", 0); click("trials", 0);
        filter.value = "linear int8";
        filter.dispatchEvent(new Event("input"));
    """
    path = tmp_path / "report.html"
    path.write_text(with_script(render(result), script), encoding="utf-8")
    dom, console = opened(path, tmp_path)
    assert console == []
    assert column(dom, "trials", 0) == ["10", "9", "8", "7", "6", "5", "4", "3", "2", "1", ""]
    assert column(dom, "ops", 6) == ["44.0 dB", "exact"]  # the filtered rows, in the order of their SQNR
    assert column(dom, "ops", 1) == ["Linear", "Linear"]


def test_it_can_be_drawn(tmp_path):
    path = keep_report(sample_result(), tmp_path)
    picture = tmp_path / "report.png"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM, *FLAGS, profile, "--window-size=1280,1900", f"--screenshot={picture}", path.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000  # an empty page takes a tenth of that
