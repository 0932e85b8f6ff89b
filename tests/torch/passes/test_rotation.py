"""A rotation folded into the weights: the same outputs, other weights, and files that plain transformers reads."""

import copy
import logging

import pytest
import torch
from torch import nn

from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.torch.passes.rotation import fold_rotation

transformers = pytest.importorskip("transformers")
WIDTH, VOCABULARY = 48, 61
IDS = torch.randint(0, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))
CALL = ((IDS,), {"use_cache": False})
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
OPT = {key: value for key, value in SIZES.items() if key != "intermediate_size"} | {"ffn_dim": 80}
GPT = {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
MLA = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
}
CASES = {
    "llama": ("Llama", GROUPED, {}),
    "llama-tied": ("Llama", GROUPED, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-products": ("Llama", GROUPED, {"attn_implementation": "eager"}),
    "qwen3": ("Qwen3", GROUPED, {"head_dim": 16}),  # norms of queries and keys
    "mistral": ("Mistral", GROUPED, {"sliding_window": 4}),
    "gemma": ("Gemma", GROUPED, {"head_dim": 12}),  # 1 + weight; embeddings multiplied by a number; tied
    "granite": ("Granite", GROUPED, {"residual_multiplier": 0.5, "embedding_multiplier": 3.0, "logits_scaling": 2.0}),
    "phi": ("Phi", GROUPED, {}),  # attention and MLP side by side; LayerNorm
    "phi3": ("Phi3", GROUPED, {}),  # queries, keys and values in one matrix
    "opt": ("OPT", OPT, {"word_embed_proj_dim": WIDTH}),  # learned positions, LayerNorm, tied
    "gptj": ("GPTJ", GPT, {"rotary_dim": 4}),  # a LayerNorm with a bias in front of layers without
    "gpt2": ("GPT2", GPT, {}),  # Conv1D
    "mixtral": ("Mixtral", GROUPED, {"num_local_experts": 3}),  # experts in stacks, a router with a weight of its own
    "gpt-oss": ("GptOss", GROUPED, {"head_dim": 12, "num_local_experts": 3, "num_experts_per_tok": 2}),  # transposed
    "deepseek": ("DeepseekV3", {**SIZES, "num_key_value_heads": 4}, MLA),  # queries through a narrow space, with a norm
}
VALUES_TURNED = dict.fromkeys(CASES, 2) | {"phi3": 0, "gpt2": 0}


def tiny(kind, sizes, more):
    """A model with random weights and gains that are not one."""
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3 if parameter.dim() == 1 else 0.1)
    return model


def logits(model):
    with torch.no_grad():
        return model(*CALL[0], **CALL[1]).logits


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", CASES)
def test_float_logits_stay_and_plain_transformers_reads_the_file(name, tmp_path):
    model = tiny(*CASES[name])
    before, expected = copy.deepcopy(model.state_dict()), logits(model)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    found = fold_rotation(model, [CALL])
    assert found.stream.width == WIDTH
    assert len(found.spaces) == VALUES_TURNED[name]
    assert_same(logits(model), expected)
    after = model.state_dict()
    others = ("lm_head", "bias") + (("kv_b_proj",) if name == "deepseek" else ())
    matrices = [key for key in after if after[key].dim() > 1 and not any(other in key for other in others)]
    assert all(not torch.allclose(after[key], before[key], atol=1e-2) for key in matrices), "every layer is turned"
    assert bool(found.untied) == tied
    assert not model.config.tie_word_embeddings
    model.save_pretrained(tmp_path)
    assert_same(logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()), expected)


def test_gains_are_in_the_layers_and_norms_have_none():
    model = tiny(*CASES["llama"])
    fold_rotation(model, [CALL])
    norms = [m.weight for n, m in model.named_modules() if n.endswith("norm")]
    assert len(norms) == 5
    assert all(bool((weight == 1).all()) for weight in norms)


def test_channels_that_stand_out_are_spread():
    model = tiny(*CASES["llama"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter[7] *= 30

    def peak():
        seen = []
        hook = model.model.norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        logits(model)
        hook.remove()
        return float(seen[0].abs().amax() / seen[0].square().mean().sqrt())

    before = peak()
    fold_rotation(model, [CALL])
    assert before > 6
    assert peak() < before / 1.5


def test_a_model_in_float64_gives_the_same_to_the_last_digits():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.RMSNorm(20), nn.Linear(20, 32), nn.Linear(32, 20)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 20), Block(), Block(), nn.LayerNorm(20), nn.Linear(20, 3)).double()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    ids = torch.arange(9)[None]
    expected = model(ids)
    fold_rotation(model, [((ids,), {})])
    torch.testing.assert_close(model(ids), expected, rtol=1e-11, atol=1e-11)


def test_norms_that_compute_in_float32_are_no_fault_of_a_model_in_float64():
    model = tiny(*CASES["llama"]).double()
    expected = logits(model)
    fold_rotation(model, [CALL])
    assert_same(logits(model), expected)


def test_half_precision_stays_near():
    model = tiny(*CASES["llama"]).bfloat16()
    expected = logits(model)
    fold_rotation(model, [CALL])
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert float((logits(model) - expected).norm() / expected.norm()) < 0.05


def test_a_tied_head_is_said(caplog):
    model = tiny(*CASES["llama-tied"])
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        fold_rotation(model, [CALL])
    assert "model.embed_tokens.weight and lm_head.weight shared one tensor" in caplog.text
    assert "lm_head.weight" not in model.all_tied_weights_keys


def pegasus():
    sizes = {"d_model": WIDTH, "encoder_ffn_dim": 80, "decoder_ffn_dim": 80, "encoder_layers": 1, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 0}
    config = transformers.PegasusConfig(vocab_size=VOCABULARY, max_position_embeddings=16, **sizes, **heads, **special)
    return transformers.PegasusForConditionalGeneration(config), {"decoder_input_ids": IDS[:, :5], "use_cache": False}


def megatron_bert():
    config = transformers.MegatronBertConfig(**{k: v for k, v in SIZES.items() if not k.endswith("_id")})
    return transformers.MegatronBertForMaskedLM(config), {}


@pytest.mark.parametrize("make", [pegasus, megatron_bert])  # an encoder's embedding, the bias of the head
def test_what_else_is_tied_is_in_the_file(make, tmp_path):
    torch.manual_seed(0)
    model, more = make()
    with torch.no_grad():
        for parameter in model.eval().parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3 if parameter.dim() == 1 else 0.1)
        expected = model(IDS, **more).logits
    fold_rotation(model, [((IDS,), more)])
    model.save_pretrained(tmp_path)
    read = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert_same(model(IDS, **more).logits, expected)
        assert_same(read(IDS, **more).logits, expected)


REFUSED = {
    "gemma2": ("Gemma2", GROUPED, {"head_dim": 12}, "adds what norm 'model.layers.0.post_attention_layernorm' gives"),
    "olmo2": ("Olmo2", GROUPED, {}, "adds what norm 'model.layers.0.post_attention_layernorm' gives"),
    "opt-350m": ("OPT", OPT, {"word_embed_proj_dim": 24, "do_layer_norm_before": False}, "self_attn_layer_norm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_turned_is_refused_with_the_reason(name):
    kind, sizes, more, reason = REFUSED[name]
    model = tiny(kind, sizes, more)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(QuantizationError, match=f"cannot be folded into a {kind}ForCausalLM.*{reason}.*hadamard=True"):
        fold_rotation(model, [CALL])
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_layer_whose_weight_is_made_before_each_call_is_named():
    torch.manual_seed(0)
    model = tiny(*CASES["llama"])
    with pytest.warns(FutureWarning, match="weight_norm"):
        torch.nn.utils.weight_norm(model.model.layers[0].self_attn.q_proj)
    with pytest.raises(QuantizationError, match=r"Linear 'model\.layers\.0\.self_attn\.q_proj'"):
        fold_rotation(model, [CALL])


def test_what_reads_images_was_not_seen_on_text():
    tower = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**GROUPED),
        vision_config=transformers.CLIPVisionConfig(**tower, image_size=16, patch_size=8),
        image_token_index=5,
    )
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config).eval()
    with pytest.raises(QuantizationError, match=r"did not use 'model\.multi_modal_projector\.linear_1\.weight'"):
        fold_rotation(model, [CALL])


def test_a_kind_of_call_that_comes_late_is_looked_at():
    class Turning(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.fc, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9)

        def forward(self, ids, bounded=None):
            x = self.embed(ids) + self.fc(self.embed(ids))
            return self.head(x if bounded is None else torch.tanh(x))

    torch.manual_seed(0)
    call = ((torch.arange(4)[None],), {})
    fold_rotation(Turning(), [call] * 6)
    for without in ({}, {"bounded": None}):
        calls = [(call[0], given) for given in [without] * 6 + [{"bounded": True}]]
        with pytest.raises(QuantizationError, match="tanh"):
            fold_rotation(Turning(), calls)


class Branching(nn.Module):
    """It does something else, or adds a buffer, where ``when`` says so of its ids."""

    def __init__(self, when, buffer=False):
        super().__init__()
        self.embed, self.fc, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9)
        self.when = when
        if buffer:
            self.register_buffer("table", torch.randn(500, 8))

    def forward(self, ids):
        x = self.embed(ids)
        if self.when(ids):
            x = torch.tanh(x) if not hasattr(self, "table") else x + self.table[: ids.shape[1]]
        return self.head(x + self.fc(x))


BRANCHES = {
    "longer": lambda ids: ids.shape[1] > 6,
    "shorter": lambda ids: ids.shape[1] < 3,
    "one sample": lambda ids: ids.shape[0] == 1,
    "more samples": lambda ids: ids.shape[0] > 1,
    "where it begins": lambda ids: bool(ids[0, 0] != 0),
}


@pytest.mark.parametrize("branch", BRANCHES)
def test_a_branch_that_other_shapes_take_is_seen(branch):
    call = ((torch.arange(5).repeat(2, 1),), {})
    torch.manual_seed(0)
    with pytest.raises(QuantizationError, match="tanh"):
        fold_rotation(Branching(BRANCHES[branch]), [call])
    with pytest.raises(QuantizationError, match="a parameter or constant is part of it"):
        fold_rotation(Branching(BRANCHES[branch], buffer=True), [call])
    fold_rotation(Branching(lambda ids: False), [call])


def test_a_branch_on_all_tokens_of_the_longest_sample_is_seen():
    calls = [((torch.zeros(1, length, dtype=torch.long),), {}) for length in (130, 400, 120)]
    torch.manual_seed(0)
    fold_rotation(Branching(lambda ids: ids.shape[1] > 400), calls)
    with pytest.raises(QuantizationError, match="tanh"):
        fold_rotation(Branching(lambda ids: ids.shape[1] > 390), calls)


def test_a_buffer_that_the_data_did_not_use_is_refused_by_name():
    torch.manual_seed(0)
    call = ((torch.arange(5)[None],), {})
    model = Branching(lambda ids: ids.shape[1] > 300, buffer=True)
    with pytest.raises(QuantizationError, match=r"did not use 'table' of that width"):
        fold_rotation(model, [call])
    model.table = model.table[:, :7].clone()
    fold_rotation(model, [call])


def test_other_shapes_leave_no_trace_in_buffers():
    class Counting(Branching):
        def __init__(self):
            super().__init__(lambda ids: False)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, ids):
            self.seen += ids.numel()
            return super().forward(ids) * (1 + self.seen)

    torch.manual_seed(0)
    model, ids = Counting(), torch.arange(5)[None]
    expected = copy.deepcopy(model)(ids).detach()
    fold_rotation(model, [((ids,), {})] * 2)
    assert model.seen == 0
    assert_same(model(ids).detach(), expected)


@pytest.mark.parametrize("norm", [nn.RMSNorm, nn.LayerNorm])
@pytest.mark.parametrize("bias", [True, False])
def test_norms_of_the_values_of_single_heads(norm, bias):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.v, self.o = nn.Embedding(9, 12), nn.Linear(12, 12), nn.Linear(12, 12, bias=bias)
            self.norm, self.head = norm(4), nn.Linear(12, 9)

        def forward(self, ids):
            x = self.embed(ids)
            v = self.norm(self.v(x).unflatten(-1, (3, 4)))
            return self.head(x + self.o(v.flatten(2)))

    torch.manual_seed(0)
    model = Heads().double()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    ids = torch.arange(8).reshape(2, 4)
    expected = model(ids)
    assert [space.width for space in fold_rotation(model, [((ids,), {})]).spaces] == [4]
    torch.testing.assert_close(model(ids), expected, rtol=1e-11, atol=1e-11)


def test_a_gain_that_a_layer_reads_in_parts_is_refused():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm, self.fc = nn.Embedding(9, 12), nn.RMSNorm(12), nn.Linear(4, 4)
            self.head = nn.Linear(12, 9)

        def forward(self, ids):
            x = self.embed(ids)
            return self.head(x + self.fc(self.norm(x).unflatten(-1, (3, 4))).flatten(2))

    torch.manual_seed(0)
    with pytest.raises(QuantizationError, match=r"norm 'norm' has 12 gains, and 'fc' behind it reads fewer"):
        fold_rotation(Parts(), [((torch.arange(8)[None],), {})])


def test_a_weight_that_is_read_behind_the_back_leaves_the_model_as_it_was():
    class Peeking(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.fc, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 9)

        def forward(self, ids):
            x = self.embed(ids)
            return self.head(x + self.fc(x)) * self.embed.weight.detach().numpy()[0, 0].item()

    torch.manual_seed(0)
    model, call = Peeking(), ((torch.arange(4)[None],), {})
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(QuantizationError, match="it gives something else"):
        fold_rotation(model, [call])
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_model_that_overflows_on_the_data_proves_nothing():
    model = tiny("Llama", GROUPED, {})
    mlp = model.model.layers[1].mlp
    mlp.up_proj.weight.data *= 1e30
    mlp.gate_proj.weight.data *= 1e30
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CalibrationError, match=r"an output of the LlamaForCausalLM .* is NaN or Inf throughout"):
        fold_rotation(model, [((IDS,), {"use_cache": True})])
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_models_without_a_stream_data_or_values_are_refused():
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    with pytest.raises(QuantizationError, match="no values were seen that one layer writes and another reads"):
        fold_rotation(plain, [((torch.randn(2, 4),), {})])
    narrow = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    with pytest.raises(QuantizationError, match=r"3 values that '2' .* no residual stream goes through layers"):
        fold_rotation(narrow, [((torch.randn(2, 4),), {})])
    with pytest.raises(QuantizationError, match="run it on data first"):
        fold_rotation(plain, [])
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"'0.weight', which has no values \(meta device\)"):
        fold_rotation(empty, [((torch.randn(2, 4),), {})])
