"""``hadamard="folded"``: quantized models that any reader runs, as the rotation is in their weights."""

import copy
import json

import pytest
import torch

from neural_compressor.errors import CalibrationError, ConfigError, QuantizationError
from neural_compressor.schemes import Pass
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    AWQConfig,
    DynamicQuantConfig,
    FP8Config,
    GPTQConfig,
    HQQConfig,
    MXQuantConfig,
    RTNConfig,
    SmoothQuantConfig,
    StaticQuantConfig,
    TuningConfig,
    autotune,
    convert,
    load,
    prepare,
    prepare_qat,
    quantize,
    save,
)
from neural_compressor.torch.quantization.plans import plan_for

transformers = pytest.importorskip("transformers")
WIDTH = 64


def llama(tied=True):
    """A Llama with gains that are not one."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4) if parameter.dim() == 2 else parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def tokens(count=4):
    return [torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(i)) for i in range(count)]


def run(model):
    for ids in tokens():
        model(ids)


@torch.no_grad()
def logits(model):
    for layer in model.modules():
        if isinstance(layer, WeightOnlyLinear):
            layer.exact = True
    return model(tokens()[0], use_cache=False).logits


CONFIGS = {
    "rtn": RTNConfig(bits=4, group_size=32, hadamard="folded"),
    "gptq": GPTQConfig(bits=4, group_size=32, hadamard="folded"),
    "awq": AWQConfig(bits=4, group_size=32, hadamard="folded"),
    "hqq": HQQConfig(bits=4, group_size=32, hadamard="folded"),
    "autoround": AutoRoundConfig(bits=4, group_size=32, iters=2, hadamard="folded"),
    "static": StaticQuantConfig(hadamard="folded"),
    "dynamic": DynamicQuantConfig(hadamard="folded"),
    "smooth": SmoothQuantConfig(hadamard="folded"),
    "fp8": FP8Config(hadamard="folded"),
    "fp8-dynamic": FP8Config(hadamard="folded", dynamic_quantization=True),
    "mx": MXQuantConfig(w_dtype="fp4", act_dtype="fp4", hadamard="folded"),
}

INT8 = ("static", "dynamic", "smooth")


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_takes_it(name):
    model = llama()
    expected, ids = logits(model), tokens()[0]
    quantized = quantize(model, CONFIGS[name], run_fn=run, quiet=True)
    assert quantized.quantization.plan.step("rotate") == Pass("rotate")
    assert bool((quantized.model.norm.weight == 1).all())
    with torch.no_grad():
        found = quantized(ids, use_cache=False).logits
    assert float((found - expected).norm() / expected.norm()) < (0.15 if name in INT8 else 0.5)


def test_plain_transformers_reads_the_file(tmp_path):
    model = quantize(llama(), CONFIGS["gptq"], run_fn=run, quiet=True)
    expected = logits(model)
    save(model, tmp_path / "packed", format="huggingface")
    stored = json.loads((tmp_path / "packed" / "config.json").read_text())
    assert stored["tie_word_embeddings"] is False
    pytest.importorskip("compressed_tensors")
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "packed").eval()
    torch.testing.assert_close(logits(plain), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    ours = load(tmp_path / "packed", format="huggingface")
    torch.testing.assert_close(logits(ours), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_our_format_loads_into_a_model_whose_head_is_tied(tmp_path):
    original = llama()
    before = copy.deepcopy(original.state_dict())
    model = quantize(llama(), CONFIGS["rtn"], run_fn=run, quiet=True)
    model.save(tmp_path / "ours")
    loaded = load(tmp_path / "ours", original_model=original)
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.lm_head.weight is not loaded.model.embed_tokens.weight
    assert not loaded.config.tie_word_embeddings
    assert all(torch.equal(before[key], value) for key, value in original.state_dict().items())
    assert original.config.tie_word_embeddings


def test_the_rest_is_turned_at_run_time_where_that_is_asked_for():
    config = GPTQConfig(bits=4, group_size=32, hadamard="folded")
    config.set_local(r".*\.down_proj", GPTQConfig(bits=4, group_size=32, hadamard=True))
    model = quantize(llama(), config, run_fn=run, quiet=True)
    turned = {n for n, m in model.named_modules() if isinstance(m, WeightOnlyLinear) and m.input_rotation is not None}
    assert turned == {f"model.layers.{i}.mlp.down_proj" for i in range(2)}


def test_configurations_say_it_in_plain_data():
    config = GPTQConfig(hadamard=[False, True, "folded"])
    found = [plan_for(llama(), each)[0] for each in config.expand()]
    assert [plan.step("rotate") is not None for plan in found] == [False, False, True]
    options = [next(iter(plan.values())).method.options.get("hadamard", False) for plan in found]
    assert options == [False, True, False]
    assert GPTQConfig.from_dict(CONFIGS["gptq"].to_dict()).hadamard == "folded"


@pytest.mark.parametrize("value", ["fold", 1, None, "true"])
def test_other_values_are_refused(value):
    with pytest.raises(ConfigError, match=r"hadamard: got .*'folded'"):
        GPTQConfig(hadamard=value)
    with pytest.raises(ConfigError, match=r"hadamard: got .*'folded'"):
        AWQConfig(hadamard=True)


def test_statistics_in_files_are_of_the_model_as_it_came(tmp_path):
    with pytest.raises(ConfigError, match=r"FP8Config\.hadamard.*mode='AUTO'"):
        FP8Config(hadamard="folded", mode="MEASURE")
    with pytest.raises(ConfigError, match=r"FP8Config\.hadamard.*leave dump_stats_path out"):
        FP8Config(hadamard="folded", dump_stats_path=str(tmp_path / "measure"))


def test_it_comes_before_smoothing():
    plan, _ = plan_for(llama(), SmoothQuantConfig(hadamard="folded"))
    names = [step.name for step in plan.passes]
    assert names.index("rotate") < names.index("smooth")


def test_a_training_does_not_run_it():
    with pytest.raises(ConfigError, match=r"the pass rotate\(\) is for quantization after training"):
        prepare_qat(llama(), StaticQuantConfig(hadamard="folded"))


def test_autotune_tries_it_and_leaves_the_model_tied(tmp_path):
    model = llama()
    expected = logits(model)
    tuned = autotune(
        model,
        TuningConfig(
            config_set=RTNConfig(bits=4, group_size=32, hadamard=["folded", False]), max_trials=2, workspace=tmp_path
        ),
        eval_fn=lambda each: 2 - float((logits(each) - expected).norm() / expected.norm()),
        run_fn=run,
        quiet=True,
    )
    tried = [each.plan.step("rotate") is not None for each in tuned.tuning.trials]
    assert tried == [True, False]
    assert model.config.tie_word_embeddings


def test_it_needs_data():
    assert CONFIGS["rtn"].needs_calibration
    with pytest.raises(CalibrationError, match=r"rotate.*run the prepared model on data before convert"):
        convert(llama(), CONFIGS["rtn"], quiet=True)


def test_a_model_that_cannot_be_turned_stays_as_it_was(stack, run):
    before = copy.deepcopy(stack.state_dict())
    stack.lm_head.register_forward_pre_hook(lambda module, args: (torch.tanh(args[0]),))
    with pytest.raises(QuantizationError, match=r"cannot be folded into a Stack.*tanh"):
        quantize(stack, RTNConfig(hadamard="folded"), run_fn=run, quiet=True)
    assert all(torch.equal(before[key], value) for key, value in stack.state_dict().items())


def test_a_model_without_values_is_refused_before_any_work(tmp_path):
    with torch.device("meta"):
        empty = llama_on_meta()
    with pytest.raises(ConfigError, match=r"has no values \(meta device\).*hadamard=True"):
        prepare(empty, GPTQConfig(hadamard="folded", model_path=str(tmp_path)))


def llama_on_meta():
    return transformers.LlamaForCausalLM(llama().config)
