"""Calls that are made again leave nothing behind: not in themselves, not in a model's cache."""

import copy
import threading

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.quantization import AutoRoundConfig, AWQConfig, GPTQConfig, prepare, quantize
from neural_compressor.torch.structure.replay import CalibrationLimit, call_block, independent, remembered


class Cache:
    """Keeps what it is shown, as caches of keys and values do."""

    def __init__(self):
        self.seen, self.counts = None, [0]

    def update(self, x):
        self.seen = x if self.seen is None else torch.cat([self.seen, x])
        self.counts[0] += 1
        return self.seen


class Remembers(nn.Module):
    def forward(self, x, cache=None, use_cache=True):
        return cache.update(x)


def test_a_call_made_again_gives_the_same():
    call = ((torch.randn(2, 3),), {"cache": Cache()})
    first, second = call_block(Remembers(), call), call_block(Remembers(), call)
    assert torch.equal(first, second)
    assert call[1]["cache"].seen is None
    assert call[1]["cache"].counts == [0]


def test_tensors_held_by_objects_are_copied_and_others_are_not():
    cache, x, module = Cache(), torch.randn(2, requires_grad=True), nn.Linear(2, 2)
    cache.update(x * 2)  # with history: a plain copy would be refused
    (same, held, again), kwargs = independent(((x, cache, cache), {"module": module, "pair": (x, 1)}))
    assert same.data_ptr() == x.data_ptr()
    assert not same.requires_grad
    assert held is again, "what was one object stays one"
    held.seen.zero_()
    assert torch.equal(cache.seen, x * 2)
    assert kwargs["module"] is module
    assert kwargs["pair"][0].data_ptr() == x.data_ptr()


def test_what_cannot_be_copied_is_named():
    class Locked:
        def __init__(self):
            self.lock = threading.Lock()

    with pytest.raises(CalibrationError, match="Locked"):
        independent(((Locked(),), {}))


def test_no_cache_is_asked_for():
    x = torch.ones(1)
    assert remembered(Remembers(), (x,), {})[1] == {"use_cache": False}
    assert remembered(Remembers(), (x,), {"use_cache": True})[1] == {"use_cache": False}
    assert remembered(Remembers(), (x, None, True), {})[1] == {}, "given by its place it is left"
    assert remembered(nn.Linear(1, 1), (x,), {})[1] == {}


def test_every_tensor_can_be_changed_on_the_way():
    cache = Cache()
    cache.update(torch.ones(1))
    call = ((torch.ones(1), [torch.ones(1)]), {"a": {"b": torch.ones(1)}, "cache": cache, "c": "text"})
    args, kwargs = independent(call, lambda t: t * 2)
    found = (args[0], args[1][0], kwargs["a"]["b"], kwargs["cache"].seen)
    assert [float(t) for t in found] == [2.0] * 4
    assert kwargs["c"] == "text"
    assert float(cache.seen) == 1.0


# a model with a real cache

CONFIGS = {
    "gptq": lambda: GPTQConfig(group_size=16, correct_upstream=True),
    "gptq-sequential": lambda: GPTQConfig(group_size=16, true_sequential=True),
    "awq": lambda: AWQConfig(group_size=16, folding=True),
    "autoround": lambda: AutoRoundConfig(group_size=16, iters=4, batch_size=1),
}


class Hides(nn.Module):
    """A model that does not say that the one inside keeps a cache."""

    def __init__(self, inner, **options):
        super().__init__()
        self.inner, self.options = inner, options

    def forward(self, ids):
        return self.inner(ids, **self.options).logits


@pytest.fixture
def llama():
    transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture
def ids():
    return torch.randint(0, 48, (3, 12), generator=torch.Generator().manual_seed(0))


def quantized_state(model, config, run):
    new = quantize(copy.deepcopy(model), config, run_fn=run)
    layers = {n.removeprefix("inner."): m for n, m in new.named_modules() if isinstance(m, WeightOnlyLinear)}
    assert len(layers) == 14
    return {f"{n}.{key}": value for n, layer in layers.items() for key, value in layer.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in one.items())


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cache_does_not_change_what_is_found(llama, ids, name):
    without = quantized_state(llama, CONFIGS[name](), lambda m: m(ids, use_cache=False))
    assert_same(quantized_state(llama, CONFIGS[name](), lambda m: m(ids, use_cache=True)), without)
    assert_same(quantized_state(llama, CONFIGS[name](), lambda m: m(ids)), without)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cache_that_reaches_the_blocks_does_not_either(llama, ids, name):
    without = quantized_state(Hides(llama, use_cache=False), CONFIGS[name](), lambda m: m(ids))
    assert_same(quantized_state(Hides(llama, use_cache=True), CONFIGS[name](), lambda m: m(ids)), without)


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_fed_in_parts_see_what_came_before_them(llama, ids, name):
    """The same cache object is handed to all calls and grows between them; each call is remembered as it was."""
    from transformers import DynamicCache

    def in_parts(model):
        cache = DynamicCache(config=llama.config)
        with torch.no_grad():
            for part in ids.split(4, dim=1):
                model(part, past_key_values=cache)

    def each_with_its_own(model):
        with torch.no_grad():
            for end in (4, 8, 12):
                cache = DynamicCache(config=llama.config)
                if end > 4:
                    llama(ids[:, : end - 4], past_key_values=cache)
                model(ids[:, end - 4 : end], past_key_values=cache)

    one, other = (quantized_state(llama, CONFIGS[name](), run) for run in (in_parts, each_with_its_own))
    codes = [key for key in one if key.endswith("weight_packed")]
    same = [float((one[key] == other[key]).float().mean()) for key in codes]
    assert min(same) > 0.97  # keys of several calls at once and one after the other differ in their last bits


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_model_generates_while_it_is_calibrated(llama, ids, use_cache):
    expected = llama.generate(ids[:1], max_new_tokens=4, use_cache=use_cache, do_sample=False)
    prepared = prepare(copy.deepcopy(llama), GPTQConfig(group_size=16))
    prepared(ids)
    assert torch.equal(prepared.generate(ids[:1], max_new_tokens=4, use_cache=use_cache, do_sample=False), expected)
    loss = prepared(ids, labels=ids).loss
    assert torch.equal(loss * 2, llama(ids, labels=ids).loss * 2)


IDS = torch.arange(24).reshape(4, 6)


def test_rows_and_tokens_are_cut_together():
    mask, embedded, per_token = torch.ones_like(IDS), torch.randn(4, 6, 3), torch.randn(6)
    call = ((IDS,), {"mask": mask, "embedded": embedded, "more": (per_token, 2)})
    (ids,), kwargs = CalibrationLimit(samples=5, tokens=2).cut(call, seen=2)
    assert torch.equal(ids, IDS[:3, :2])
    assert kwargs["mask"].shape == (3, 2)
    assert torch.equal(kwargs["embedded"], embedded[:3, :2])
    assert torch.equal(kwargs["more"][0], per_token), "what is not by samples is left"


def test_what_is_within_the_limit_is_whole():
    for limit in (CalibrationLimit(), CalibrationLimit(8, 6)):
        assert torch.equal(limit.cut(((IDS,), {}), seen=4)[0][0], IDS)


def test_nothing_is_left_behind_the_last_sample():
    assert CalibrationLimit(4).cut(((IDS,), {}), seen=4) is None


def test_floats_have_no_tokens():
    images = torch.randn(2, 30, 30)
    assert CalibrationLimit(tokens=8).cut(((images,), {}), seen=0)[0][0].shape == images.shape


def test_the_most_that_anyone_wants_is_enough_for_all():
    assert CalibrationLimit.covering([CalibrationLimit(3, 9), CalibrationLimit(5, 2)]) == CalibrationLimit(5, 9)
    assert CalibrationLimit.covering([CalibrationLimit(3, 9), CalibrationLimit()]) == CalibrationLimit()
