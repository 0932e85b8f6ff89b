"""What a checkpoint holds of a layer, and what the layer holds in memory."""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from neural_compressor.algorithms import LayerResult, Rotation, double_quant, hqq, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.errors import FormatError
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerGroup, QuantizedArray, TensorScheme
from neural_compressor.schemes.ranges import scale_shape
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.kernels import ort_matmul

SHAPE = (48, 96)
G32 = PerGroup(32)
BYTES = TensorScheme(dtype("int8"), False, PerGroup(64))
SIX = TensorScheme(dtype("int6"), True, PerGroup(8))


def array_of(name, symmetric=True, granularity=G32, make=rtn):
    return make(torch.randn(SHAPE), TensorScheme(dtype(name), symmetric, granularity))


RESULTS = {
    "int4": lambda: LayerResult(array_of("int4")),
    "uint4 asym": lambda: LayerResult(array_of("uint4", False)),
    "int3 channel": lambda: LayerResult(array_of("int3", granularity=PER_CHANNEL)),
    "uint2 tensor": lambda: LayerResult(array_of("uint2", False, PER_TENSOR)),
    "nf4": lambda: LayerResult(array_of("nf4")),
    "mxfp4": lambda: LayerResult(array_of("mxfp4")),
    "nvfp4": lambda: LayerResult(array_of("nvfp4")),
    "fp8": lambda: LayerResult(array_of("fp8_e4m3", granularity=PER_CHANNEL)),
    "hqq": lambda: LayerResult(array_of("uint4", False, make=hqq)),
    "order": lambda: LayerResult(array_of("int4"), order=torch.randperm(96)),
    "scale": lambda: LayerResult(array_of("int4"), input_scale=torch.rand(96) + 0.5),
    "rotation": lambda: LayerResult(array_of("int4"), rotation=Rotation(96, seed=3)),
    "int4 double": lambda: LayerResult(double_quant(array_of("int4"), BYTES)),
    "uint4 asym double": lambda: LayerResult(double_quant(array_of("uint4", False), SIX)),
    "int8 channel double": lambda: LayerResult(double_quant(array_of("int8", granularity=PER_CHANNEL), BYTES)),
    "nf4 double": lambda: LayerResult(double_quant(array_of("nf4"), TensorScheme(dtype("fp8_e4m3"), True, G32))),
    "hqq zeros": lambda: LayerResult(double_quant(array_of("uint4", False, make=hqq), None, BYTES)),
    "hqq double": lambda: LayerResult(double_quant(array_of("uint3", False, make=hqq), SIX, BYTES)),
    "half scales": lambda: LayerResult(replace(found := array_of("int4"), scale=found.scale.half())),
}


def made(result, bias=True):
    return WeightOnlyLinear.from_layer(nn.Linear(SHAPE[1], SHAPE[0], bias=bias), result)


def nbytes(value):
    """Bytes of the tensors in ``value``, each storage once."""
    found, pending = {}, [value]
    while pending:
        item = pending.pop()
        if isinstance(item, torch.Tensor):
            found[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, nn.Module):
            pending += [*item.state_dict().values(), *vars(item).values()]
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, (list, tuple)):
            pending += item
        elif is_dataclass(item):
            pending += [getattr(item, f.name) for f in fields(item)]
    return sum(found.values())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_round_trip_through_safetensors(tmp_path, result, bias):
    layer = made(result(), bias)
    state = layer.state_dict()
    save_file(state, tmp_path / "layer.safetensors")
    read = load_file(tmp_path / "layer.safetensors")
    with torch.device("meta"):
        skeleton = nn.Linear(SHAPE[1], SHAPE[0], bias=bias)
    again = WeightOnlyLinear.from_state(skeleton, layer.scheme, read)
    assert {name: t.dtype for name, t in again.state_dict().items()} == {name: t.dtype for name, t in state.items()}
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())
    assert again.kernel == layer.kernel
    assert torch.equal(again.dequantized_weight(), layer.dequantized_weight())
    for rows in (1, 7):
        x = torch.randn(rows, SHAPE[1])
        assert torch.equal(again(x), layer(x))


def test_what_is_stored():
    state = made(LayerResult(array_of("uint3", False), torch.randperm(96), torch.ones(96), Rotation(96))).state_dict()
    found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
    assert found == {
        "weight_packed": ((48, 36), torch.uint8),
        "weight_scale": ((48, 3), torch.float32),
        "weight_zero_point": ((48, 3), torch.uint8),
        "bias": ((48,), torch.float32),
        "input_order": ((96,), torch.int32),
        "input_scale": ((96,), torch.float32),
        "input_rotation": ((2,), torch.int64),
    }


def test_quantized_scales_are_stored_as_their_codes():
    array = double_quant(array_of("uint4", False, make=hqq), SIX, BYTES)
    state = made(LayerResult(array), bias=False).state_dict()
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()} == {
        "weight_packed": ((48, 48), torch.uint8),
        "weight_scale_packed": ((1, 108), torch.uint8),  # 144 scales of 6 bits
        "weight_scale_scale": ((1, 18), torch.float32),
        "weight_zero_packed": ((1, 144), torch.uint8),
        "weight_zero_scale": ((1, 3), torch.float32),
        "weight_zero_zero_point": ((1, 3), torch.int8),
    }
    assert nbytes(state) == array.nbytes_packed


DOUBLE = [name for name in RESULTS if "double" in name or name == "hqq zeros"]


@pytest.mark.parametrize("name", DOUBLE)
def test_quantized_scales_compute_as_the_floats_they_stand_for(name):
    """The same kernel gives the same bits, and what it holds is no larger."""
    result = RESULTS[name]()
    array, scales = result.array, scale_shape(SHAPE, result.array.scheme.granularity)
    parts = {"scale": array.scale, "zero": getattr(array, "zero", None)}
    floats = {n: q.dequantize().reshape(scales) for n, q in parts.items() if isinstance(q, QuantizedArray)}
    plain = replace(array, **floats, scheme=replace(array.scheme, scales=None, zeros=None))
    assert torch.equal(plain.dequantize(), array.dequantize())
    compact, wide = made(result, bias=False), made(LayerResult(plain), bias=False)
    assert compact.kernel == wide.kernel
    assert torch.equal(compact.stored_weight().dequantize(), plain.dequantize())
    for exact in (False, True):
        compact.exact = wide.exact = exact
        for rows in (1, 700):
            x = torch.randn(rows, SHAPE[1])
            assert torch.equal(compact(x), wide(x))


@pytest.mark.parametrize("name", DOUBLE)
def test_layer_result_of_quantized_scales_makes_the_same_layer(name):
    layer = made(RESULTS[name](), bias=False)
    again = made(layer.layer_result(), bias=False).state_dict()
    assert set(again) == set(layer.state_dict())
    assert all(torch.equal(tensor, again[part]) for part, tensor in layer.state_dict().items())


def test_quantized_scales_move_with_the_layer():
    layer = made(RESULTS["hqq double"]())
    layer.half()
    assert {name: t.dtype for name, t in layer.state_dict().items() if name.endswith("scale_scale")} == {
        "weight_scale_scale": torch.float32
    }
    assert layer.to("meta").simulated


def test_running_changes_no_state():
    layer = made(LayerResult(array_of("int4")))
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer(torch.randn(1, 96))
    layer(torch.randn(500, 96))
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    assert set(layer.state_dict()) == set(before)


def test_load_state_dict_is_seen_by_the_next_call():
    layer, other, x = made(LayerResult(array_of("int4"))), made(LayerResult(array_of("int4"))), torch.randn(1, 96)
    layer(x)
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer(x), other(x))


@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_int4_is_small_on_disk_and_in_memory(name, size, monkeypatch):
    monkeypatch.setattr(ort_matmul, "_is_installed", lambda: False)  # what a session holds is not seen from here
    module = nn.Linear(1024, 512)
    scheme = TensorScheme(dtype(name), name == "int4", PerGroup(size))
    layer = WeightOnlyLinear.from_layer(module, LayerResult(rtn(module.weight.detach(), scheme)))
    full = 4 * 1024 * 512
    assert nbytes(layer.state_dict()) < 0.20 * full
    layer(torch.randn(1, 1024))
    assert 0.25 * full < nbytes(layer) < 0.36 * full
    layer(torch.randn(300, 1024))
    assert nbytes(layer) < 0.36 * full


@pytest.mark.parametrize("name", ["int4", "nf4"])
def test_quantized_scales_are_smaller_on_disk_and_in_memory(name):
    """4 bits with a float scale to 32 weights are 5 bits a weight; with scales of 8 bits in runs of 256 they are 4.26."""
    weight, inputs = torch.randn(512, 1024), torch.randn(1, 1024)
    array = rtn(weight, TensorScheme(dtype(name), granularity=G32))
    runs = TensorScheme(dtype("int8"), False, PerGroup(256))
    held = []
    for each in (array, double_quant(array, runs)):
        layer = WeightOnlyLinear.from_layer(nn.Linear(1024, 512, bias=False), LayerResult(each))
        before = nbytes(layer)
        layer(inputs)
        held.append((before, nbytes(layer)))
    scales = 512 * 1024 // 32
    codes = 512 * 1024 // 2
    assert [before for before, _ in held] == [codes + 4 * scales, codes + scales + scales // 256 * 5]
    assert held[1][0] * 8 / weight.numel() == pytest.approx(4.255, abs=0.001)
    assert held[1][1] - held[0][1] == held[1][0] - held[0][0], "the kernel's own layout is the same"


@pytest.mark.parametrize("name", ["nf4", "mxfp8"])
def test_dequantizing_keeps_nothing(name):
    layer = made(LayerResult(array_of(name)))
    before = nbytes(layer)
    layer(torch.randn(2, 96))
    assert nbytes(layer) == before


def test_int8_is_multiplied_where_it_is_stored(monkeypatch):
    monkeypatch.setattr(ort_matmul, "_is_installed", lambda: False)
    module = nn.Linear(1024, 1024, bias=False)
    scheme = TensorScheme(dtype("int8"), granularity=PER_CHANNEL)
    layer = WeightOnlyLinear.from_layer(module, LayerResult(rtn(module.weight.detach(), scheme)))
    layer(torch.randn(1, 1024))
    assert layer.kernel_for(1) == "torch int8pack"
    assert nbytes(layer) < 1.01 * 1024 * 1024 + 4 * 1024 * 3


def _without(name):
    return lambda state: state.pop(name)


def _as(name, change):
    return lambda state: state.update({name: change(state[name])})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without("weight_scale"), "missing .'weight_scale'."),
        (_without("weight_zero_point"), "'weight_zero_point' is none, and .* torch.uint8 is needed"),
        (lambda state: state.update(extra=torch.ones(1)), "not known .'extra'."),
        (_as("weight_packed", lambda t: t[:, :-1]), r"'weight_packed' is \(48, 47\)"),
        (_as("weight_packed", torch.Tensor.int), "'weight_packed' is .* torch.int32, and .* torch.uint8 is needed"),
        (_as("weight_scale", lambda t: t[:, :2]), r"'weight_scale' is \(48, 2\)"),
        (_as("weight_scale", torch.Tensor.double), "'weight_scale' is .* torch.float64"),
        (_as("weight_zero_point", torch.Tensor.float), "'weight_zero_point' is .* torch.float32"),
        (lambda state: state.update(weight_zero=torch.ones(48, 3)), "'weight_zero_point' is .*, and none is needed"),
        (lambda state: state.update(weight_tensor_scale=torch.ones(())), "'weight_tensor_scale' is .* none is needed"),
        (_as("bias", lambda t: t[:5]), "'bias' has shape"),
        (_as("input_order", lambda t: t[:5]), "'input_order' has shape"),
        (_as("input_order", torch.zeros_like), "'input_order' is not an order of 96 inputs"),
        (_as("input_order", lambda t: t - 1), "'input_order' is not an order of 96 inputs"),
        (_as("input_scale", lambda t: t[:5]), "'input_scale' has shape"),
        (
            _as("input_rotation", lambda t: t * 5),
            r"'input_rotation' is \[160, 15\]: a Hadamard block is a power of two",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused(damage, message):
    result = LayerResult(array_of("uint4", False), torch.randperm(96), torch.ones(96), Rotation(96, seed=3))
    layer = made(result)
    state = dict(layer.state_dict())
    damage(state)
    with pytest.raises(FormatError, match=message):
        WeightOnlyLinear.from_state(nn.Linear(SHAPE[1], SHAPE[0]), layer.scheme, state)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without("weight_scale_packed"), "missing .'weight_scale_packed'."),
        (_without("weight_zero_scale"), "missing .'weight_zero_scale'."),
        (_without("weight_zero_zero_point"), "'weight_zero': a int8 tensor of shape .* is stored as"),
        (_as("weight_scale_packed", lambda t: t[:, :-1]), "'weight_scale': a int6 tensor of shape .* is stored as"),
        (_as("weight_scale_scale", lambda t: t.half()), "'weight_scale': .*'float16'"),
        (lambda state: state.update(weight_scale=torch.ones(48, 3)), "not known .'weight_scale'."),
        (lambda state: state.update(weight_zero_point=torch.ones(48, 3, dtype=torch.uint8)), "none is needed"),
    ],
)
def test_codes_of_scales_that_do_not_fit_are_refused(damage, message):
    layer = made(LayerResult(double_quant(array_of("uint4", False, make=hqq), SIX, BYTES)))
    state = dict(layer.state_dict())
    damage(state)
    with pytest.raises(FormatError, match=message):
        WeightOnlyLinear.from_state(nn.Linear(SHAPE[1], SHAPE[0]), layer.scheme, state)
