"""Every kernel against a float64 product with weights dequantized by the definition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from neural_compressor.algorithms import FloatZeroArray, LayerResult, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.kernel_timings import KernelTimings
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerGroup, TensorScheme
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.kernels import table, weight_only
from neural_compressor.torch.modules.kernels.dequantized_product import dequantized_product, product_dtype
from neural_compressor.torch.modules.kernels.race import Race, racing
from neural_compressor.torch.modules.kernels.torch_matmul import pack_int4
from neural_compressor.torch.modules.kernels.weight_only import (
    WEIGHT_ONLY_KERNELS,
    Choice,
    Cost,
    WeightOnlyKernel,
    choose,
)

THREE_DIGITS = 0.01
CPU = [kernel for kernel in WEIGHT_ONLY_KERNELS if "cuda" not in kernel.name]
SCHEMES = {
    "int1 g32": TensorScheme(dtype("int1"), granularity=PerGroup(32)),
    "int2 g32": TensorScheme(dtype("int2"), granularity=PerGroup(32)),
    "uint2 asym g64": TensorScheme(dtype("uint2"), False, PerGroup(64)),
    "int3 g96": TensorScheme(dtype("int3"), granularity=PerGroup(96)),
    "uint3 asym g32": TensorScheme(dtype("uint3"), False, PerGroup(32)),
    "int4 g32": TensorScheme(dtype("int4"), granularity=PerGroup(32)),
    "int4 asym g64": TensorScheme(dtype("int4"), False, PerGroup(64)),
    "int4 channel": TensorScheme(dtype("int4"), granularity=PER_CHANNEL),
    "int4 tensor": TensorScheme(dtype("int4"), granularity=PER_TENSOR),
    "uint4 asym g128": TensorScheme(dtype("uint4"), False, PerGroup(128)),
    "uint4 sym g32": TensorScheme(dtype("uint4"), True, PerGroup(32)),
    "int5 g32": TensorScheme(dtype("int5"), granularity=PerGroup(32)),
    "uint6 asym g32": TensorScheme(dtype("uint6"), False, PerGroup(32)),
    "int7 channel": TensorScheme(dtype("int7"), granularity=PER_CHANNEL),
    "int8 g64": TensorScheme(dtype("int8"), granularity=PerGroup(64)),
    "uint8 asym g32": TensorScheme(dtype("uint8"), False, PerGroup(32)),
    "int8 channel": TensorScheme(dtype("int8"), granularity=PER_CHANNEL),
    "int8 asym channel": TensorScheme(dtype("int8"), False, PER_CHANNEL),
    "uint8 asym channel": TensorScheme(dtype("uint8"), False, PER_CHANNEL),
    "int8 tensor": TensorScheme(dtype("int8"), granularity=PER_TENSOR),
    "fp4 g32": TensorScheme(dtype("fp4_e2m1"), granularity=PerGroup(32)),
    "fp6_e2m3 channel": TensorScheme(dtype("fp6_e2m3"), granularity=PER_CHANNEL),
    "mxfp4": TensorScheme(dtype("mxfp4")),
    "mxint8": TensorScheme(dtype("mxint8")),
}
ONLY_DEQUANTIZED = {
    "nf4 g32": TensorScheme(dtype("nf4"), granularity=PerGroup(32)),
    "fp4_bnb g64": TensorScheme(dtype("fp4_e2m1_bnb"), granularity=PerGroup(64)),
    "fp8_e4m3 channel": TensorScheme(dtype("fp8_e4m3"), granularity=PER_CHANNEL),
    "fp8_e5m2 tensor": TensorScheme(dtype("fp8_e5m2")),
    "mxfp8": TensorScheme(dtype("mxfp8")),
    "mxfp6": TensorScheme(dtype("mxfp6")),
    "int12 g32": TensorScheme(dtype("int12"), granularity=PerGroup(32)),
    "int4 g10": TensorScheme(dtype("int4"), granularity=PerGroup(10)),
}


def layer_of(array, bias=False):
    outputs, inputs = array.shape
    return WeightOnlyLinear.from_layer(nn.Linear(inputs, outputs, bias=bias), LayerResult(array))


def values_of(array):
    """The weight by the definition, in float64, a column at a time."""
    numbers = array.codes if array.scheme.dtype.name.startswith(("int", "uint")) else None
    if numbers is None:
        return array.dequantize().double()  # whose own tests have references of their own
    rows, columns = array.shape
    scale = array.scale.double().reshape(1 if array.scale.ndim == 0 else rows, -1)
    zero = array.zero if isinstance(array, FloatZeroArray) else array.zero_point
    size = array.scheme.granularity.size if isinstance(array.scheme.granularity, PerGroup) else columns
    out = torch.empty(rows, columns, dtype=torch.float64)
    for column in range(columns):
        group = min(column // size, scale.shape[1] - 1)
        offset = 0 if zero is None else zero.double().reshape(scale.shape)[:, group]
        out[:, column] = (numbers[:, column].double() - offset) * scale[:, group]
    return out


def assert_product(y, x, weight, tolerance, kernel=""):
    """Errors are relative to the sum of the magnitudes that are added up; of inputs rounded to 8 bits to the largest.

    Int4pack adds an offset to each weight that is as large as the largest of its group, and rounded to bfloat16 as that is.
    """
    inputs, weights = x.double().abs(), weight.abs()
    if "onnxruntime" in kernel:
        inputs, tolerance = inputs.amax(1, keepdim=True).expand_as(inputs), tolerance / 2
    if "int4pack" in kernel:
        weights = weights.amax(1, keepdim=True).expand_as(weights)
    expected, bound = x.double() @ weight.T, inputs @ weights.T + 1e-3
    error = float(((y.double() - expected).abs() / bound).max())
    assert y.shape == expected.shape
    assert error < tolerance, f"{error:.2g} of the magnitudes that are summed"


def runs(kernel, array):
    """The kernel on its own; None where it does not take the weight."""
    stored = layer_of(array).stored_weight()
    if not kernel.can_run(stored):
        return None
    packed = kernel.pack(stored)
    return lambda x: kernel.run(packed, x)


@pytest.mark.parametrize("shape", [(64, 256), (20, 576), (33, 100), (7, 45)], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_each_kernel_is_the_product(scheme, shape):
    array, found = rtn(torch.randn(shape) * 0.1 + 0.03, scheme), 0
    for kernel in CPU:
        product = runs(kernel, array)
        if product is None:
            continue
        found += 1
        for rows in (1, 5):
            x = torch.randn(rows, shape[1])
            assert_product(product(x), x, values_of(array), THREE_DIGITS, kernel.name)
    assert found, "no kernel takes the weight"


@pytest.mark.parametrize("shape", [(64, 256), (7, 45)], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_each_kernel_takes_inputs_along_the_last_axis(scheme, shape):
    array, x = rtn(torch.randn(shape) * 0.1, scheme), torch.randn(2, 3, shape[1])
    for product in filter(None, (runs(kernel, array) for kernel in CPU)):
        assert torch.equal(product(x), product(x.reshape(6, -1)).reshape(2, 3, -1))
        across = x.transpose(0, 1)  # whose rows do not follow one another in memory
        assert torch.equal(product(across), product(across.reshape(6, -1)).reshape(3, 2, -1))


@pytest.mark.parametrize("scheme", {**SCHEMES, **ONLY_DEQUANTIZED}.values(), ids={**SCHEMES, **ONLY_DEQUANTIZED})
def test_the_dequantized_product_takes_everything(scheme):
    array = rtn(torch.randn(70, 64) * 0.1, scheme)
    stored, x = layer_of(array).stored_weight(), torch.randn(3, 64)
    assert_product(dequantized_product(x, stored, torch.float32), x, values_of(array), 1e-6)
    assert_product(dequantized_product(x, stored, torch.bfloat16), x, values_of(array), THREE_DIGITS)
    assert torch.equal(stored.dequantize(), array.dequantize())


@pytest.mark.parametrize("scheme", ONLY_DEQUANTIZED.values(), ids=ONLY_DEQUANTIZED)
def test_what_no_kernel_takes_is_called_simulated(scheme):
    layer = layer_of(rtn(torch.randn(32, 60), scheme))
    assert (layer.kernel, layer.simulated, layer.kernel_for(1)) == ("simulated", True, "dequantize")


@pytest.mark.parametrize(("bits", "size"), [(2, 32), (4, 64), (4, 256), (8, 64), (8, 256)])
def test_float_zero_points(bits, size):
    scheme = TensorScheme(dtype(f"uint{bits}"), False, PerGroup(size))
    codes = torch.randint(0, 1 << bits, (32, 256), dtype=torch.uint8)
    scale, zero = torch.rand(32, 256 // size) + 0.1, torch.rand(32, 256 // size) * ((1 << bits) - 1)
    array, x = FloatZeroArray(codes, scale, zero, scheme, (32, 256)), torch.randn(4, 256)
    layer = layer_of(array)
    assert not layer.simulated
    assert_product(layer._low_bit.run(layer.prepacked(), x), x, values_of(array), THREE_DIGITS)
    assert_product(dequantized_product(x, layer.stored_weight(), torch.float32), x, values_of(array), 1e-6)


def test_a_column_of_zeros_is_exact():
    """Zero-points that codes can take up leave no rounded offset behind."""
    weight = torch.randn(32, 64)
    weight[:, ::2] = 0
    array, x = rtn(weight, TensorScheme(dtype("uint3"), False, PerGroup(32))), torch.zeros(1, 64)
    x[:, ::2] = 1000.0
    layer = layer_of(array)
    assert layer.kernel_for(1) == "torch int4pack"
    with torch.no_grad():
        assert float(layer(x).abs().max()) == 0


@given(
    bits=st.integers(1, 8),
    signed=st.booleans(),
    symmetric=st.booleans(),
    size=st.sampled_from([16, 32, 48, 64, 320, -1]),
    rows=st.integers(1, 70),
    columns=st.integers(1, 130),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_any_shape_runs_right_on_whatever_is_chosen(bits, signed, symmetric, size, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    granularity = PER_CHANNEL if size == -1 else PerGroup(size)
    scheme = TensorScheme(dtype(f"{'' if signed else 'u'}int{bits}"), symmetric, granularity)
    array = rtn(torch.randn(rows, columns, generator=generator) + 0.1, scheme)
    layer, x = layer_of(array), torch.randn(2, columns, generator=generator)
    with torch.no_grad():
        assert_product(layer(x), x, values_of(array), THREE_DIGITS, layer.kernel_for(2))


def test_the_weight_is_never_there_in_float(monkeypatch):
    """Unpacking goes by runs of rows, also while a kernel's layout is made."""
    largest = 0
    original = weight_only.StoredWeight.numbers

    def watched(self):
        nonlocal largest
        largest = max(largest, self.shape[0])
        return original(self)

    monkeypatch.setattr(weight_only.StoredWeight, "numbers", watched)
    layer = WeightOnlyLinear.from_layer(
        nn.Linear(2048, 1024), LayerResult(rtn(torch.randn(1024, 2048), SCHEMES["int4 g32"]))
    )
    with torch.no_grad():
        layer(torch.randn(1, 2048))
        layer(torch.randn(400, 2048))
    assert 0 < largest <= 512


@pytest.mark.parametrize(("rows", "columns"), [(1, 7), (64, 100), (200, 70), (129, 4096)])
def test_runs_of_rows_are_whole_tiles_and_make_the_matrix(rows, columns):
    stored = layer_of(rtn(torch.randn(rows, columns), SCHEMES["uint4 asym g128"])).stored_weight()
    parts = list(stored.parts(1000))
    assert all(part.shape[0] % 64 == 0 for _, part in parts[:-1])
    assert [where.start for where, _ in parts] == [0, *(where.stop for where, _ in parts[:-1])]
    assert torch.equal(torch.cat([part.dequantize() for _, part in parts]), stored.dequantize())


@pytest.mark.parametrize(("inputs", "group"), [(1024, 256), (576, 64), (640, 128), (100, 128)])
def test_one_scale_a_row_is_repeated_as_seldom_as_can_be(inputs, group):
    stored = layer_of(rtn(torch.randn(16, inputs), SCHEMES["int4 channel"])).stored_weight()
    assert pack_int4(stored).group == group


# -- the choice -------------------------------------------------------------------------------------------------------


def stored(rows, columns, scheme="int4 g32"):
    return layer_of(rtn(torch.randn(rows, columns), SCHEMES[scheme])).stored_weight()


def named(name, cost, runs=True):
    costs = dict.fromkeys(("avx2", "avx512"), cost)
    return WeightOnlyKernel(name, lambda weight: runs, lambda weight: weight, lambda packed, x: x, costs)


def test_the_choice_is_the_cheapest_for_one_row(monkeypatch):
    kernels = [named("heavy", Cost(1, 50, 1)), named("light", Cost(10, 5, 1)), named("absent", Cost(0, 0, 0), False)]
    monkeypatch.setattr(table, "KERNELS", kernels)
    assert choose(stored(16, 32)).kernel.name == "heavy"
    assert choose(stored(1024, 512)).kernel.name == "light"


def test_a_small_gain_does_not_displace_the_preferred_kernel(monkeypatch):
    kernels = [named("first", Cost(110, 0, 0)), named("second", Cost(100, 0, 0))]
    monkeypatch.setattr(table, "KERNELS", kernels)
    assert choose(stored(16, 32)).kernel.name == "first"


def test_nothing_fits():
    assert choose(layer_of(rtn(torch.randn(8, 64), ONLY_DEQUANTIZED["nf4 g32"])).stored_weight()) == Choice(None, 0)


@pytest.mark.parametrize(("row", "expected"), [(1, 512), (26, 78), (1000, 1)])
def test_a_kernel_is_used_up_to_where_unpacking_is_about_as_fast(monkeypatch, row, expected):
    """990 + 16 rows against 1.1 * 26 rows: 78.6."""
    weight = stored(1024, 512)
    monkeypatch.setattr(table, "KERNELS", [named("only", Cost(0, 0, row))])
    monkeypatch.setattr(weight_only, "dequantize_cost", lambda weight: Cost(0, 990, 16))
    assert choose(weight).most_rows == expected


# -- the race ---------------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only while a kernel says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def raced(monkeypatch, timings, **seconds):
    """Kernels that take so many seconds a call and row, and how often each was called and packed."""
    clock, calls = Clock(), []

    def kernel(name, taken):
        def pack(weight):
            calls.append(f"pack {name}")
            return weight.shape

        def run(packed, x):
            calls.append(name)
            clock.now += taken * len(x)
            return torch.zeros(len(x), packed[0])

        return WeightOnlyKernel(name, lambda weight: True, pack, run, {})

    def dequantized(x, weight, dtype):
        clock.now += 1e-3
        return torch.zeros(len(x), weight.shape[0])

    monkeypatch.setattr(table, "KERNELS", [kernel(*item) for item in seconds.items()])
    monkeypatch.setattr(weight_only, "dequantized_product", dequantized)
    return Race(timings, clock), calls


def test_the_fastest_on_this_machine_is_taken_and_remembered(monkeypatch, tmp_path):
    path, weight = tmp_path / "timings.json", stored(512, 256)
    race, calls = raced(monkeypatch, KernelTimings(path), slow=1e-4, fast=2e-5)
    with racing(race):
        choice = choose(weight)
        assert choice.kernel.name == "fast"
        assert choice.most_rows == 45  # a millisecond against 1.1 * 20 microseconds a row
        assert calls.count("pack slow") == calls.count("pack fast") == 1
        calls.clear()
        assert choose(weight) == choice
    assert not calls
    race, calls = raced(monkeypatch, KernelTimings(path), slow=2e-5, fast=1e-4)  # another process, on a busy machine
    with racing(race):
        assert choose(weight).kernel.name == "fast"
    assert not calls


def test_other_shapes_types_and_threads_are_other_races(monkeypatch):
    weights = [stored(512, 256), stored(256, 512), stored(512, 256, "uint4 sym g32"), stored(512, 256, "int8 channel")]
    race, calls = raced(monkeypatch, KernelTimings(None), one=1e-5)
    with racing(race):
        for weight in weights:
            calls.clear()
            choose(weight)
            assert calls
        torch.set_num_threads(2)
        calls.clear()
        choose(weights[0])
        assert calls


def test_small_weights_do_not_race(monkeypatch):
    weight = stored(64, 64)
    race, calls = raced(monkeypatch, KernelTimings(None), one=1e-5)
    monkeypatch.setattr(weight_only, "_by_table", lambda weight, kernels, rows: [1.0 for _ in kernels])
    with racing(race):
        assert choose(weight).kernel.name == "one"
    assert not calls


def test_a_part_of_a_large_weight_races():
    sizes = []

    def pack(weight):
        sizes.append(weight.shape)
        return weight.shape

    kernel = WeightOnlyKernel("one", lambda w: True, pack, lambda packed, x: torch.zeros(len(x), packed[0]), {})
    racer = weight_only._Racer(Race(KernelTimings(None)), stored(4096, 1024))
    assert racer.microseconds([kernel], 1)[0] > 0
    assert sizes == [(1024, 1024)]


def test_a_layer_changes_its_kernel_with_the_rows():
    array = rtn(torch.randn(64, 256), SCHEMES["int4 g32"])
    layer = layer_of(array)
    limit, ran = layer._most_rows, []
    real = layer._low_bit
    layer._low_bit = WeightOnlyKernel(
        real.name, real.can_run, real.pack, lambda packed, x: ran.append(len(x)) or real.run(packed, x), real.costs
    )
    with torch.no_grad():
        for rows in (1, limit, limit + 1):
            x = torch.randn(rows, 256)
            assert_product(layer(x), x, values_of(array), THREE_DIGITS, layer.kernel_for(rows))
    assert ran == [1, limit]
    assert layer.kernel_for(limit) == real.name
    assert layer.kernel_for(limit + 1) == "dequantize"
    assert layer.kernel == f"{real.name} (to {limit} rows)"


def test_what_products_are_computed_in():
    assert product_dtype(torch.float16, "cpu", exact=True) == torch.float32
    assert product_dtype(torch.float64, "cpu", exact=False) == torch.float64
    assert product_dtype(torch.float16, "cuda", exact=False) == torch.float16
    assert product_dtype(torch.float32, "cuda", exact=False) == torch.bfloat16
    assert product_dtype(torch.float32, "mps", exact=False) == torch.float32


def test_codes_of_every_row_survive_packing_in_runs():
    """More rows than are unpacked at a time, checked output by output."""
    codes = torch.from_numpy(np.random.default_rng(0).integers(-8, 8, (1100, 1024)).astype(np.int8))
    scheme = TensorScheme(dtype("int4"), granularity=PER_CHANNEL)
    array = rtn(torch.randn(1100, 1024), scheme)
    array = type(array)(codes, torch.ones(1100), None, scheme, (1100, 1024))
    x = torch.zeros(2, 1024)
    x[0, 5] = x[1, 1023] = 1.0
    for kernel in CPU:
        product = runs(kernel, array)
        if product is not None:
            expected = codes[:, [5, 1023]].T.float()
            torch.testing.assert_close(product(x).float(), expected, rtol=0, atol=0.05, msg=kernel.name)
