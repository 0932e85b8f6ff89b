"""GPTQ against a plain loop, against rounding, and in the cases that make others give up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import gptq, quadratic_loss, rtn
from neural_compressor.algorithms.checks import group_size
from neural_compressor.algorithms.columns import column_order
from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError, QuantizationError
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerGroup, TensorScheme

Make = Callable[..., tuple[Any, Any]]
Grid = Callable[[Any], tuple[float, Callable[[float], float]]]


def symmetric(bits: int) -> Grid:
    """A quantizer for the weights of a group, chosen from them: the largest gets the lowest code, whatever its sign."""

    def choose(weights: Any) -> tuple[float, Callable[[float], float]]:
        low = -(2 ** (bits - 1))
        scale = weights[np.abs(weights).argmax()] / low or 1.0
        return scale, lambda w: float(np.clip(np.round(w / scale), low, -low - 1) * scale)

    return choose


def asymmetric(bits: int) -> Grid:
    def choose(weights: Any) -> tuple[float, Callable[[float], float]]:
        low, high, top = min(weights.min(), 0.0), max(weights.max(), 0.0), 2**bits - 1
        scale = (high - low) / top or 1.0
        zero = np.clip(np.round(-low / scale), 0, top)
        return scale, lambda w: float((np.clip(np.round(w / scale) + zero, 0, top) - zero) * scale)

    return choose


def listed(name: str) -> Grid:
    """A codebook or small float: the nearest of its values."""
    values = np.asarray(dtype(name).grid)

    def choose(weights: Any) -> tuple[float, Callable[[float], float]]:
        scale = np.abs(weights).max() / np.abs(values).max() or 1.0
        return scale, lambda w: float(values[np.abs(values - w / scale).argmin()] * scale)

    return choose


def textbook_gptq(
    weight: Any,
    hessian: Any,
    grid: Grid,
    size: int,
    order: Sequence[int],
    *,
    groups: str = "moving",
    damping: float = 0.01,
) -> Any:
    """The values of the quantized weight.

    ``groups`` says what shares a scale: ``"moving"``, runs of ``size`` along ``order``, chosen when the first comes up;
    ``"home"``, runs along the inputs, chosen when the first of them comes up; ``"static"``, the same, chosen beforehand.
    """
    hessian = hessian.astype(np.float64)
    inputs = hessian.shape[0]
    mean = hessian.diagonal().mean()
    hessian = hessian + np.diag(np.where(hessian.diagonal() == 0, mean, 0.0) + damping * mean)
    out = np.zeros(weight.shape)
    for row in range(weight.shape[0]):
        w = weight[row].astype(np.float64)
        inverse = np.linalg.inv(hessian)
        quantizers: dict[int, Callable[[float], float]] = {}
        for place, i in enumerate(order):
            group = place // size if groups == "moving" else i // size
            if group not in quantizers:
                members = [j for p, j in enumerate(order) if (p if groups == "moving" else j) // size == group]
                source = weight[row].astype(np.float64) if groups == "static" else w
                quantizers[group] = grid(source[members])[1]
            out[row, i] = quantizers[group](w[i])
            pivot = inverse[i, i]
            w = w - (w[i] - out[row, i]) / pivot * inverse[i]
            inverse = inverse - np.outer(inverse[:, i], inverse[i]) / pivot
    assert inputs == len(set(order))
    return out


INT4 = TensorScheme(dtype("int4"), True, PerGroup(32))
GRIDS = {
    "int4 sym": (TensorScheme(dtype("int4"), True), symmetric(4)),
    "int3 sym": (TensorScheme(dtype("int3"), True), symmetric(3)),
    "uint4 asym": (TensorScheme(dtype("uint4"), False), asymmetric(4)),
    "int2 asym": (TensorScheme(dtype("int2"), False), asymmetric(2)),
    "nf4": (TensorScheme(dtype("nf4"), True), listed("nf4")),
    "fp4": (TensorScheme(dtype("fp4_e2m1"), True), listed("fp4_e2m1")),
    "fp8": (TensorScheme(dtype("fp8_e4m3"), True), listed("fp8_e4m3")),
}
ORDERS: dict[str, tuple[dict[str, bool], str]] = {
    "natural": ({}, "home"),
    "static": ({"static_groups": True}, "static"),
    "act": ({"act_order": True}, "moving"),
    "act static": ({"act_order": True, "static_groups": True}, "static"),
    "hybrid": ({"hybrid_order": True}, "home"),
}


def assert_equals_textbook(weight: Any, hessian: Any, name: str, part: Any, order: str, **options: Any) -> None:
    scheme, grid = GRIDS[name]
    scheme = TensorScheme(scheme.dtype, scheme.symmetric, part)
    flags, groups = ORDERS[order]
    size = group_size(scheme, weight.shape[1])
    taken = column_order(hessian.diagonal(), size, **flags).order
    expected = textbook_gptq(weight, hessian, grid, size, taken.tolist(), groups=groups)
    found = gptq(weight, hessian, scheme, search=None, **flags, **options).dequantize()
    # Float32 against float64: equal up to the last digits of the scales, so every code is the same.
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5 * np.abs(weight).max())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", GRIDS)
def test_it_equals_the_textbook(make_layer: Make, name: str, order: str) -> None:
    assert_equals_textbook(*make_layer(4, 40), name, PerGroup(16), order, block_size=7)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("part", "inputs"), [(PER_CHANNEL, 24), (PerGroup(8), 24), (PerGroup(8), 27), (PerGroup(64), 24)]
)
def test_it_equals_the_textbook_whatever_the_groups(make_layer: Make, part: Any, inputs: int, order: str) -> None:
    assert_equals_textbook(*make_layer(4, inputs, seed=1), "uint4 asym", part, order)


def test_a_dead_input_is_rounded_and_touches_no_other(make_layer: Make) -> None:
    weight, hessian = make_layer(4, 24)
    hessian[[3, 9], :] = hessian[:, [3, 9]] = 0.0
    assert_equals_textbook(weight, hessian, "int4 sym", PerGroup(8), "natural")
    found = gptq(weight, hessian, TensorScheme(dtype("int8"), True, PER_CHANNEL)).dequantize()
    np.testing.assert_allclose(found[:, [3, 9]], weight[:, [3, 9]], atol=np.abs(weight).max() / 127)


@pytest.mark.parametrize("block_size", [1, 5, 32, 33, 4096])
@pytest.mark.parametrize("flags", [flags for flags, _ in ORDERS.values()], ids=ORDERS)
def test_the_block_size_changes_nothing(make_layer: Make, block_size: int, flags: dict[str, bool]) -> None:
    weight, hessian = make_layer(8, 80)
    whole = gptq(weight, hessian, INT4, **flags)
    parts = gptq(weight, hessian, INT4, block_size=block_size, **flags)
    np.testing.assert_array_equal(parts.array.codes, whole.array.codes)


@pytest.mark.parametrize(
    "scheme",
    [
        TensorScheme(dtype("int4"), True, PerGroup(32)),
        TensorScheme(dtype("uint4"), False, PerGroup(24)),
        TensorScheme(dtype("uint4"), True, PerGroup(24)),
        TensorScheme(dtype("int4"), True, PER_CHANNEL),
        TensorScheme(dtype("int8"), True, PER_TENSOR),
        TensorScheme(dtype("nf4"), True, PerGroup(32)),
        TensorScheme(dtype("mxfp4")),
        TensorScheme(dtype("mxint8")),
        TensorScheme(dtype("nvfp4")),
    ],
    ids=lambda scheme: f"{scheme.dtype.name}-{scheme.granularity.name}",
)
@pytest.mark.parametrize("options", [{"search": None}, {"search": "mse"}, {"hybrid_order": True, "search": None}])
def test_inputs_that_have_nothing_in_common_leave_only_rounding(scheme: Any, options: Any, weight: Any) -> None:
    found = gptq(weight, np.eye(96, dtype=np.float32) * 7, scheme, **options)
    nearest = rtn(weight, scheme, np.ones(96, np.float32), options["search"])
    np.testing.assert_array_equal(found.array.codes, nearest.codes)
    np.testing.assert_array_equal(found.dequantize(), nearest.dequantize())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["int4", "int3", "nf4"])
def test_it_clearly_beats_rounding_on_inputs_it_was_not_shown(make_layer: Make, name: str, order: str) -> None:
    weight, hessian = make_layer(64, 128, count=4000)
    scheme = TensorScheme(dtype(name), True, PerGroup(32))
    rng = np.random.default_rng(9)
    fresh = (rng.standard_normal((2000, 128)) @ np.linalg.cholesky(hessian / 4000).T).astype(np.float32)
    moment = fresh.T @ fresh
    rounding = quadratic_loss(weight, rtn(weight, scheme).dequantize(), moment)
    found = quadratic_loss(weight, gptq(weight, hessian, scheme, **ORDERS[order][0]).dequantize(), moment)
    assert found < 0.6 * rounding


def test_each_option_helps_where_it_should(make_layer: Make) -> None:
    weight, hessian = make_layer(64, 128, count=4000)
    scheme = TensorScheme(dtype("int3"), True, PerGroup(32))

    def loss(**options: Any) -> float:
        return quadratic_loss(weight, gptq(weight, hessian, scheme, **options).dequantize(), hessian)

    plain = loss(search=None)
    assert loss(search=None, act_order=True) < 0.8 * plain
    assert loss(search=None, hybrid_order=True) < 0.95 * plain
    assert loss(search="mse") < 0.9 * plain
    assert loss(search="mse") < 0.95 * loss(search="mse", full_range=False)


def test_an_order_that_moves_groups_is_returned_with_them(make_layer: Make) -> None:
    weight, hessian = make_layer(8, 72)
    result = gptq(weight, hessian, INT4, act_order=True)
    largest_first = np.argsort(-hessian.diagonal(), kind="stable")
    np.testing.assert_array_equal(result.order, largest_first)
    np.testing.assert_array_equal(result.g_idx[largest_first], np.arange(72) // 32)
    np.testing.assert_array_equal(result.dequantize()[:, largest_first], result.array.dequantize())
    for flags in ({}, {"act_order": True, "static_groups": True}, {"hybrid_order": True}):
        still = gptq(weight, hessian, INT4, **flags)
        assert still.order is None
        np.testing.assert_array_equal(still.g_idx, np.arange(72) // 32)


def test_one_group_a_row_never_has_to_move(make_layer: Make) -> None:
    assert gptq(*make_layer(8, 72), TensorScheme(dtype("int4"), True, PER_CHANNEL), act_order=True).order is None


def test_stacked_weights_give_what_each_gives(make_layer: Make) -> None:
    weight, hessian = make_layer(30, 64)
    parts = gptq(weight, hessian, INT4).split([5, 25])
    for part, rows in zip(parts, (slice(0, 5), slice(5, 30)), strict=True):
        alone = gptq(weight[rows], hessian, INT4)
        np.testing.assert_array_equal(part.array.codes, alone.array.codes)
        np.testing.assert_array_equal(part.dequantize(), alone.dequantize())
    with pytest.raises(QuantizationError, match="cannot be split"):
        gptq(weight, hessian, INT4).split([5, 5])


@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("percdamp", [0.0, 0.01])
def test_too_few_samples_are_made_up_for_by_damping(
    make_layer: Make, count: int, percdamp: float, caplog: pytest.LogCaptureFixture
) -> None:
    weight, hessian = make_layer(8, 64, count=count)
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        found = gptq(weight, hessian, INT4, percdamp=percdamp).dequantize()
    assert np.isfinite(found).all()
    assert quadratic_loss(weight, found, hessian) <= quadratic_loss(weight, rtn(weight, INT4).dequantize(), hessian)
    assert bool(caplog.records) == (percdamp == 0)


def test_bad_input_is_refused(make_layer: Make) -> None:
    weight, hessian = make_layer(4, 32)
    for message, options in (
        ("choose one", {"act_order": True, "hybrid_order": True}),
        ("percdamp", {"percdamp": -0.1}),
        ("block_size", {"block_size": 0}),
        ("cross_mix", {"cross_mix": 1.5}),
        ("search", {"search": "banana"}),
        ("no option 'hadamard' for one weight", {"hadamard": True}),
        ("did you mean 'act_order'", {"act_oder": True}),
    ):
        with pytest.raises(ConfigError, match=message):
            gptq(weight, hessian, INT4, **options)
    with pytest.raises(QuantizationError, match="another layer"):
        gptq(weight, hessian[:31, :31], INT4)
    with pytest.raises(QuantizationError, match="NaN or Inf"):
        gptq(weight, hessian * np.float32(np.inf), INT4)
    with pytest.raises(QuantizationError, match="negative"):
        gptq(weight, -hessian, INT4)
    with pytest.raises(ConfigError, match="cast the weight"):
        gptq(weight, hessian, TensorScheme(dtype("bf16")))
