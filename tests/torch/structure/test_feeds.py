"""Layers that read one value, and what can take a factor on it up."""

import pytest
import torch
from torch import nn

from neural_compressor.torch.structure.feeds import Feed, by_input, feeds, inputs_seen, reads_of_tensors
from neural_compressor.torch.structure.watch import watch


class Attention(nn.Module):
    """A norm that three layers read, one of them twice where ``again``, and a layer behind them."""

    def __init__(self, again=False, between=None):
        super().__init__()
        self.norm, self.again, self.between = nn.LayerNorm(8), again, between
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        if self.between is not None:
            y = self.between(y)
        mixed = self.q(y) * self.k(y) + self.v(y)
        return x + self.out(self.q(mixed) if self.again else mixed)


LAYERS = ("q", "k", "v", "out")
X = torch.randn(2, 3, 8)


def traced(model):
    return feeds(model, [watch(model, X)], LAYERS)


def test_layers_of_one_value_are_together_with_the_norm_that_gives_it():
    assert traced(Attention()) == [Feed(("q", "k", "v"), "norm"), Feed(("out",))]


def test_hooks_see_the_same_groups_as_a_trace():
    model = Attention()
    with inputs_seen({name: getattr(model, name) for name in LAYERS}) as seen:
        model(X)
    assert by_input([reads_of_tensors(seen)]) == [feed.readers for feed in traced(model)]


def test_a_layer_that_also_reads_another_value_is_alone():
    assert [feed.readers for feed in traced(Attention(again=True))] == [("q",), ("k", "v"), ("out",)]


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (nn.ReLU(), Feed(("q", "k", "v"), "norm")),
        (nn.ReLU6(), Feed(("q", "k", "v"), "norm", 6.0, "between")),
        (nn.PReLU(), Feed(("q", "k", "v"), "norm")),
        (nn.Tanh(), Feed(("q", "k", "v"))),
    ],
    ids=["relu", "relu6", "prelu", "tanh"],
)
def test_only_what_is_homogeneous_may_stand_between(between, expected):
    assert traced(Attention(between=between))[0] == expected


@pytest.mark.parametrize(
    ("shared", "between"),
    [
        (nn.ReLU(), [Feed(("first",)), Feed(("second",), "first"), Feed(("third",), "second")]),
        (
            nn.ReLU6(),
            [Feed(("first",)), *(Feed((to,), of, 6.0, "act") for of, to in [("first", "second"), ("second", "third")])],
        ),
    ],
    ids=["relu", "relu6"],
)
def test_one_activation_may_stand_between_several_layers(shared, between):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.third = (nn.Conv2d(4, 4, 1) for _ in range(3))
            self.act = shared

        def forward(self, x):
            return self.third(self.act(self.second(self.act(self.first(x)))))

    model = Shared()
    trace = watch(model, torch.randn(2, 4, 4, 4))
    assert feeds(model, [trace], ["first", "second", "third"]) == between


def test_layers_that_part_in_one_run_are_no_group():
    assert by_input([{"a": [1], "b": [1]}, {"a": [1], "b": [2]}, {"c": [1]}]) == [("a",), ("b",), ("c",)]
