"""What a result says a layer must do to its inputs gives the outputs of the weight it says it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neural_compressor.algorithms import FloatZeroArray, LayerResult, Rotation, double_quant, hqq, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.errors import QuantizationError
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerGroup, TensorScheme


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_steps_of_a_layer(ordered: bool, rotated: bool, scaled: bool, weight: Any, vectors: Any) -> None:
    rng = np.random.default_rng(0)
    array = rtn(weight, TensorScheme(dtype("int8"), True, PerGroup(32)))
    result = LayerResult(
        array,
        order=rng.permutation(96) if ordered else None,
        input_scale=np.exp(rng.standard_normal(96)).astype(np.float32) if scaled else None,
        rotation=Rotation(96, seed=1) if rotated else None,
    )
    x = vectors
    if result.input_scale is not None:
        x = x / result.input_scale
    if result.rotation is not None:
        x = result.rotation.apply(x)
    if result.order is not None:
        x = x[..., result.order]
    expected = x @ array.dequantize().T
    np.testing.assert_allclose(vectors @ result.dequantize().T, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("part", [PerGroup(32), PER_CHANNEL, PER_TENSOR], ids=str)
def test_rows_can_be_split(part: Any, weight: Any) -> None:
    results = [LayerResult(rtn(weight, TensorScheme(dtype("uint4"), False, part)))]
    if part != PER_TENSOR:
        results.append(LayerResult(hqq(weight, TensorScheme(dtype("uint4"), False, part))))
        assert isinstance(results[1].array, FloatZeroArray)
    for result in results:
        pieces = result.split([1, 40, 7])
        assert [piece.array.shape for piece in pieces] == [(1, 96), (40, 96), (7, 96)]
        np.testing.assert_array_equal(np.concatenate([piece.dequantize() for piece in pieces]), result.dequantize())


def test_scales_that_run_on_from_row_to_row_are_not_split(weight: Any) -> None:
    runs = TensorScheme(dtype("uint8"), False, PerGroup(256))
    for scales, zeros in ((runs, None), (None, runs)):
        array = double_quant(hqq(weight, TensorScheme(dtype("uint4"), False, PerGroup(32))), scales, zeros)
        with pytest.raises(QuantizationError, match="split the weight before double_quant"):
            LayerResult(array).split([40, 8])
