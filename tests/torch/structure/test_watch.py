"""Connections between modules, found by running the model."""

from dataclasses import dataclass

import torch
from torch import nn

from neural_compressor.torch.structure.watch import watch


class Branchy(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        x = self.conv(x)
        y = self.relu(self.bn(x))
        return self.fc((y + x).flatten(1))


def names(trace):
    return [call.module or call.target.rsplit(".", 1)[-1] for call in trace.calls]


def test_order_and_functions_are_recorded():
    trace = watch(Branchy().eval(), torch.randn(1, 1, 4, 4))
    assert names(trace) == ["conv", "bn", "relu", "add", "flatten", "fc"]


def test_a_tensor_read_twice_has_no_only_reader():
    trace = watch(Branchy().eval(), torch.randn(1, 1, 4, 4))
    by_name = dict(zip(names(trace), trace.calls, strict=True))
    assert trace.only_reader(by_name["conv"]) is None
    assert trace.only_reader(by_name["bn"]) is by_name["relu"]
    assert trace.only_reader(by_name["relu"]) is by_name["add"], "an in-place output is a new value"


def test_a_returned_tensor_has_no_only_reader():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            hidden = self.a(x)
            return {"hidden": hidden, "out": self.b(hidden)}

    trace = watch(Returns(), torch.randn(1, 2))
    assert trace.only_reader(trace.calls[0]) is None


def test_properties_that_give_tensors_and_calls_that_give_none_are_readers():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.relu = nn.Linear(2, 2), nn.ReLU()

        def forward(self, x):
            h = self.a(x)
            h.tolist()
            return self.relu(h) + h.mT.mT

    trace = watch(Reads(), torch.randn(2, 2))
    assert len(trace.readers[trace.calls[0].writes[0]]) == 3


def test_tensors_in_any_object_are_outputs():
    @dataclass
    class Result:
        out: torch.Tensor
        hidden: torch.Tensor

    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            hidden = self.a(x)
            return Result(self.b(hidden), hidden)

    trace = watch(Returns(), torch.randn(1, 2))
    assert trace.only_reader(trace.calls[0]) is None


def test_a_module_called_twice_is_counted():
    shared = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 2), shared, nn.Linear(2, 2), shared)
    assert len(watch(model, torch.randn(1, 2)).by_module["1"]) == 2


def test_hooks_are_removed():
    model = Branchy().eval()
    watch(model, torch.randn(1, 1, 4, 4))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_model_itself_may_be_a_leaf():
    trace = watch(nn.Linear(2, 2), torch.randn(1, 2))
    assert [call.module for call in trace.calls] == [""]
