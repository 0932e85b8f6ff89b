"""Schemes in short, and an independent reference: quantization in float64 by the textbook formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from neural_compressor.schemes import OpScheme


@pytest.fixture(autouse=True)
def _one_seeded_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def make_scheme(
    weight: str | dict[str, Any] | None, activation: str | dict[str, Any] | None = None, mode: str = ""
) -> OpScheme:
    def fields(value: str | dict[str, Any]) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        dtype, *options = value.split()
        out: dict[str, Any] = {"dtype": dtype}
        for option in options:
            if option in ("sym", "asym"):
                out["scheme"] = option
            elif option == "reduced":
                out["reduce_range"] = True
            elif option == "safe":
                out["pair_safe"] = True
            elif option.isdigit():
                out["group_size"] = int(option)
            else:
                out["granularity"] = f"per_{option}"
        return out

    data: dict[str, Any] = {} if weight is None else {"weight": fields(weight)}
    if activation is not None:
        data["activation"] = {**fields(activation), "quant_mode": mode}
    return OpScheme.from_dict(data)


def qparams(
    low: Tensor, high: Tensor, bits: int, signed: bool, symmetric: bool, qmax: int | None = None
) -> tuple[Tensor, Tensor]:
    qmin, usual = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    qmax = usual if qmax is None else qmax
    peak = torch.maximum(low.abs(), high.abs())
    if symmetric and signed:
        return peak / qmax, torch.zeros_like(peak)
    if symmetric:
        return torch.where(low < 0, 2 * peak / (qmax - qmin), peak / qmax), torch.where(low < 0, 2.0 ** (bits - 1), 0.0)
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = (high - low) / (qmax - qmin)
    return scale, (qmin - low / scale).round()


def rounded(
    x: Tensor,
    low: Any,
    high: Any,
    *,
    bits: int = 8,
    signed: bool = False,
    symmetric: bool = False,
    qmax: int | None = None,
) -> Tensor:
    """``x`` quantized over ``[low, high]`` and back, in float64; scales are float32 numbers as everywhere."""
    qmin, usual = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    qmax = usual if qmax is None else qmax
    low, high = (torch.as_tensor(v, dtype=torch.float32) for v in (low, high))
    scale, zero = qparams(low, high, bits, signed, symmetric, qmax)
    codes = torch.clamp(torch.round(x.float() / scale) + zero, qmin, qmax)  # float32: which side a tie falls on
    return (codes - zero).double() * scale.double()


def rounded_weight(w: Tensor, per_channel: bool = True, **how: Any) -> Tensor:
    """A weight whose first axis is the output channel."""
    flat = w.reshape(len(w), -1) if per_channel else w.reshape(1, -1)
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    return rounded(flat, low, high, **{"signed": True, "symmetric": True, **how}).reshape(w.shape)


@pytest.fixture(scope="session")
def scheme() -> Callable[..., OpScheme]:
    """``scheme("int8 channel", "uint8 asym", "static")``."""
    return make_scheme


@pytest.fixture(scope="session")
def ref() -> SimpleNamespace:
    """The reference: ``rounded`` and ``rounded_weight``."""
    return SimpleNamespace(rounded=rounded, rounded_weight=rounded_weight, qparams=qparams)


@pytest.fixture(scope="session")
def vnni() -> bool:
    """Whether this CPU multiplies full-range int8 without saturating, asked of torch and not of our probe."""
    return bool(torch.cpu._is_vnni_supported())
