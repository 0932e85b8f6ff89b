"""The registry of data types."""

from __future__ import annotations

import pytest

from neural_compressor.dtypes import DTYPES, CodebookType, IntType, dtype, register_dtype
from neural_compressor.errors import ConfigError


def test_everything_promised_is_there() -> None:
    promised = {f"{u}int{bits}" for u in ("", "u") for bits in range(1, 17)}
    promised |= {"fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "nf4"}
    promised |= {"mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "mxint8", "nvfp4"}
    assert promised <= set(DTYPES)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("float32", "fp32"),
        ("bfloat16", "bf16"),
        ("float16", "fp16"),
        ("fp8", "fp8_e4m3"),
        ("fp4", "fp4_e2m1"),
        ("mxfp8", "mxfp8_e4m3"),
    ],
)
def test_aliases(alias: str, name: str) -> None:
    assert dtype(alias) is dtype(name)


def test_a_typing_error_names_the_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown data type 'itn4'; did you mean .*'int4'"):
        dtype("itn4")


def test_a_type_stands_for_itself() -> None:
    assert dtype(IntType(3)) == IntType(3)


def test_names_are_registered_once() -> None:
    kind = CodebookType("once", (0.0, 1.0))
    register_dtype(kind, replace=True)
    with pytest.raises(ConfigError, match="'once' is already registered"):
        register_dtype(kind)
    changed = register_dtype(CodebookType("once", (0.0, 2.0)), replace=True)
    assert dtype("once") is changed
