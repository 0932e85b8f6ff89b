"""Layers that read one input: one product for all of them, and the right outputs whatever they are called with."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn

from neural_compressor.algorithms import LayerResult, rtn
from neural_compressor.dtypes import dtype
from neural_compressor.schemes import PER_CHANNEL, PER_TENSOR, PerGroup, TensorScheme
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.modules.kernels import table
from neural_compressor.torch.modules.kernels.stored_weight import stacked
from neural_compressor.torch.modules.kernels.weight_only import WEIGHT_ONLY_KERNELS

INPUTS = 128
SCHEMES = {
    "int4 g32": TensorScheme(dtype("int4"), granularity=PerGroup(32)),
    "uint4 asym g64": TensorScheme(dtype("uint4"), False, PerGroup(64)),
    "int8 channel": TensorScheme(dtype("int8"), granularity=PER_CHANNEL),
    "int8 asym g64": TensorScheme(dtype("int8"), False, PerGroup(64)),
    "mxfp4": TensorScheme(dtype("mxfp4")),
}


def layer_of(outputs, scheme="int4 g32", bias=False, inputs=INPUTS, **result):
    scheme = SCHEMES.get(scheme, scheme)
    array = rtn(torch.randn(outputs, inputs) * 0.1, scheme)
    return WeightOnlyLinear.from_layer(nn.Linear(inputs, outputs, bias=bias), LayerResult(array, **result))


class Attention(nn.Module):
    """What three layers make of one input, and a fourth of their outputs."""

    def __init__(self, sizes=(64, 32, 32), bias=True, scheme="int4 g32"):
        super().__init__()
        self.parts = nn.ModuleList(layer_of(size, scheme, bias) for size in sizes)
        self.out = layer_of(INPUTS, scheme, bias, inputs=sum(sizes))

    def forward(self, x):
        return self.out(torch.cat([part(x) for part in self.parts], dim=-1))


def joined(model):
    return [module.shared_input.is_joined for module in model.modules() if isinstance(module, WeightOnlyLinear)]


def alone(layer, x):
    """The outputs of a layer that never met another."""
    return copy.deepcopy(layer)(x)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def _one_kernel(request, monkeypatch):
    """Layers of different sizes may have different kernels, which is not what is tested here."""
    name = request.node.callspec.params.get("kernel", "torch") if hasattr(request.node, "callspec") else "torch"
    kernels = [kernel for kernel in WEIGHT_ONLY_KERNELS if kernel.name.startswith(name)]
    monkeypatch.setattr(table, "KERNELS", kernels)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kernel", [kernel.name for kernel in WEIGHT_ONLY_KERNELS if "cuda" not in kernel.name])
def test_outputs_are_the_same_to_the_bit(kernel, scheme, kind, inference):
    model = Attention(scheme=scheme)
    if model.out.simulated:
        pytest.skip("the kernel does not take such weights")
    with torch.inference_mode(inference):
        for rows in (3, 1, 1, 2, 1):
            x = torch.randn(1, rows, INPUTS).to(kind)
            expected = copy.deepcopy(model)(x)
            assert torch.equal(model(x), expected)
    assert joined(model) == [True, True, True, False]


def test_layers_are_joined_at_their_second_call_and_a_long_prompt_may_be_the_first():
    model = Attention()
    model(torch.randn(600, INPUTS))
    assert not any(joined(model))
    assert all(part._prepacked == [] for part in model.parts)
    model(torch.randn(1, INPUTS))
    assert joined(model) == [True, True, True, False]
    assert all(part._prepacked == [] for part in model.parts)  # the layout is held once


def test_many_rows_alone_make_no_layout():
    model = Attention()
    for _ in range(3):
        model(torch.randn(600, INPUTS))
    assert not any(joined(model))


def test_the_kernel_runs_once_for_all(monkeypatch):
    model, calls = Attention(), []
    x = torch.randn(1, INPUTS)
    kernel = model.parts[0].low_bit_kernel
    counting = type(kernel)(
        kernel.name, kernel.can_run, kernel.pack, lambda p, x: calls.append(1) or kernel.run(p, x), kernel.costs
    )
    for layer in (*model.parts, model.out):
        layer._low_bit = counting
    counts = []
    for _ in range(3):
        calls.clear()
        model(x)
        counts.append(len(calls))
    assert counts == [4, 2, 2]


def test_an_input_that_changed_in_between_is_another_input():
    one, other = layer_of(32), layer_of(32)
    for inference in (False, True):
        with torch.inference_mode(inference):
            x = torch.randn(1, INPUTS)
            one(x), other(x)
            assert torch.equal(one(x), alone(one, x))
            x[0, 5] += 1
            assert torch.equal(other(x), alone(other, x))
            assert torch.equal(one(x), alone(one, x))


def test_any_order_and_any_input():
    layers = [layer_of(32) for _ in range(3)]
    inputs = [torch.randn(1, INPUTS) for _ in range(3)]
    for layer in layers:
        layer(inputs[0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        which, what = torch.randint(3, (2,), generator=generator).tolist()
        assert torch.equal(layers[which](inputs[what]), alone(layers[which], inputs[what]))


def test_layers_that_do_not_come_for_their_outputs_part():
    model = Attention()
    for _ in range(2):
        model(torch.randn(1, INPUTS))
    model.parts[0](torch.randn(1, INPUTS))
    assert any(joined(model))
    model.parts[0](torch.randn(1, INPUTS))
    assert not any(joined(model))
    x = torch.randn(1, INPUTS)
    assert torch.equal(model(x), copy.deepcopy(model)(x))
    assert not any(joined(model))


@pytest.mark.parametrize(
    "other",
    [
        lambda: layer_of(32, "int8 channel"),
        lambda: layer_of(32, TensorScheme(dtype("int4"), granularity=PerGroup(64))),
        lambda: layer_of(20),
        lambda: layer_of(32, input_scale=torch.rand(INPUTS) + 0.5),
        lambda: layer_of(32, order=torch.randperm(INPUTS)),
        lambda: layer_of(32, TensorScheme(dtype("nf4"), granularity=PerGroup(32))),
    ],
)
def test_layers_that_differ_are_not_joined(other):
    layers = [layer_of(32), other()]
    for _ in range(3):
        x = torch.randn(1, INPUTS)
        for layer in layers:
            assert torch.equal(layer(x), alone(layer, x))
    assert not any(layer.shared_input.is_joined for layer in layers)


def test_what_is_done_to_the_input_is_done_once_for_all():
    order, scale = torch.randperm(INPUTS), torch.rand(INPUTS) + 0.5
    layers = [layer_of(size, input_scale=scale, order=order) for size in (32, 48)]
    for _ in range(3):
        x = torch.randn(2, INPUTS)
        for layer in layers:
            assert torch.equal(layer(x), alone(layer, x))
    assert all(layer.shared_input.is_joined for layer in layers)


def test_outputs_can_be_written_to():
    layers = [layer_of(32), layer_of(32)]
    for _ in range(3):
        x = torch.randn(2, INPUTS)
        first = layers[0](x)
        first.zero_()
        assert torch.equal(layers[1](x), alone(layers[1], x))
        assert first.is_contiguous()
        assert not first.any()


def test_new_state_parts_the_layers():
    model, other = Attention(), Attention()
    x = torch.randn(1, INPUTS)
    for _ in range(3):
        model(x)
    model.load_state_dict(other.state_dict())
    assert not any(joined(model))
    for _ in range(3):
        assert torch.equal(model(x), copy.deepcopy(other)(x))
    model.parts[1].exact = True
    assert not any(joined(model))
    assert torch.equal(model(x), copy.deepcopy(model)(x))


def test_copies_pickles_and_states_know_nothing_of_it():
    model, x = Attention(), torch.randn(1, INPUTS)
    names = list(model.state_dict())
    y = [model(x) for _ in range(3)][-1]
    assert list(model.state_dict()) == names
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not any(joined(twin))
        for _ in range(3):
            assert torch.equal(twin(x), y)
        assert joined(twin) == [True, True, True, False]
    assert joined(model) == [True, True, True, False]


def test_layers_are_not_kept_alive():
    model = Attention()
    for _ in range(3):
        model(torch.randn(1, INPUTS))
    gone = [weakref.ref(part) for part in model.parts]
    del model
    gc.collect()
    assert all(reference() is None for reference in gone)


def test_a_layer_that_was_replaced_leaves_the_others_right():
    model = Attention()
    for _ in range(3):
        model(torch.randn(1, INPUTS))
    model.parts[2] = layer_of(32, "int8 channel")
    for _ in range(3):
        x = torch.randn(1, INPUTS)
        assert torch.equal(model(x), copy.deepcopy(model)(x))


def test_threads_do_not_take_each_others_outputs():
    model, wrong = Attention(), []
    inputs = [torch.randn(1, INPUTS) for _ in range(4)]
    expected = [copy.deepcopy(model)(x) for x in inputs]

    def work(number):
        with torch.no_grad():
            for _ in range(50):
                if not torch.equal(model(inputs[number]), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_gradients_flow_past_it():
    model = Attention()
    for _ in range(3):
        model(torch.randn(1, INPUTS))
    with torch.enable_grad():
        x = torch.randn(1, INPUTS, requires_grad=True)
        model(x).sum().backward()
    assert x.grad is not None


def test_matrices_below_each_other():
    weights = [layer_of(size, "uint4 asym g64").stored_weight() for size in (16, 48)]
    whole = stacked(weights)
    assert whole.shape == (64, INPUTS)
    assert torch.equal(whole.dequantize(), torch.cat([weight.dequantize() for weight in weights]))
    assert stacked([weights[0], layer_of(16).stored_weight()]) is None
    per_tensor = TensorScheme(dtype("int8"), granularity=PER_TENSOR)
    assert stacked([layer_of(16, per_tensor).stored_weight()] * 2) is None
    assert stacked([]) is None
