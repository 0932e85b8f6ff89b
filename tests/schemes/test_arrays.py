"""Arrays of NumPy and torch through one set of functions."""

import subprocess
import sys

import numpy as np
import pytest

from neural_compressor.schemes.arrays import array_namespace, in_order


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="NumPy has the array API from 2.1 on")
def test_numpy_serves_itself():
    for arrays in ([np.zeros(3)], [np.zeros(3), np.float32(1)]):
        assert array_namespace(*arrays) is np


def test_torch_has_its_wrapper():
    torch = pytest.importorskip("torch")
    assert array_namespace(torch.zeros(3)).__name__ == "array_api_compat.torch"
    with pytest.raises(TypeError):
        array_namespace(torch.zeros(3), np.zeros(3))
    with pytest.raises(TypeError):
        array_namespace(1.0)


def test_rounding_a_weight_imports_no_parts_of_numpy_that_nothing_needs():
    code = """
import sys, numpy as np
from neural_compressor.algorithms import ALGORITHMS
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PerGroup, TensorScheme
ALGORITHMS["rtn"](np.ones((4, 32), np.float32), TensorScheme(dtype("int4"), granularity=PerGroup(32)))
print("numpy.f2py" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_in_order_keeps_values_and_adds_up_the_same():
    values = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    turned = in_order(np.asfortranarray(values))
    np.testing.assert_array_equal(turned, values)
    assert np.sum(turned, axis=-1).tobytes() == np.sum(values, axis=-1).tobytes()
