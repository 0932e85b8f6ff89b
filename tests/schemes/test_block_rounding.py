"""Rounding to blocks in one pass: the same as through codes, whatever the size, and where a faster kernel stands."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from neural_compressor.dtypes import dtype
from neural_compressor.errors import ConfigError
from neural_compressor.schemes import TensorScheme, block_rounding, quantize
from neural_compressor.schemes.block_rounding import FASTER, round_blocks


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8", "mxint8", "mxint2_b16", "nvfp4"])
@pytest.mark.parametrize("shape", [(5, 100), (3, 4, 64), (96,)])
def test_parts_that_fit_the_cache_change_nothing(name, shape, monkeypatch) -> None:
    x, scheme = np.random.default_rng(0).standard_normal(shape).astype(np.float32), TensorScheme(dtype(name))
    wanted = quantize(x, scheme).dequantize()
    for limit in (1 << 18, 150, 1):
        monkeypatch.setattr(block_rounding, "_IN_CACHE", limit)
        assert np.array_equal(round_blocks(x, scheme), wanted)
        assert np.array_equal(round_blocks(torch.from_numpy(x), scheme).numpy(), wanted)


def test_a_registered_kernel_runs_where_it_fits(monkeypatch) -> None:
    class Zeros:
        def fits(self, scheme):
            return scheme.dtype.name == "mxfp4"

        def __call__(self, x, scheme, tensor_scale):
            return torch.zeros_like(x)

    monkeypatch.setitem(FASTER, "cpu", Zeros())
    x = torch.ones(2, 32)
    assert float(round_blocks(x, TensorScheme(dtype("mxfp4"))).sum()) == 0
    assert float(round_blocks(x, TensorScheme(dtype("mxfp8"))).sum()) == 64


def test_a_format_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="int8 has no blocks"):
        round_blocks(np.ones((2, 32), np.float32), TensorScheme(dtype("int8")))
