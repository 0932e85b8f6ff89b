"""Sweeps: each can only lower the loss, and in the end no single code can be changed for the better."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import InputStatistics, gptq, quadratic_loss
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PerGroup, TensorScheme

SCHEMES = [
    TensorScheme(dtype("int3"), True, PerGroup(32)),
    TensorScheme(dtype("uint4"), False, PER_CHANNEL),
    TensorScheme(dtype("nf4"), True, PerGroup(20)),
    TensorScheme(dtype("nvfp4")),
]
DAMPING = 0.01


def damped(statistics: InputStatistics) -> Any:
    hessian = statistics.hessian
    return hessian + DAMPING * hessian.diagonal().mean() * np.eye(hessian.shape[0], dtype=np.float32)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.dtype.name)
@pytest.mark.parametrize("options", [{}, {"act_order": True}, {"hybrid_order": True}], ids=["plain", "act", "hybrid"])
def test_each_sweep_lowers_the_loss(scheme: Any, options: Any, weight: Any, statistics: InputStatistics) -> None:
    losses = [
        quadratic_loss(
            weight,
            gptq(
                weight, statistics.hessian, scheme, percdamp=DAMPING, sweeps=sweeps, block_size=10, **options
            ).dequantize(),
            damped(statistics),
        )
        for sweeps in (0, 1, 2, 3)
    ]
    assert losses[1] < losses[0]
    assert all(b <= a * (1 + 1e-5) for a, b in itertools.pairwise(losses))


def test_in_the_end_no_single_code_can_be_changed_for_the_better(weight: Any, statistics: InputStatistics) -> None:
    weight, hessian = weight[:3], damped(statistics).astype(np.float64)
    scheme = TensorScheme(dtype("int3"), True, PER_CHANNEL)
    array = gptq(weight, statistics.hessian, scheme, percdamp=DAMPING, sweeps=60).array

    def loss(codes: Any) -> Any:
        error = weight - codes * array.scale[:, None].astype(np.float64)
        return ((error @ hessian) * error).sum(1)

    codes = array.codes.astype(np.float64)
    best = loss(codes)
    for column in range(weight.shape[1]):
        for step in (-1, 1):
            changed = codes.copy()
            changed[:, column] = np.clip(changed[:, column] + step, -4, 3)
            assert np.all(loss(changed) >= best * (1 - 1e-5))
