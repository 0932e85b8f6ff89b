"""Which weights are quantized, and what is said of the others."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from neural_compressor.torch.structure.ops import find_ops, is_parameter, not_weight_only, op_type, outer_blocks


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.zeros(4, 6, 8)), nn.Parameter(torch.zeros(4, 8, 6))
        self.router = nn.Parameter(torch.zeros(4, 8))


class Odd(nn.Linear):
    pass


class Zoo(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.conv, self.conv1d = nn.Embedding(9, 8), nn.Conv2d(1, 2, 3), nn.Conv1d(2, 3, 4)
        self.linear, self.odd, self.experts = nn.Linear(8, 8), Odd(8, 8), Experts()
        self.positions, self.norm = nn.Parameter(torch.zeros(3, 5, 8)), nn.LayerNorm(8)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2)


def test_layers_stacks_and_reasons():
    model = Zoo()
    ops, left = find_ops(model)
    weight_only = not_weight_only(model, ops)
    assert {name for name, _ in ops if (name, _) not in weight_only} == {"linear", "experts.up", "experts.down"}
    said = {
        "embed": "an embedding",
        "conv": "a convolution",
        "conv1d": "a convolution",
        "odd": "subclass of Linear",
        "experts.router": "(4, 8) that Experts",
        "positions": "(3, 5, 8) that Zoo",
        "attention.in_proj_weight": "(24, 8) that MultiheadAttention",
        "attention.out_proj": "subclass of Linear",
    }
    assert {name for name, _ in {**left, **weight_only}} == set(said)
    for (name, _), why in {**left, **weight_only}.items():
        assert said[name] in why


@pytest.mark.parametrize(
    ("name", "kind", "is_one"),
    [("experts.up", "Experts", True), ("linear", "Linear", False), ("", "Zoo", False), ("positions", "Zoo", True)],
)
def test_parameters_go_by_the_class_of_their_module(name, kind, is_one):
    assert op_type(Zoo(), name) == kind
    assert is_parameter(Zoo(), name) is is_one


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_that_is_rewritten_at_each_call_stays_in_float(kind):
    ops, left = find_ops(nn.Sequential(kind(9, 8, max_norm=1.0), nn.Linear(8, 8)))
    assert list(ops) == [("1", "Linear")]
    assert left == {("0", kind.__name__): f"{kind.__name__} with max_norm rewrites its weight at each call"}


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (lambda: nn.Linear(8, 0), "its weight of shape (0, 8) has no values"),
        (lambda: nn.Embedding(0, 4), "its weight of shape (0, 4) has no values"),
        (lambda: nn.Linear(2, 2, dtype=torch.complex64), "its weight is torch.complex64"),
        (lambda: weight_norm(nn.Conv2d(1, 2, 3)), "remove_parametrizations"),
    ],
    ids=["no outputs", "no rows", "complex", "parametrized"],
)
def test_layers_without_a_weight_of_floats_are_left_and_listed(layer, said):
    ops, left = find_ops(nn.Sequential(nn.Linear(8, 8), layer()))
    assert list(ops) == [("0", "Linear")]
    assert said in next(why for (name, _), why in left.items() if name == "1")


@pytest.mark.parametrize("stages", ["lists", "sequentials"])
def test_blocks_inside_of_others_are_counted_once(stages):
    def stage():
        blocks = [nn.Sequential(nn.Linear(2, 2)) for _ in range(2)]
        return nn.ModuleList(blocks) if stages == "lists" else nn.Sequential(*blocks)

    model = nn.ModuleList([stage(), stage()])
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert outer_blocks(model, layers) == (["0.0", "0.1", "1.0", "1.1"] if stages == "lists" else ["0", "1"])
