"""Attention of one token by a formula gives the bits of the module's own forward, or the module runs that."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neural_compressor.torch.modules.attention_forward import AttentionForward, may_be_attention
from neural_compressor.torch.modules.direct_forward import run_as_written
from neural_compressor.torch.quantization import RTNConfig, load, quantize, save

WIDTH, HEADS, KEYS, HEAD = 64, 4, 2, 32


class Cache:
    """Keys and values of earlier tokens, by the number of a layer."""

    def __init__(self):
        self.held = {}

    def update(self, keys, values, index):
        if index in self.held:
            keys, values = (torch.cat(both, dim=2) for both in zip(self.held[index], (keys, values), strict=True))
        self.held[index] = keys, values
        return keys, values


class OtherCache(Cache):
    pass


def halves(x):
    return torch.cat((-x[..., HEAD // 2 :], x[..., : HEAD // 2]), dim=-1)


def neighbours(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


class Settings:
    def __init__(self):
        self.softcap = None


class Attention(nn.Module):
    """As models of the Llama kind write it."""

    turn = staticmethod(halves)

    def __init__(self, bias=False, scale=HEAD**-0.5):
        super().__init__()
        self.queries, self.keys = nn.Linear(WIDTH, HEADS * HEAD, bias), nn.Linear(WIDTH, KEYS * HEAD, bias)
        self.values, self.out = nn.Linear(WIDTH, KEYS * HEAD, bias), nn.Linear(HEADS * HEAD, WIDTH, bias)
        self.scale, self.number, self.settings = scale, 3, Settings()

    def projected(self, x):
        shape = (*x.shape[:-1], -1, HEAD)
        return (layer(x).view(shape).transpose(1, 2) for layer in (self.queries, self.keys, self.values))

    def rotated(self, x, cos, sin):
        return x * cos + self.turn(x) * sin

    def attended(self, q, k, v, mask, **kwargs):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=self.scale, enable_gqa=True, is_causal=mask is None and q.shape[2] > 1
        )

    def forward(self, hidden, angles, mask=None, past_key_values=None, **kwargs):
        q, k, v = self.projected(hidden)
        cos, sin = (each.unsqueeze(1) for each in angles)
        q, k = self.rotated(q, cos, sin), self.rotated(k, cos, sin)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.number)
        y = self.attended(q, k, v, mask, **kwargs)
        if self.settings.softcap is not None:
            y = y.tanh() * self.settings.softcap
        return self.out(y.transpose(1, 2).reshape(*hidden.shape[:-1], -1)), None


class Interleaved(Attention):
    turn = staticmethod(neighbours)


class Joined(Attention):
    """One layer for queries, keys and values."""

    def __init__(self):
        super().__init__()
        del self.queries, self.keys, self.values
        self.all = nn.Linear(WIDTH, (HEADS + 2 * KEYS) * HEAD, bias=False)

    def projected(self, x):
        parts = self.all(x).split([HEADS * HEAD, KEYS * HEAD, KEYS * HEAD], dim=-1)
        return (part.reshape(*x.shape[:-1], -1, HEAD).transpose(1, 2) for part in parts)


class Clipped(Attention):
    def projected(self, x):
        return (each.clamp(-8, 8) for each in super().projected(x))


class FarAway(Attention):
    """Which scales its queries beyond some position."""

    def attended(self, q, k, v, mask, **kwargs):
        return super().attended(q * (1 + (kwargs["positions"] > 8192).float()), k, v, mask)


class Curious(Attention):
    """Which asks its cache how much it holds."""

    def forward(self, hidden, angles, mask=None, past_key_values=None, **kwargs):
        assert past_key_values is None or past_key_values.held is not None
        return super().forward(hidden, angles, mask, past_key_values, **kwargs)


class Shortsighted(Attention):
    """Which looks at the last tokens alone, and does not leave that to its cache."""

    def attended(self, q, k, v, mask, **kwargs):
        return super().attended(q, k[:, :, -4096:], v[:, :, -4096:], mask)


class Weighed(Attention):
    """Which tells how much it looked at what."""

    def forward(self, hidden, angles, mask=None, past_key_values=None, **kwargs):
        return super().forward(hidden, angles, mask, past_key_values, **kwargs)[0], torch.ones(1)


class Model(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x, angles, **kwargs):
        return x + self.part(x, angles, **kwargs)[0]


def quantized(part, **config):
    torch.manual_seed(0)
    return quantize(Model(part).eval(), RTNConfig(group_size=32, **config))


def forward_of(model):
    return vars(model.part).get("forward")


def as_written(model):
    plain = copy.deepcopy(model)
    run_as_written(plain)
    assert forward_of(plain) is None
    return plain


def token(batch=1, tokens=1, start=0):
    angle = (torch.arange(tokens) + start)[None, :, None] * torch.linspace(1, 0.01, HEAD // 2)
    angle = torch.cat([angle, angle], dim=-1)
    return torch.randn(batch, tokens, WIDTH), (angle.cos(), angle.sin())


def assert_same(model, batch=1, steps=4, cache=Cache, **kwargs):
    """Whether a model gives what its own code gives: for a prompt, and then token after token."""
    plain, caches = as_written(model), (cache(), cache())
    for step in range(steps):
        x, angles = token(batch, 1 if step else 5, start=5 + step if step else 0)
        positions = torch.full((1, 1), step + 5)
        outputs = [
            m(x, angles, past_key_values=past, positions=positions, **kwargs)
            for m, past in zip((model, plain), caches, strict=True)
        ]
        assert torch.equal(*outputs)
    held = [tensor for past in caches for tensor in past.held[3]]
    assert torch.equal(held[0], held[2])
    assert torch.equal(held[1], held[3])


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "part",
    [Attention(), Attention(bias=True), Attention(scale=0.1), Interleaved(), Joined()],
    ids=["plain", "bias", "scale", "interleaved", "joined"],
)
def test_the_bits_are_those_of_the_own_forward(part, batch):
    model = quantized(copy.deepcopy(part))
    assert isinstance(forward_of(model), AttentionForward)
    assert_same(model, batch)
    assert forward_of(model).active


@pytest.mark.parametrize("part", [Clipped, FarAway, Curious, Shortsighted, Weighed], ids=lambda kind: kind.__name__)
def test_another_attention_is_left_as_it_was(part):
    model = quantized(part())
    assert_same(model)
    assert forward_of(model) is None


def test_a_mask_and_a_call_without_a_cache_run_the_own_forward():
    model = quantized(Attention())
    plain = as_written(model)
    x, angles = token()
    for kwargs in ({}, {"past_key_values": None}, {"past_key_values": Cache(), "mask": torch.ones(1, 1, 1, 1) > 0}):
        assert torch.equal(model(x, angles, **kwargs), plain(x, angles, **copy.deepcopy(kwargs)))
        assert not forward_of(model).active
    assert_same(model)
    assert forward_of(model).active


def test_other_arguments_and_other_caches_count():
    model = quantized(Attention())
    assert_same(model)
    assert_same(model, cache=OtherCache)
    assert_same(model, use_cache=True)
    assert_same(model, use_cache=False)
    assert forward_of(model).active


def test_settings_count_that_change_inside_an_object():
    model = quantized(Attention())
    assert_same(model)
    assert forward_of(model).active
    model.part.settings.softcap = 0.5
    assert_same(model)
    assert forward_of(model) is None


def test_a_changed_attribute_counts():
    model = quantized(Attention())
    assert_same(model)
    model.part.number, model.part.scale = 3, 0.3
    assert_same(model)
    assert forward_of(model).active
    for exact in (True, False):
        model.part.queries.exact = exact
        assert_same(model)


def test_hooks_inside_are_called():
    model, seen = quantized(Attention()), []
    assert_same(model)
    handle = model.part.keys.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    x, angles = token()
    model(x, angles, past_key_values=Cache(), positions=torch.ones(1, 1, dtype=torch.int64))
    handle.remove()
    assert seen == [(1, 1, KEYS * HEAD)]


def test_gradients_flow():
    model = quantized(Attention())
    assert_same(model)
    x, angles = token()
    with torch.enable_grad():
        model(x.requires_grad_(), angles, past_key_values=Cache()).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.abs().sum() > 0)


def test_autocast_and_watchers_run_the_own_forward():
    model = quantized(Attention())
    assert_same(model)
    plain = as_written(model)
    x, angles = token()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(*(m(x, angles, past_key_values=Cache()) for m in (model, plain)))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_a_model_of_its_own(copied):
    model = quantized(Attention())
    assert_same(model)
    other = copied(model)
    assert forward_of(other).module is other.part
    assert not forward_of(other).active
    assert_same(other)
    assert forward_of(other).active


def test_state_and_files_know_nothing_of_it(tmp_path):
    model = quantized(Attention())
    names = set(model.state_dict())
    assert_same(model)
    assert set(model.state_dict()) == names
    save(model, tmp_path / "model")
    again = load(tmp_path / "model", Model(Attention()).eval())
    assert isinstance(forward_of(again), AttentionForward)
    assert_same(again)
    assert forward_of(again).active


def test_a_graph_is_that_of_the_own_forward():
    model = quantized(Attention())
    assert_same(model)

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x, cos, sin):
            return self.model(x, (cos, sin), past_key_values=Cache())

    x, angles = token()
    program = torch.export.export(Step(), (x, *angles)).module()
    torch.testing.assert_close(program(x, *angles), Step()(x, *angles), rtol=0.02, atol=0.02)
    assert forward_of(model).active


def test_what_may_be_one():
    assert may_be_attention(Attention())
    assert not may_be_attention(nn.Linear(2, 2))
