"""The walk through each job that docs/architecture.md gives: it names files that are there, and few of them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = re.split(r"^### ", TEXT.split("## One tensor through each job")[1].split("\n## ")[0], flags=re.M)[1:]


def files(walk: str) -> list[str]:
    return re.findall(r"`([a-z_0-9/]+\.(?:py|yaml))`", walk)


@pytest.mark.parametrize("walk", WALKS, ids=[walk.split(":")[0] for walk in WALKS])
def test_a_job_is_understood_from_at_most_fifteen_files(walk: str) -> None:
    named = files(walk)
    assert 5 < len(named) <= 15
    assert len(set(named)) == len(named)  # no room is crossed twice for the same thing
    missing = [name for name in named if not (ROOT / "src" / "neural_compressor" / name).is_file()]
    assert not missing


def test_every_file_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:torch|onnx|config|tuning|adaptor|schemes|strategy)/[a-z_0-9/]+\.py)", TEXT)
    assert not [name for name in named if not (ROOT / "src" / "neural_compressor" / name).is_file()]


def test_the_tests_of_another_cpu_are_there() -> None:
    listed = re.search(r"^CPU_TESTS := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M)
    assert listed is not None
    paths = listed.group(1).replace("\\\n", " ").split()
    assert len(paths) > 5
    assert not [path for path in paths if not (ROOT / path).exists()]
