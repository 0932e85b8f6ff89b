"""Matrices in one parameter, packed, in the place of the tensor they were."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.algorithms import rtn
from neural_compressor.errors import FormatError
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules import quantized_module
from neural_compressor.torch.modules.matrix_stack import MatrixStack, QuantMatrixStack, open_stacks

SHAPE = (5, 6, 32)
WEIGHT = {"dtype": "int4", "group_size": 16}


@pytest.fixture
def scheme():
    return OpScheme.from_dict({"weight": WEIGHT, "mode": "weight_only"})


@pytest.fixture
def parameter():
    return nn.Parameter(torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)))


@pytest.fixture
def stack(parameter, scheme):
    return quantized_module(MatrixStack(parameter), scheme)


@pytest.fixture
def values(parameter, scheme):
    return rtn(parameter.detach().reshape(-1, SHAPE[-1]), scheme.weight).dequantize().reshape(SHAPE)


def test_it_has_the_values_of_its_codes(stack, values):
    assert isinstance(stack, QuantMatrixStack)
    assert torch.equal(stack.values(), values)
    assert (stack.shape, stack.dtype, len(stack)) == (values.shape, torch.float32, 5)
    held = sum(b.numel() * b.element_size() for b in stack.buffers())
    assert held < values.numel() * 4 / 4


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        torch.tensor(3),
        torch.tensor([4, 0, 4]),
        torch.tensor([[1, 2], [2, 1]]),
        slice(1, 3),
        (2, slice(None), 0),
        torch.tensor([True, False, True, False, False]),
    ],
    ids=str,
)
def test_it_is_indexed_as_a_tensor_is(stack, values, index):
    assert torch.equal(stack[index], values[index])


def test_one_matrix_is_made_without_the_others(stack, monkeypatch):
    made, matrix = [], QuantMatrixStack.matrix
    monkeypatch.setattr(QuantMatrixStack, "matrix", lambda self, number: made.append(number) or matrix(self, number))
    stack[torch.tensor([3, 1, 3])]
    assert made == [1, 3]


def test_what_tensors_do_is_done_with_its_values(stack, values):
    x = torch.randn(5, 2, 32)
    assert torch.equal(torch.bmm(x, stack.transpose(1, 2)), torch.bmm(x, values.transpose(1, 2)))
    assert torch.equal(torch.einsum("ebi,eoi->ebo", x, stack), torch.einsum("ebi,eoi->ebo", x, values))
    assert torch.equal(torch.cat([stack, values]), torch.cat([values, values]))
    assert torch.equal(x @ stack.mT, x @ values.mT)
    assert (stack.ndim, stack.numel()) == (3, values.numel())
    assert [m.shape for m in stack] == [values[0].shape] * 5
    with pytest.raises(AttributeError, match="no_such_thing"):
        stack.no_such_thing  # noqa: B018
    with pytest.raises(IndexError, match="number 5"):
        stack[5]


def test_it_is_read_in_the_precision_of_the_model(stack, values):
    stack.bfloat16()
    assert stack.weight_scale.dtype == torch.float32, "scales are not rounded"
    assert torch.equal(stack[1], values[1].bfloat16())
    assert stack.float()[1].dtype == torch.float32


def test_it_is_copied_and_rebuilt_from_its_state(stack, parameter, scheme, values):
    assert torch.equal(copy.deepcopy(stack).values(), values)
    empty = MatrixStack(nn.Parameter(parameter.to("meta")))
    assert torch.equal(quantized_module(empty, scheme, state=stack.state_dict()).values(), values)


def test_it_fits_no_other_checkpoint_format(stack):
    with pytest.raises(FormatError, match="toolkit's own"):
        stack.linear_weight()


def test_parameters_are_opened_and_layers_are_left(parameter):
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.router = parameter, nn.Linear(2, 2)

    model = nn.ModuleDict({"mlp": Experts()})
    open_stacks(model, ["mlp.up", "mlp.router", "mlp"])
    assert isinstance(model.mlp.up, MatrixStack)
    assert torch.equal(model.mlp.up[2], parameter[2])
    assert torch.equal(torch.sum(model.mlp.up), parameter.sum())
    assert type(model.mlp.router) is nn.Linear
