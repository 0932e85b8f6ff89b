"""What the tests of the adaptor room share."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_adaptor"
sys.path.insert(0, str(EXAMPLE))

INT4_BLOCK = """
    int4: {
        'static': {
            'Conv2d': {
                'weight': {
                    'dtype': ['int4'],
                    'scheme': ['sym'],
                    'granularity': ['per_channel'],
                    'algorithm': ['minmax']},
                'activation': {
                    'dtype': ['uint4'],
                    'scheme': ['sym'],
                    'granularity': ['per_tensor'],
                    'algorithm': ['minmax']},
            },
        }
    }
"""


@pytest.fixture
def write_yaml(tmp_path):
    """Write a framework YAML and return its path."""

    def write(text, name="framework.yaml"):
        path = tmp_path / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write


@pytest.fixture
def int4_block():
    """The block that adds 4 bits to Conv2d, as the guide to new data types prints it."""
    return INT4_BLOCK
