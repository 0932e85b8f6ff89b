"""Decoding with low-bit weights: models of many kinds give the bits of their own code, however little of it runs."""

import copy

import pytest
import torch

from neural_compressor.torch.modules.attention_forward import AttentionForward
from neural_compressor.torch.modules.direct_forward import run_as_written
from neural_compressor.torch.quantization import RTNConfig, quantize

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "pad_token_id": 0,
    "max_position_embeddings": 256,
}
BY_FORMULA = ("Llama", "Mistral", "Qwen2", "Phi3", "Granite")
"""Attention of these is rotated, cached and multiplied in the usual way, with biases, windows and scales of their own."""
OTHERS = ("Qwen3", "Gemma2", "Olmo2")
"""And these normalise queries and keys, or clip logits."""


def made(kind, **changes):
    if not hasattr(transformers, f"{kind}ForCausalLM"):
        pytest.skip(f"this version of transformers has no {kind}")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    model = quantize(model, RTNConfig(group_size=32))
    return model, copied(model)


def copied(model):
    plain = copy.deepcopy(model)
    run_as_written(plain)
    return plain


def active(model):
    return sum(isinstance(f := vars(m).get("forward"), AttentionForward) and f.active for m in model.modules())


@torch.no_grad()
def decoded(model, ids, steps=6, **kwargs):
    out = model(ids, use_cache=True, **kwargs)
    logits = []
    for _ in range(steps):
        token = out.logits[:, -1:].argmax(-1)
        out = model(token, past_key_values=out.past_key_values, use_cache=True)
        logits.append(out.logits)
    return torch.stack(logits)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", [*BY_FORMULA, *OTHERS])
def test_the_bits_are_those_of_the_own_code(kind, batch):
    model, plain = made(kind)
    ids = torch.randint(64, (batch, 5))
    for _ in range(2):
        assert torch.equal(decoded(model, ids), decoded(plain, ids))
    assert active(model) == (2 if kind in BY_FORMULA else 0)


def test_generation_with_padding_beams_and_other_caches():
    model, plain = made("Llama")
    ids = torch.randint(1, 64, (2, 5))
    padding = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    for more in (
        {},
        {"attention_mask": padding},
        {"num_beams": 2},
        {"cache_implementation": "static"},
        {"use_cache": False},
    ):
        found, expected = (m.generate(ids, **options, **more) for m in (model, plain))
        assert torch.equal(found, expected), more
    assert active(model) == 2


def test_another_implementation_of_attention_counts():
    model, plain = made("Llama")
    ids = torch.randint(64, (1, 5))
    decoded(model, ids)
    assert active(model) == 2
    for m in (model, plain):
        m.set_attn_implementation("eager")
    assert torch.equal(decoded(model, ids), decoded(plain, ids))


def test_hidden_states_and_attentions_are_given_where_they_are_asked_for():
    model, plain = made("Llama", attn_implementation="eager")
    ids = torch.randint(64, (1, 5))
    decoded(model, ids)
    with torch.no_grad():
        outs = [m(ids[:, :1], output_attentions=True, output_hidden_states=True) for m in (model, plain)]
    for name in ("attentions", "hidden_states"):
        found, expected = (out[name] for out in outs)
        assert len(found) == len(expected) > 1
        assert all(map(torch.equal, found, expected))


@pytest.mark.slow
def test_compilation_and_export_see_the_own_code():
    model, plain = made("Llama")
    ids = torch.randint(64, (1, 5))
    decoded(model, ids)
    assert active(model) == 2
    with torch.no_grad():
        expected = [plain(ids, use_cache=False).logits, decoded(plain, ids)]
        program = torch.export.export(model, (ids,), {"use_cache": False}).module()
        torch.testing.assert_close(program(ids, use_cache=False).logits, expected[0], rtol=0.05, atol=0.05)
        compiled = torch.compile(model, backend="eager", dynamic=True)
        torch.testing.assert_close(decoded(compiled, ids), expected[1], rtol=0.02, atol=0.02)
    assert active(model) == 2
