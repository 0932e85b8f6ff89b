"""Schemes as plain data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neural_compressor.dtypes import DTYPES, dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import (
    PER_CHANNEL,
    PER_TENSOR,
    OpScheme,
    PerChannel,
    PerGroup,
    TensorScheme,
    float_op,
    reduced,
)

TENSORS = st.builds(
    TensorScheme,
    dtype=st.sampled_from([dtype(name) for name in DTYPES]),
    symmetric=st.booleans(),
    granularity=st.one_of(
        st.just(PER_TENSOR), st.builds(PerChannel, st.integers(0, 3)), st.builds(PerGroup, st.integers(1, 256))
    ),
    algorithm=st.sampled_from(["minmax", "kl", "mse"]),
    reduce_range=st.booleans(),
)
NESTED = st.builds(replace, TENSORS, scales=st.none() | TENSORS, zeros=st.none() | TENSORS)


def settled(scheme: TensorScheme | None) -> TensorScheme | None:
    """Of a float type nothing is told but its name."""
    if scheme is None or scheme.is_float:
        return scheme and TensorScheme(scheme.dtype)
    return replace(scheme, scales=settled(scheme.scales), zeros=settled(scheme.zeros))


@given(NESTED)
def test_a_tensor_scheme_comes_back_from_its_dict(scheme: TensorScheme) -> None:
    back = TensorScheme.from_dict(scheme.to_dict())
    assert back == settled(scheme)
    assert hash(back) == hash(TensorScheme.from_dict(back.to_dict()))


@given(st.none() | TENSORS, st.none() | TENSORS, st.sampled_from(["static", "dynamic", "weight_only"]))
def test_an_op_scheme_comes_back_from_its_dict(
    weight: TensorScheme | None, activation: TensorScheme | None, mode: str
) -> None:
    scheme = OpScheme(weight, activation, mode)
    once = OpScheme.from_dict(scheme.to_dict())
    assert OpScheme.from_dict(once.to_dict()) == once
    assert once.mode == mode


@pytest.mark.parametrize(
    ("data", "granularity"),
    [
        ({"dtype": "int4"}, PER_TENSOR),
        ({"dtype": "int4", "granularity": "per_channel"}, PER_CHANNEL),
        ({"dtype": "int4", "granularity": "per_channel", "axis": 1}, PerChannel(1)),
        ({"dtype": "int", "bits": 4, "group_size": 128}, PerGroup(128)),
        ({"dtype": "int4", "granularity": "per_group", "group_size": -1}, PER_CHANNEL),
    ],
)
def test_dicts_are_read_as_users_write_them(data: dict[str, object], granularity: object) -> None:
    scheme = TensorScheme.from_dict(data)
    assert scheme.dtype == dtype("int4")
    assert scheme.granularity == granularity


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"dtype": "banana"}, "unknown data type 'banana'"),
        ({"dtype": "int", "bits": 99}, "unknown data type 'int99'"),
        ({"dtype": "int8", "scheme": "symm"}, "unknown scheme 'symm'; known: sym, asym"),
        ({"dtype": "int8", "granularity": "per_chanel"}, "did you mean 'per_channel'"),
        ({"dtype": "int8", "granularity": "per_group"}, "group_size"),
        ({"dtype": "int8", "granularity": "per_group", "group_size": 0}, "group_size"),
        ({"dytpe": "int8"}, "unknown field 'dytpe' of a tensor scheme; did you mean 'dtype'"),
    ],
)
def test_what_makes_no_sense_is_refused(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TensorScheme.from_dict(data)


def test_the_mode_follows_from_what_is_quantized() -> None:
    int8 = {"dtype": "int8"}
    assert OpScheme.from_dict({"weight": int8, "activation": {"dtype": "uint8"}}).mode == "static"
    assert OpScheme.from_dict({"weight": int8}).mode == "weight_only"
    assert OpScheme.from_dict({"weight": int8, "activation": {"dtype": "fp32"}}).mode == "weight_only"
    assert OpScheme.from_dict({"weight": {"dtype": "fp32"}, "activation": {"dtype": "fp32"}}).is_float


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown quantization mode 'statik'; did you mean 'static'"):
        OpScheme(mode="statik")


def test_precision_names_what_a_table_shows() -> None:
    assert float_op("bf16").precision == "bf16"
    assert OpScheme(TensorScheme(dtype("int4")), TensorScheme(dtype("uint8")), "static").precision == "int4"
    assert OpScheme(None, TensorScheme(dtype("uint8")), "static").precision == "uint8"
    assert float_op(has_weight=False).weight is None


def test_only_integers_are_reduced() -> None:
    assert reduced(TensorScheme(dtype("uint8"))).reduce_range
    assert not reduced(TensorScheme(dtype("fp8_e4m3"))).reduce_range
