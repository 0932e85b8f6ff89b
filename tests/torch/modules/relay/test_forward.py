"""A relayed forward gives way to the module's own wherever the two could differ."""

import copy
import json
import pickle
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neural_compressor.torch.files.checkpoint import load_model, save_model


class Chain(nn.Module):
    """Three layers, with whatever a test does between them."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


class OnValues(Chain):
    def forward(self, x):
        h = self.a(x)
        return self.c(self.b(h)) if x.sum() > 0 else torch.tanh(h)


class OnLength(Chain):
    def forward(self, x):
        h = self.a(x)
        return self.c(self.b(h)) if len(x) > 4 else torch.tanh(h)


class OnShape(Chain):
    def forward(self, x):
        h = self.a(x)
        return self.c(self.b(h)) if x.shape[0] > 4 else torch.tanh(h)


class OnType(Chain):
    def forward(self, x):
        h = self.a(x)
        return self.c(self.b(h)) if isinstance(x, torch.Tensor) else torch.tanh(h)


@pytest.mark.parametrize("place", ["", "0"])
def test_a_forward_of_the_object_is_the_one_that_runs(place, quantized):
    model, x = nn.Sequential(Chain(), nn.ReLU(), nn.Linear(8, 8)), torch.randn(16, 8)
    patched = model.get_submodule(place)
    patched.forward = types.MethodType(lambda self, x: -type(self).forward(self, x), patched)
    new = quantized(model, x)
    assert place not in new.quantization.relays.modules
    torch.testing.assert_close(new(x), model(x), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", [OnValues, OnLength, OnShape, OnType])
def test_a_forward_that_branches_is_not_traced(kind, quantized):
    model, x = kind(), torch.randn(16, 8)
    new = quantized(model, x)
    assert new.quantization.relays.modules == []
    assert new.quantization.relays.reasons[""]
    for batch in (x, x[:2], x.abs(), -x.abs()):
        torch.testing.assert_close(new(batch), model(batch), rtol=0.1, atol=0.1)


def test_an_optional_argument_takes_the_other_path(quantized, without_relays):
    class Optional(Chain):
        def forward(self, x, shift=None):
            h = self.b(self.a(x))
            return self.c(h) if shift is None else h + shift

    x, shift = torch.randn(16, 8), torch.randn(16, 8)
    new = quantized(Optional(), x)
    assert new.quantization.relays.modules == [""]
    plain = without_relays(new)
    assert torch.equal(new(x, shift), plain(x, shift))
    assert torch.equal(new(x, shift=shift), plain(x, shift=shift))
    assert torch.equal(new(x=x), new(x))
    assert torch.equal(new(x, None), plain(x))


@pytest.mark.parametrize("times", ["one module twice", "one weight in two"])
def test_a_module_that_is_used_twice(times, quantized, without_relays, decibels):
    model = Chain()
    if times == "one module twice":
        model.b = model.a
    else:
        model.b.weight = model.a.weight
    x = torch.randn(16, 8)
    new = quantized(model, x)
    assert decibels(without_relays(new)(x), new(x)) > 40


def test_a_part_that_cannot_be_traced_is_called_and_its_parts_are_tried(quantized, without_relays, decibels):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

        def forward(self, x):
            return self.layers(x) if x.sum() > -1e9 else x

    class Outer(Chain):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.c(self.b(self.inner(self.a(x))))

    x = torch.randn(16, 8)
    new = quantized(Outer(), x)
    assert new.quantization.relays.modules == ["", "inner.layers"]
    assert "inner" in new.quantization.relays.reasons
    assert decibels(without_relays(new)(x), new(x)) > 40
    assert new.inner.layers.forward.active


def test_an_attribute_that_changes_is_noticed(quantized, without_relays):
    class Features(Chain):
        def __init__(self):
            super().__init__()
            self.features, self.scales = False, [1.0]

        def forward(self, x):
            h = F.relu(self.b(F.relu(self.a(x))))
            return h if self.features else self.c(h) * self.scales[0]

    x = torch.randn(16, 8)
    new = quantized(Features(), x)
    before = new(x)
    for name, value in (("features", True), ("features", False)):
        setattr(new, name, value)
        assert torch.equal(new(x), without_relays(new)(x))
    new.scales[0] = 2.0
    assert torch.equal(new(x), 2 * before)


def test_a_set_that_its_copy_has_in_another_order_has_not_changed(quantized):
    model, x = Chain(), torch.randn(16, 8)
    model.kept = {1001 * i for i in range(20)}
    assert list(model.kept) != list(model.kept.copy())
    assert quantized(model, x).quantization.relays.modules == [""]


def test_a_buffer_that_the_forward_replaces_counts_calls_alone(quantized):
    class Counted(Chain):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x):
            h = self.b(F.relu(self.a(x)))
            self.calls += 1
            self.mean.mul_(0.9).add_(h.mean(0) * 0.1)
            return self.c(h - self.mean), self.calls

    x = torch.randn(16, 8)
    new = quantized(Counted(), x)
    before = new.calls.item()
    assert new(x)[1].item() == new.calls.item() == before + 1


def test_a_module_that_is_replaced_is_noticed(quantized, without_relays):
    x = torch.randn(16, 8)
    new = quantized(Chain(), x)
    new.c = nn.Identity()
    assert torch.equal(new(x), without_relays(new)(x))


def test_hooks_of_the_user_are_called_and_may_change_values(quantized):
    x = torch.randn(16, 8)
    new = quantized(Chain(), x)
    before, seen = new(x), []
    handle = new.b.register_forward_hook(lambda module, args, output: seen.append(output) or output * 0)
    assert not torch.equal(new(x), before)
    assert seen[0].dtype == torch.float32
    handle.remove()
    assert torch.equal(new(x), before)
    assert len(seen) == 1


@pytest.mark.parametrize("kind", ["written", "appended", "counted"])
def test_a_forward_with_side_effects_is_not_traced(kind, quantized):
    class Effects(Chain):
        def __init__(self):
            super().__init__()
            self.seen, self.count, self.last = [], 0, None

        def forward(self, x):
            h = self.b(self.a(x))
            if kind == "written":
                self.last = h
            elif kind == "appended":
                self.seen.append(h)
            else:
                self.count += 1
            return self.c(h)

    x = torch.randn(16, 8)
    new = quantized(Effects(), x)
    assert new.quantization.relays.modules == []
    new.seen.clear()
    new.count = 0
    new(x)
    if kind == "written":
        assert isinstance(new.last, torch.Tensor)
    else:
        assert len(new.seen) == 1 or new.count == 1


def test_randomness_is_not_frozen(quantized):
    class Noisy(Chain):
        def forward(self, x):
            return self.c(self.b(self.a(x))) + torch.randn(8)

    x = torch.randn(16, 8)
    new = quantized(Noisy(), x)
    assert not torch.equal(new(x), new(x))


@pytest.mark.parametrize("kind", ["result unused", "input", "read elsewhere"])
def test_values_that_are_changed_in_place(kind, quantized):
    class InPlace(Chain):
        def forward(self, x):
            if kind == "input":
                x.mul_(2)
            h = self.a(x)
            if kind == "result unused":
                F.relu_(h)
                return self.c(self.b(h))
            return self.c(self.b(F.relu(h, inplace=True))) + (h if kind == "read elsewhere" else 0)

    x = torch.randn(16, 8)
    model = InPlace()
    new = quantized(model, x.clone())
    assert new.quantization.relays.modules == []
    torch.testing.assert_close(new(x.clone()), model(x.clone()), rtol=0.1, atol=0.1)


def test_calls_that_the_kernels_do_not_take(quantized, without_relays):
    x = torch.randn(16, 8)
    new = quantized(Chain(), x)
    plain = without_relays(new)
    assert torch.equal(new(x[0]), plain(x[0]))
    assert new(x[:0]).shape == (0, 8)
    assert torch.equal(new(x.double()), plain(x.double()))
    leaf = x.clone().requires_grad_()
    assert torch.equal(new(leaf), plain(x))
    assert new.forward.active
    with pytest.raises(RuntimeError):
        new(torch.randn(16, 7))
    assert new.forward.active


def test_training_runs_the_modules_own_forward(quantized):
    x = torch.randn(16, 8)
    new = quantized(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.9), nn.Linear(8, 8)), x)
    relayed = new(x)
    new.train()
    assert not torch.equal(new(x), relayed)
    new.eval()
    assert torch.equal(new(x), relayed)


def test_dropout_that_is_switched_on_alone(quantized):
    x = torch.randn(16, 8)
    new = quantized(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.9), nn.Linear(8, 8)), x)
    relayed = new(x)
    new[1].train()
    assert not torch.equal(new(x), relayed)


def test_a_branch_on_a_buffer_is_not_frozen(quantized):
    class OnBuffer(Chain):
        def __init__(self):
            super().__init__()
            self.register_buffer("deep", torch.tensor(True))

        def forward(self, x):
            h = self.b(self.a(x))
            return self.c(h) if self.deep else h

    x = torch.randn(16, 8)
    new = quantized(OnBuffer(), x)
    before = new(x)
    new.deep.fill_(False)
    assert not torch.equal(new(x), before)


def test_new_state_is_noticed(quantized):
    x = torch.randn(16, 8)
    one, other = (quantized(Chain(), torch.randn(16, 8)) for _ in range(2))
    one(x)
    one.load_state_dict(other.state_dict())
    assert torch.equal(one(x), other(x))


def test_a_copy_is_independent_and_a_pickle_the_same(quantized):
    x = torch.randn(16, 8)
    new = quantized(Chain(), x)
    again, read = copy.deepcopy(new), pickle.loads(pickle.dumps(quantized(nn.Sequential(*Chain().children()), x)))
    assert isinstance(again, Chain)
    assert torch.equal(again(x), new(x))
    assert again.forward.active
    assert again.forward.module is again
    again.c = nn.Identity()
    assert not torch.equal(again(x), new(x))
    assert read(x).shape == (16, 8)
    assert read.forward.active


def test_a_loaded_model_computes_the_same_bits(tmp_path, quantized):
    x = torch.randn(16, 8)
    model = Chain()
    new = quantized(model, x)
    save_model(new, tmp_path / "m")
    again = load_model(tmp_path / "m", model)
    assert torch.equal(again(x), new(x))
    assert again.forward.active
    assert again.quantization.relays == new.quantization.relays


def test_files_of_earlier_releases_load(tmp_path, quantized, without_relays):
    x = torch.randn(16, 8)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    new = quantized(model, x)
    save_model(new, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "qconfig.json").read_text())
    del config["checksum"]  # which those files do not have
    config["version"] = 1
    config["relays"] = {"0": "2"}
    (tmp_path / "m" / "qconfig.json").write_text(json.dumps(config))
    assert torch.equal(load_model(tmp_path / "m", model)(x), new(x))
    config["relays"] = {}
    (tmp_path / "m" / "qconfig.json").write_text(json.dumps(config))
    assert torch.equal(load_model(tmp_path / "m", model)(x), without_relays(new)(x))


def test_a_model_can_still_be_compiled_and_traced(quantized, without_relays):
    x = torch.randn(16, 8)
    new = quantized(Chain(), x)
    for other in (torch.compile(new, backend="eager"), torch.jit.trace(new, x)):
        torch.testing.assert_close(other(x), without_relays(new)(x), rtol=1e-4, atol=1e-4)
    assert new.forward.active
    assert list(new.state_dict()) == list(without_relays(new).state_dict())
