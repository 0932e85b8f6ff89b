"""The layer: what it does to its input, what it replaces, what it tells of itself."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neural_compressor.algorithms import LayerResult, Rotation, gptq, hqq, rtn
from neural_compressor.algorithms.statistics import InputStatistics
from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError, QuantizationError
from neural_compressor.formats import LinearWeight
from neural_compressor.schemes import PER_CHANNEL, OpScheme, PerGroup, TensorScheme
from neural_compressor.torch.modules import WeightOnlyLinear

INT4 = TensorScheme(dtype("int4"), granularity=PerGroup(32))
UINT4 = TensorScheme(dtype("uint4"), False, PerGroup(32))
NF4 = TensorScheme(dtype("nf4"), granularity=PerGroup(32))
WEIGHTS = {
    **{name: {"dtype": name, "group_size": 32} for name in ("int4", "int8", "nf4")},
    **{name: {"dtype": name} for name in ("mxfp4", "nvfp4")},
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


class Conv1D(nn.Module):
    """GPT-2's linear layer as transformers has it."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.1)
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return x @ self.weight + self.bias


def made(weight, scheme=INT4, bias=None, **input_side):
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    if bias is not None:
        module.bias.data = bias
    return WeightOnlyLinear.from_layer(module, LayerResult(rtn(weight, scheme), **input_side))


def error(y, expected):
    y, expected = y.detach().double(), expected.detach().double()
    return float((y - expected).norm() / expected.norm())


# -- inputs and outputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("scheme", [INT4, NF4], ids=["kernel", "dequantize"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_output_has_the_type_of_the_input(dtype, scheme, exact):
    weight, bias = torch.randn(48, 64), torch.randn(48)
    layer = made(weight, scheme, bias)
    layer.exact = exact
    for rows in (1, 5000):
        x = torch.randn(rows, 64).to(dtype)
        y = layer(x)
        expected = F.linear(x.double(), rtn(weight, scheme).dequantize().double(), bias.double())
        assert y.dtype == dtype
        digits = {torch.float32: 1e-6, torch.float64: 1e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}
        assert error(y, expected) < (digits[dtype] if exact else 6e-3)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3, 5), (0,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("scheme", [INT4, NF4], ids=["kernel", "dequantize"])
def test_any_leading_dimensions(lead, scheme):
    layer, x = made(torch.randn(48, 64), scheme, torch.randn(48)), torch.randn(*lead, 64)
    y = layer(x)
    assert y.shape == (*lead, 48)
    torch.testing.assert_close(y.reshape(-1, 48), layer(x.reshape(-1, 64)))


def test_strided_inputs():
    layer, x = made(torch.randn(48, 64)), torch.randn(64, 6)
    torch.testing.assert_close(layer(x.T), layer(x.T.contiguous()))
    wide = torch.randn(6, 200)[:, ::2][:, :64]
    torch.testing.assert_close(layer(wide), layer(wide.contiguous()))


def test_a_wrong_width_is_refused():
    layer = made(torch.randn(48, 60))  # the kernel would fill 60 inputs up to 64
    with pytest.raises(QuantizationError, match=r"a layer of 60 inputs cannot take a tensor of \(2, 59\)"):
        layer(torch.randn(2, 59))


@pytest.mark.parametrize("scheme", [INT4, NF4], ids=["kernel", "dequantize"])
def test_gradients_reach_the_input(scheme):
    weight, x = torch.randn(48, 64), torch.randn(3, 64, requires_grad=True)
    layer = made(weight, scheme, input_scale=torch.rand(64) + 0.5, rotation=Rotation(64, seed=1))
    layer.exact = True
    g = torch.randn(3, 48)
    layer(x).backward(g)
    torch.testing.assert_close(x.grad, g @ layer.dequantized_weight(), rtol=1e-4, atol=1e-4)
    x.grad, layer.exact = None, False
    layer(x).backward(g)
    assert error(x.grad, g @ layer.dequantized_weight()) < 0.02
    with torch.no_grad():
        assert not layer(x).requires_grad


def test_a_call_in_inference_mode_leaves_nothing_that_gradients_stumble_over():
    side = {"input_scale": torch.rand(64) + 0.5, "rotation": Rotation(64, block=32, seed=99)}
    layer, x = made(torch.randn(48, 64), NF4, **side), torch.randn(3, 64)
    with torch.inference_mode():
        y = layer(x)
    x.requires_grad_()
    again = layer(x)
    again.sum().backward()
    assert torch.equal(again, y)


def test_a_default_device_does_not_matter():
    from neural_compressor.torch.modules.kernels import torch_matmul

    torch_matmul.int4_runs.cache_clear()
    torch_matmul.int8_runs.cache_clear()
    state = made(torch.randn(48, 64)).state_dict()
    with torch.device("meta"):
        layer = WeightOnlyLinear.from_state(
            nn.Linear(64, 48, bias=False), OpScheme(weight=INT4, mode="weight_only"), state
        )
    assert layer.kernel_for(1) == "torch int4pack"


def test_relu():
    scheme = OpScheme(weight=INT4, mode="weight_only")
    module, x = nn.Linear(64, 48), torch.randn(3, 64)
    y = WeightOnlyLinear.from_float(module, scheme, relu=True)(x)
    assert torch.equal(y, WeightOnlyLinear.from_float(module, scheme)(x).relu())
    assert float(y.min()) == 0


# -- what comes before the product ------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "side",
    [
        {"order": torch.randperm(96)},
        {"order": torch.arange(96).flip(0), "input_scale": torch.rand(96) + 0.5},
        {"rotation": Rotation(96)},
        {"rotation": Rotation(96, block=8, seed=5), "input_scale": torch.rand(96) + 0.5},
        {"rotation": Rotation(96, seed=5), "input_scale": torch.rand(96) + 0.5, "order": torch.randperm(96)},
    ],
    ids=["order", "order-scale", "rotation", "rotation-scale", "all"],
)
@pytest.mark.parametrize("scheme", [INT4, UINT4, NF4], ids=["int4", "uint4", "nf4"])
def test_the_input_is_scaled_rotated_and_ordered(scheme, side, exact):
    result = LayerResult(rtn(torch.randn(48, 96), scheme), **side)
    layer, x = WeightOnlyLinear.from_layer(nn.Linear(96, 48, bias=False), result), torch.randn(5, 96)
    layer.exact = exact
    inside = x.numpy()
    if "input_scale" in side:
        inside = inside / side["input_scale"].numpy()
    if "rotation" in side:
        inside = side["rotation"].apply(inside)
    if "order" in side:
        inside = inside[:, side["order"].numpy()]
    expected = torch.from_numpy(inside).double() @ result.array.dequantize().double().T
    assert error(layer(x), expected) < (1e-5 if exact else 6e-3)
    torch.testing.assert_close(layer.dequantized_weight(), result.dequantize(), rtol=1e-5, atol=1e-6)
    assert error(x @ layer.dequantized_weight().T, expected) < 1e-5


def test_act_order_is_what_g_idx_says():
    """GPTQ's order against the plain formula of checkpoints: each input has the scale of its group's number."""
    torch.manual_seed(3)
    x = torch.randn(256, 64) * torch.linspace(0.1, 3, 64)
    statistics = InputStatistics()
    statistics.update(x)
    result = gptq(torch.randn(32, 64), statistics.hessian, UINT4, act_order=True)
    assert result.order is not None
    layer = WeightOnlyLinear.from_layer(nn.Linear(64, 32, bias=False), result)
    stored = layer.linear_weight()
    weight = np.empty((32, 64))
    for column, group in enumerate(stored.g_idx.tolist()):
        code, zero = stored.codes[:, column].double(), stored.zero_point[:, group].double()
        weight[:, column] = ((code - zero) * stored.scale[:, group].double()).numpy()
    expected = x.double() @ torch.from_numpy(weight).T
    assert error(layer(x[:4]), expected[:4]) < 6e-3
    layer.exact = True
    assert error(layer(x), expected) < 1e-6


def test_hqq():
    weight, x = torch.randn(48, 128), torch.randn(4, 128)
    array = hqq(weight, TensorScheme(dtype("uint4"), False, PerGroup(64)))
    layer = WeightOnlyLinear.from_layer(nn.Linear(128, 48, bias=False), LayerResult(array))
    assert layer.kernel_for(1) == "torch int4pack"
    assert error(layer(x), x @ array.dequantize().T) < 6e-3
    assert torch.equal(layer.dequantized_weight(), array.dequantize())
    with pytest.raises(QuantizationError, match="float zero-points"):
        layer.weight_array()


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("granularity", [PerGroup(32), PER_CHANNEL], ids=["group", "channel"])
def test_all_bits_have_a_kernel(bits, symmetric, granularity):
    weight, x = torch.randn(64, 128), torch.randn(2, 128)
    scheme = TensorScheme(dtype(f"int{bits}" if symmetric else f"uint{bits}"), symmetric, granularity)
    layer = made(weight, scheme)
    assert not layer.simulated
    if bits > 1:
        assert error(layer(x), x @ rtn(weight, scheme).dequantize().T) < 8e-3


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("rows", [1, 300])
def test_scales_may_be_negative(bits, rows):
    weight, x = torch.randn(64, 128), torch.randn(rows, 128)
    scheme = TensorScheme(dtype(f"int{bits}"), granularity=PerGroup(32))
    array = rtn(weight, scheme, full_range=True)
    assert (array.scale < 0).any()
    layer = WeightOnlyLinear.from_layer(nn.Linear(128, 64, bias=False), LayerResult(array))
    assert error(layer(x), x @ array.dequantize().T) < 8e-3


# -- what it replaces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [INT4, UINT4, NF4], ids=["int4", "uint4", "nf4"])
def test_conv1d(scheme):
    module, x = Conv1D(48, 64), torch.randn(2, 3, 64)
    array = rtn(module.weight.detach().T.contiguous(), scheme)
    layer = WeightOnlyLinear.from_layer(module, LayerResult(array))
    assert (layer.op_type, layer.in_features, layer.out_features) == ("Conv1D", 64, 48)
    assert layer.dequantized_weight().shape == module.weight.shape
    assert torch.equal(layer.weight, array.dequantize().T)
    assert error(layer(x), x @ array.dequantize().T + module.bias) < 6e-3
    own = WeightOnlyLinear.from_float(module, OpScheme(weight=scheme, mode="weight_only"))
    assert torch.equal(own(x), layer(x))
    again = WeightOnlyLinear.from_state(module, layer.scheme, layer.state_dict())
    assert torch.equal(again(x), layer(x))


def test_from_float_rounds_to_nearest():
    module = nn.Linear(64, 48)
    layer = WeightOnlyLinear.from_float(module, OpScheme(weight=UINT4, mode="weight_only"))
    assert torch.equal(layer.dequantized_weight(), rtn(module.weight.detach(), UINT4).dequantize())
    assert torch.equal(layer.bias, module.bias)


def test_a_module_on_the_meta_device_gives_its_shape():
    with torch.device("meta"):
        module = nn.Linear(64, 48)
    result, bias = LayerResult(rtn(torch.randn(48, 64), INT4)), torch.randn(48)
    with pytest.raises(QuantizationError, match="bias of this Linear is on the meta device"):
        WeightOnlyLinear.from_layer(module, result)
    layer = WeightOnlyLinear.from_layer(module, result, bias=bias)
    bias += 1  # the layer has a copy
    expected = torch.ones(1, 64) @ result.array.dequantize().T + bias - 1
    assert error(layer(torch.ones(1, 64)), expected) < 6e-3


def test_arrays_of_numpy_are_taken():
    weight = np.random.default_rng(0).standard_normal((48, 64)).astype(np.float32)
    result = LayerResult(rtn(weight, UINT4), input_scale=np.full(64, 2, np.float32), order=np.arange(64)[::-1].copy())
    layer = WeightOnlyLinear.from_layer(nn.Linear(64, 48), result)
    torch.testing.assert_close(layer.dequantized_weight(), torch.from_numpy(result.dequantize()))


def test_what_does_not_fit_is_refused():
    result = LayerResult(rtn(torch.randn(48, 64), INT4))
    with pytest.raises(QuantizationError, match=r"shape \(48, 64\) does not fit a Linear of 48 inputs and 64 outputs"):
        WeightOnlyLinear.from_layer(nn.Linear(48, 64), result)
    with pytest.raises(QuantizationError, match="mode weight_only, not dynamic"):
        WeightOnlyLinear.from_float(nn.Linear(64, 48), OpScheme(weight=INT4, activation=INT4, mode="dynamic"))
    bad = nn.Linear(64, 48)
    bad.bias.data[3] = torch.nan
    with pytest.raises(QuantizationError, match="the bias holds 1 NaN"):
        WeightOnlyLinear.from_layer(bad, result)


# -- what it tells ----------------------------------------------------------------------------------------------------


def test_exact_is_a_choice():
    layer, x = made(torch.randn(48, 64)), torch.randn(2, 64)
    expected = x.double() @ layer.dequantized_weight().double().T
    assert layer.exact is False
    assert 1e-4 < error(layer(x), expected) < 6e-3
    layer.exact = True
    assert (layer.kernel, layer.simulated, layer.kernel_for(1)) == ("simulated", True, "dequantize")
    assert error(layer(x), expected) < 1e-6
    assert copy.deepcopy(layer).exact


def test_repr():
    text = repr(made(torch.randn(48, 64)))
    assert text.startswith(
        "WeightOnlyLinear(in_features=64, out_features=48, int4, mode=weight_only, kernel='torch int4pack"
    )


def test_layer_result_makes_the_layer_again():
    result = LayerResult(
        hqq(torch.randn(48, 64), UINT4), torch.randperm(64), torch.rand(64) + 0.5, Rotation(64, seed=7)
    )
    layer = WeightOnlyLinear.from_layer(nn.Linear(64, 48, bias=False), result)
    again = layer.layer_result()
    assert torch.equal(again.array.codes, result.array.codes)
    assert torch.equal(again.order, result.order)
    assert again.rotation == Rotation(64, 64, 7)
    torch.testing.assert_close(again.input_scale, result.input_scale)
    torch.testing.assert_close(again.dequantize(), result.dequantize())


def test_linear_weight_is_for_formats():
    array, order = rtn(torch.randn(48, 64), UINT4), torch.randperm(64)
    layer = WeightOnlyLinear.from_layer(nn.Linear(64, 48), LayerResult(array, order))
    found = layer.linear_weight()
    assert isinstance(found, LinearWeight)
    torch.testing.assert_close(found.dequantize(), layer.dequantized_weight())
    assert torch.equal(found.bias, layer.bias)
    turned = made(torch.randn(48, 64), rotation=Rotation(64), input_scale=torch.ones(64))
    with pytest.raises(
        FormatError, match="a scale of its inputs and a rotation of its inputs fits no checkpoint format"
    ):
        turned.linear_weight()


def test_formats_get_scales_of_32_bits():
    array = rtn(torch.randn(48, 64), INT4)
    layer = WeightOnlyLinear.from_layer(nn.Linear(64, 48), LayerResult(replace(array, scale=array.scale.bfloat16())))
    found = layer.linear_weight()
    assert found.scale.dtype == torch.float32
    assert torch.equal(found.dequantize(), layer.dequantized_weight())
    assert layer.layer_result().array.scale.dtype == torch.bfloat16


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_compute_the_same_and_leave_the_layout_behind(copied):
    layer, x = made(torch.randn(48, 64), bias=torch.randn(48), rotation=Rotation(64)), torch.randn(2, 64)
    y = layer(x)
    new = copied(layer)
    assert layer._prepacked != []
    assert new._prepacked == []
    assert torch.equal(new(x), y)


def test_casts_do_not_round_scales_and_moves_settle_anew():
    layer = made(torch.randn(48, 64), UINT4, torch.randn(48))
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer(torch.randn(1, 64))
    layer.to(torch.bfloat16).half()
    assert {name: tensor.dtype for name, tensor in layer.state_dict().items()} == {
        n: t.dtype for n, t in before.items()
    }
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    assert layer._prepacked == []
    assert layer(torch.randn(1, 64).half()).dtype == torch.float16
    assert layer.to("meta").simulated


# -- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int4", "int8", "mxfp4", "nvfp4", "nf4"])
def test_a_trace_computes_and_holds_no_results(name):
    layer = WeightOnlyLinear.from_float(nn.Linear(64, 32), OpScheme.from_dict({"weight": WEIGHTS[name]}))
    traced = torch.jit.trace(layer, torch.randn(3, 64), check_trace=False)
    x = torch.randn(5, 64)
    assert error(traced(x), F.linear(x, layer.dequantized_weight(), layer.bias)) < 1e-6


@pytest.mark.parametrize("name", ["int4", "int8", "mxfp4", "nvfp4", "nf4"])
def test_an_exported_layer_takes_any_number_of_rows(name):
    layer = WeightOnlyLinear.from_float(nn.Linear(64, 32), OpScheme.from_dict({"weight": WEIGHTS[name]}))
    rows = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(nn.Sequential(layer), (torch.randn(3, 64),), dynamic_shapes=rows).module()
    x = torch.randn(5, 64)
    assert error(exported(x), F.linear(x, layer.dequantized_weight(), layer.bias)) < 1e-6
