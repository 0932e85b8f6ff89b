"""What is done to a layer beyond its algorithm."""

import pytest
import torch

from neural_compressor.algorithms import FloatZeroArray
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import Method, OpScheme, PerGroup, QuantizedArray, TensorScheme
from neural_compressor.torch.methods.weight_only.methods import finished, quantized_weight

RUNS = TensorScheme(dtype("int8"), False, PerGroup(256))


def scheme(name, symmetric=True, **nested):
    return TensorScheme(dtype(name), symmetric, PerGroup(32), **nested)


def op(algorithm, weight):
    return OpScheme(weight, mode="weight_only", method=Method(algorithm))


def rounded(values, size=256):
    """Numbers to the 256 levels between zero and the largest of each run, in float64."""
    out = []
    for run in values.double().reshape(-1).split(size):
        low, high = min(float(run.min()), 0.0), max(float(run.max()), 0.0)
        step = (high - low) / 255
        zero = round(-128 - low / step)
        codes = (run / step).round() + zero
        assert codes.min() >= -128
        assert codes.max() <= 127
        out.append((codes - zero) * step)
    return torch.cat(out).reshape(values.shape)


@pytest.mark.parametrize("name", ["int4", "nf4"])
def test_scales_are_quantized_when_the_layer_is_finished(name):
    torch.manual_seed(0)
    weight = torch.randn(64, 512)
    plain = quantized_weight(op("rtn", scheme(name)), weight, None)
    job = op("rtn", scheme(name, scales=RUNS))
    result = quantized_weight(job, weight, None)
    assert torch.equal(result.array.scale, plain.array.scale), "layers that are stacked are split first"
    array = finished(job, result).array
    assert isinstance(array.scale, QuantizedArray)
    assert array.scheme == job.weight
    assert torch.equal(array.codes, plain.array.codes)
    torch.testing.assert_close(array.qparams.scale.double(), rounded(plain.array.scale), rtol=1e-6, atol=0)


def test_float_zero_points_too():
    torch.manual_seed(0)
    weight, how = torch.randn(64, 512), {"scales": RUNS, "zeros": RUNS}
    plain = quantized_weight(op("hqq", scheme("uint4", False)), weight, None).array
    job = op("hqq", scheme("uint4", False, **how))
    array = finished(job, quantized_weight(job, weight, None)).array
    assert isinstance(array, FloatZeroArray)
    for found, given in ((array.scale, plain.scale), (array.zero, plain.zero)):
        torch.testing.assert_close(
            found.dequantize().reshape(given.shape).double(), rounded(given), rtol=1e-6, atol=1e-6
        )


def test_a_scheme_without_any_for_them_leaves_floats():
    job = op("hqq", scheme("uint4", False))
    result = quantized_weight(job, torch.randn(8, 64), None)
    assert finished(job, result).array is result.array
