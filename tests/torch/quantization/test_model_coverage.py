"""Every algorithm on every kind of model: what is quantized, what is said of the rest, and the same bits after loading."""

import copy

import pytest
import torch
from torch import nn

from neural_compressor.errors import ConfigError
from neural_compressor.torch.modules import QuantLinear, WeightOnlyLinear
from neural_compressor.torch.modules.matrix_stack import QuantMatrixStack
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    AWQConfig,
    DynamicQuantConfig,
    FP8Config,
    GPTQConfig,
    HQQConfig,
    RTNConfig,
    TEQConfig,
    load,
    prepare,
    quantize,
    save,
)

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")

ALGORITHMS = {
    "rtn": lambda: RTNConfig(group_size=16),
    "gptq": lambda: GPTQConfig(group_size=16, true_sequential=True, correct_upstream=True),
    "awq": lambda: AWQConfig(group_size=16, folding=True),
    "teq": lambda: TEQConfig(group_size=16),
    "hqq": lambda: HQQConfig(group_size=16),
    "autoround": lambda: AutoRoundConfig(group_size=16, iters=3),
}
VOCABULARY = 64


class Heads(nn.Module):
    """A convolutional network with two linear heads."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(2)
        self.classes, self.boxes = nn.Linear(32, 10), nn.Linear(32, 4)

    def forward(self, x):
        features = self.pool(self.conv(x).relu()).flatten(1)
        return self.classes(features), self.boxes(features)


def _sizes(**more):
    return {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, **more}


def _llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_sizes(intermediate_size=48, num_key_value_heads=1, tie_word_embeddings=True))
    )


def _gpt2():
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    config.bos_token_id = config.eos_token_id = 0
    return transformers.GPT2LMHeadModel(config)


def _bert():
    config = transformers.BertConfig(**_sizes(intermediate_size=48, max_position_embeddings=32))
    return transformers.BertForSequenceClassification(config)


def _t5():
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def _bart():
    layers = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 48))}
    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    config = transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=32, max_position_embeddings=32, bos_token_id=0, eos_token_id=2, **layers, **heads
    )
    return transformers.BartForConditionalGeneration(config)


def _mixtral():
    config = transformers.MixtralConfig(**_sizes(intermediate_size=48, num_key_value_heads=1, num_local_experts=3))
    return transformers.MixtralForCausalLM(config)


def _gpt_oss():
    config = transformers.GptOssConfig(
        **_sizes(intermediate_size=48, num_key_value_heads=1, num_local_experts=3, num_experts_per_tok=2, head_dim=16),
        eos_token_id=0,
        pad_token_id=0,
    )
    return transformers.GptOssForCausalLM(config)


def ids(tokens=10, seed=0):
    return torch.randint(0, VOCABULARY, (2, tokens), generator=torch.Generator().manual_seed(seed))


def _noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), lambda: {"input": _noise(32, 16)}),
    "cnn": (Heads, lambda: {"x": _noise(4, 3, 8, 8)}),
    "llama": (_llama, lambda: {"input_ids": ids()}),
    "gpt2": (_gpt2, lambda: {"input_ids": ids()}),
    "bert": (_bert, lambda: {"input_ids": ids(), "attention_mask": torch.ones(2, 10, dtype=torch.long)}),
    "t5": (_t5, lambda: {"input_ids": ids(), "decoder_input_ids": ids(6, 1)}),
    "bart": (_bart, lambda: {"input_ids": ids(), "decoder_input_ids": ids(6, 1)}),
    "mixtral": (_mixtral, lambda: {"input_ids": ids()}),
    "gpt-oss": (_gpt_oss, lambda: {"input_ids": ids()}),
}


def made(name):
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    return make().eval(), inputs()


@torch.no_grad()
def outputs(model, inputs):
    given = model(**inputs)
    tensors = [given.logits] if hasattr(given, "logits") else given if isinstance(given, tuple) else [given]
    return torch.cat([t.flatten() for t in tensors])


def linear_names(model):
    """The linear layers but the output head, by another way than the toolkit's."""
    head = getattr(model, "lm_head", None)
    kinds = ("Linear", "Conv1D")
    return {n for n, m in model.named_modules() if type(m).__name__ in kinds and m is not head}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("name", MODELS)
def test_all_linear_layers_are_quantized_and_the_rest_is_listed(name, algorithm, tmp_path):
    model, inputs = made(name)
    expected = outputs(model, inputs)
    new = quantize(copy.deepcopy(model), ALGORITHMS[algorithm](), run_fn=lambda m: outputs(m, inputs))
    layers = {n: m for n, m in new.named_modules() if isinstance(m, WeightOnlyLinear)}
    assert {n for n, m in layers.items() if not isinstance(m, QuantMatrixStack)} == linear_names(model)
    given = outputs(new, inputs)
    assert float((given - expected).norm() / expected.norm()) < 0.35
    reasons = {name for name, _ in new.quantization.reasons}
    for parameter, value in model.named_parameters():
        if sum(size > 1 for size in value.shape) > 1:
            places = {parameter, parameter.rpartition(".")[0]}
            assert places & reasons or places & set(layers), f"nothing is said of {parameter}"
    new.save(tmp_path / "m")
    assert torch.equal(outputs(load(tmp_path / "m", original_model=model), inputs), given)


@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fused_experts_are_quantized_or_the_way_to_do_it_is_told(name, algorithm):
    model, inputs = made(name)
    new = quantize(copy.deepcopy(model), ALGORITHMS[algorithm](), run_fn=lambda m: outputs(m, inputs))
    stacks = [n for n, p in model.named_parameters() if p.dim() == 3]
    assert len(stacks) == 4
    reasons = {place: why for (place, _), why in new.quantization.reasons.items()}
    for stack in stacks:
        if algorithm in ("rtn", "hqq"):
            assert isinstance(new.get_submodule(stack), QuantMatrixStack)
            assert stack not in reasons
        else:
            assert "RTNConfig() or HQQConfig()" in reasons[stack]


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("name", ["mixtral", "gpt-oss"])
def test_experts_compute_with_the_values_their_codes_stand_for(name, implementation):
    model, inputs = made(name)
    model.set_experts_implementation(implementation)
    config = RTNConfig(dtype="fp32").set_local(r".*experts.*", RTNConfig(bits=2, group_size=16))
    new = quantize(copy.deepcopy(model), config)
    stacks = {n: m for n, m in new.named_modules() if isinstance(m, QuantMatrixStack)}
    assert len(stacks) == 4
    before = outputs(model, inputs)
    for stack, module in stacks.items():
        float_values = model.get_parameter(stack).data
        matrix, found = float_values[1], module[1]
        if name == "gpt-oss":  # which has inputs first
            matrix, found = matrix.T, found.T
        expert = nn.Linear(*reversed(matrix.shape))
        expert.weight.data = matrix.clone()
        assert torch.equal(found, quantize(expert, RTNConfig(bits=2, group_size=16)).dequantized_weight())
        float_values.copy_(module.values())
    torch.testing.assert_close(outputs(new, inputs), outputs(model, inputs), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(before, outputs(new, inputs), rtol=1e-4, atol=1e-5)


def test_experts_take_another_algorithm_than_the_rest(tmp_path):
    model, inputs = made("mixtral")
    config = GPTQConfig(group_size=16).set_local(r".*experts\..*", RTNConfig(bits=8, group_size=16))
    new = quantize(copy.deepcopy(model), config, run_fn=lambda m: outputs(m, inputs))
    assert new.model.layers[0].mlp.experts.gate_up_proj.scheme.weight.dtype.name == "int8"
    assert new.model.layers[0].self_attn.q_proj.scheme.weight.dtype.name == "int4"
    new.save(tmp_path / "m")
    again = load(tmp_path / "m", original_model=model)
    assert torch.equal(outputs(again, inputs), outputs(new, inputs))
    save(new, tmp_path / "hf", format="huggingface")
    read = load(tmp_path / "hf", format="huggingface")
    torch.testing.assert_close(outputs(read, inputs), outputs(new, inputs), rtol=1e-4, atol=1e-5)
    floats = sum(p.numel() for p in model.parameters() if p.dim() == 3)
    held = sum(b.numel() * b.element_size() for n, b in again.named_buffers() if ".experts." in n)
    assert held < 1.5 * floats


class Scaled(nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 2.0


@pytest.mark.parametrize(
    "config",
    [
        DynamicQuantConfig().set_local(["0", "2"], RTNConfig(dtype="fp32")),
        FP8Config(dynamic_quantization=True, blocklist={"names": ["^0$", "^2$"]}),
        FP8Config(dynamic_quantization=True, blocklist={"names": ["^2$"], "types": ["Scaled"]}),
    ],
    ids=["rule", "blocklist", "type on the blocklist"],
)
def test_what_has_no_quantized_form_may_be_left_in_float(config):
    model = quantize(nn.Sequential(Scaled(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)).eval(), config, quiet=True)
    assert type(model[1]) is QuantLinear
    assert type(model[2]) is nn.Linear
    assert "subclass of Embedding" in model.quantization.reasons["0", "Scaled"]


def test_a_rule_for_what_has_no_quantized_form_says_why():
    model = nn.Sequential(Scaled(8, 16), nn.Linear(16, 4)).eval()
    why = "a subclass of Embedding with behaviour of its own"
    said = rf"'0' of DynamicQuantConfig matches no op of the model; '0' stays in float: {why}$"
    with pytest.raises(ConfigError, match=said):
        prepare(model, DynamicQuantConfig().set_local("0", DynamicQuantConfig()))
    with pytest.raises(ConfigError, match=r"FP8Config\.allowlist: 'Scaled' among the types matches no op"):
        prepare(model, FP8Config(allowlist={"types": ["Scaled"]}))
