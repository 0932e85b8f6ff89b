"""Products inside attention, quantized where a configuration names them."""

import copy
import importlib
import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.schemes.error import sqnr_db
from neural_compressor.torch.modules import QuantMatMul
from neural_compressor.torch.quantization import (
    FP8Config,
    RTNConfig,
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

preparation = importlib.import_module("neural_compressor.torch.quantization.preparation")
transformers = pytest.importorskip("transformers")
IDS = torch.arange(24).reshape(2, 12)


def llama(attention="eager", **more):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=attention,
        **more,
    )
    return transformers.LlamaForCausalLM(config).eval()


def products_of(model):
    return [name for name, module in model.named_modules() if isinstance(module, QuantMatMul)]


def quantized(model, config, **more):
    prepared = prepare(model, config, inplace=False, **more)
    with torch.no_grad():
        prepared(IDS)
    return convert(prepared, quiet=True)


PARTS = {
    "eager": ("matmul", "matmul_1"),
    "sdpa": ("scaled_dot_product_attention.qk", "scaled_dot_product_attention.av"),
}
CONFIGS = {
    "fp8 static": lambda: FP8Config().set_local("MatMul", FP8Config()),
    "fp8 dynamic": lambda: FP8Config(dynamic_quantization=True, allowlist={"types": ["Linear", "matmul"]}),
    "int8 static": lambda: StaticQuantConfig().set_local("MatMul", StaticQuantConfig()),
    "of a name": lambda: FP8Config(allowlist={"names": ["self_attn\\.(matmul|scaled)"]}),
}


@pytest.mark.parametrize("attention", PARTS)
@pytest.mark.parametrize("config", CONFIGS)
def test_products_of_a_language_model(attention, config, tmp_path):
    model = llama(attention)
    new = quantized(model, CONFIGS[config]())
    expected = [f"model.layers.{i}.self_attn.{part}" for i in range(2) for part in PARTS[attention]]
    assert products_of(new) == expected
    with torch.no_grad():
        out, short = new(IDS).logits, new(IDS[:, :3]).logits
        assert 15 < sqnr_db(model(IDS).logits, out) < 50
        assert sqnr_db(model(IDS[:, :3]).logits, short) > 15
        save(new, tmp_path / "model")
        loaded = load(tmp_path / "model", model)
        assert torch.equal(loaded(IDS).logits, out)
        assert products_of(loaded) == expected
        tokens = loaded.generate(IDS[:1, :4], max_new_tokens=3, do_sample=False)
    assert tokens.shape == (1, 7)
    assert products_of(model) == []


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_each_operand_is_rounded_to_fp8_exactly(dynamic):
    method = "maxabs_pcs_pow2" if dynamic else "maxabs_pow2"
    config = FP8Config(dynamic_quantization=dynamic, scale_method=method, allowlist={"types": ["MatMul"]})
    new = quantized(llama(), config)
    product = new.get_submodule("model.layers.0.self_attn.matmul")
    seen = []
    product.register_forward_hook(lambda module, args, output: seen.append((*args, output)))
    with torch.no_grad():
        new(IDS)
    a, b, output = seen[0]

    def rounded(x, largest):
        # The scale is a power of two; of the range of data a quarter of the largest number is used.
        headroom = 1 if dynamic else 4
        scale = 2.0 ** torch.ceil(torch.log2(largest * headroom / 448))
        return (x / scale).to(torch.float8_e4m3fn).float() * scale

    dims = (lambda x, dim: x.abs().amax(dim, keepdim=True)) if dynamic else (lambda x, dim: x.abs().amax())
    torch.testing.assert_close(output, rounded(a, dims(a, -1)) @ rounded(b, dims(b, -2)))


def test_products_that_are_quantized_without_data_are_not_listed_again():
    x = torch.randn(2, 4, 8)
    for names, left in ((["Linear", "matmul"], []), (["Linear"], ["matmul", "matmul_1"])):
        config = FP8Config(dynamic_quantization=True, allowlist={"types": names})
        model = convert(prepare(Attention().eval(), config, example_inputs=(x,)), quiet=True)
        assert [name for name, _ in model.quantization.reasons] == left
    single = FP8Config(dynamic_quantization=True, allowlist={"names": ["matmul_1"]})
    model = convert(prepare(Attention().eval(), single, example_inputs=(x,)), quiet=True)
    assert "example_inputs" in model.quantization.reasons["matmul", "matmul"]
    assert ("matmul_1", "matmul") not in model.quantization.reasons


def test_a_rule_for_a_block_leaves_its_products_in_float():
    new = quantized(llama(), FP8Config(allowlist={"names": ["layers.0"]}))
    assert products_of(new) == []
    reasons = {name: why for (name, _), why in new.quantization.reasons.items()}
    assert "by their type 'MatMul'" in reasons["model.layers.0.self_attn.matmul"]


def test_lists_choose_single_products():
    config = FP8Config(allowlist={"types": ["MatMul"]}, blocklist={"names": ["layers\\.1\\..*matmul"]})
    new = quantized(llama(), config)
    assert products_of(new) == ["model.layers.0.self_attn.matmul", "model.layers.0.self_attn.matmul_1"]
    assert "blocklist" in new.quantization.reasons["model.layers.1.self_attn.matmul", "MatMul"]


def test_beside_other_layers_of_another_kind():
    config = RTNConfig(group_size=16).set_local("MatMul", FP8Config())
    new = quantized(llama("sdpa"), config)
    assert len(products_of(new)) == 4
    assert new.model.layers[0].mlp.up_proj.scheme.weight.dtype.name == "int4"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return (self.query(x) @ self.key(x).mT).softmax(-1) @ x


def test_a_model_that_cannot_be_run_first_needs_example_inputs():
    with pytest.raises(ConfigError, match="give example_inputs"):
        prepare(Attention(), CONFIGS["fp8 static"]())
    model, x = Attention(), torch.randn(2, 4, 8)
    assert list(model._modules) == ["query", "key"]
    prepared = prepare(model, CONFIGS["fp8 static"](), example_inputs=x)
    prepared(x)
    assert products_of(convert(prepared, quiet=True)) == ["matmul", "matmul_1"]


def test_a_rule_that_matches_no_product_is_an_error_and_leaves_the_model_alone():
    model, x = Attention(), torch.randn(2, 4, 8)
    with pytest.raises(ConfigError, match=r"'matmul_7' .* did you mean 'matmul_1'"):
        prepare(model, FP8Config().set_local("matmul_7", FP8Config()), example_inputs=x)
    assert list(model._modules) == ["query", "key"]
    assert "forward" not in vars(model)


def fails(*_, **__):
    raise ZeroDivisionError("on purpose")


@pytest.mark.parametrize("at", ["run_fn", "prepare", "prepare_qat", "convert", "no failure, but only measured"])
def test_a_model_that_is_not_quantized_after_all_is_left_as_it_was(at, tmp_path, monkeypatch):
    model, x = Attention(), torch.randn(2, 4, 8)
    if at == "run_fn":
        with pytest.raises(Exception, match="on purpose"):
            quantize(model, CONFIGS["fp8 static"](), fails, example_inputs=x)
    elif at == "prepare":
        monkeypatch.setattr(preparation, "fp8_run", fails)
        with pytest.raises(Exception, match="on purpose"):
            prepare(model, CONFIGS["fp8 static"](), example_inputs=x)
    elif at == "prepare_qat":
        monkeypatch.setattr(preparation, "trained", fails)
        with pytest.raises(Exception, match="on purpose"):
            prepare_qat(model, CONFIGS["int8 static"](), example_inputs=x)
    elif at == "convert":
        monkeypatch.setattr(preparation.Execution, "apply", fails)
        with pytest.raises(Exception, match="on purpose"):
            quantize(model, CONFIGS["fp8 static"](), lambda m: m(x), example_inputs=x)
    else:
        config = FP8Config(mode="MEASURE", dump_stats_path=str(tmp_path / "s"), allowlist={"types": ["MatMul"]})
        prepared = prepare(model, config, example_inputs=x)
        prepared(x)
        finalize(prepared)
    assert list(model._modules) == ["query", "key"]
    assert "forward" not in vars(model)


def test_products_left_in_float_are_known(tmp_path, caplog):
    model, x = Attention().eval(), torch.randn(2, 4, 8)
    config = FP8Config(allowlist={"types": ["MatMul"]}, blocklist={"names": ["matmul_1"]})
    prepared = prepare(model, config, inplace=False, example_inputs=x)
    prepared(x)
    converted = convert(prepared, quiet=True)
    save(converted, tmp_path / "model")
    tuning = TuningConfig(config_set=config, workspace=tmp_path / "tuning")
    tuned = autotune(model, tuning, lambda m: 1.0, run_fn=lambda m: m(x), example_inputs=x, quiet=True)
    for new in (converted, load(tmp_path / "model", model), tuned):
        assert products_of(new) == ["matmul"]
        new(x)
    assert "was not seen" not in caplog.text


class TwoWays(nn.Module):
    """Takes one of two products first, by its input."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        y = self.fc(x)
        return y.mT @ y if len(x) == 1 else y @ y.mT


def test_autotune_quantizes_the_product_that_the_rule_named(tmp_path):
    model, x, other = TwoWays().eval(), torch.randn(2, 4, 8), torch.randn(1, 4, 8)
    model.dummy_inputs = x
    tuning = TuningConfig(config_set=FP8Config(allowlist={"names": ["matmul"]}), workspace=tmp_path)

    def run(m):
        m(other)  # what the tuning sees first goes another way
        m(x)

    best = autotune(model, tuning, lambda m: 1.0, run_fn=run, quiet=True)
    assert products_of(best) == ["matmul"]
    with torch.no_grad():
        assert torch.equal(best(other), model(other))
        assert not torch.equal(best(x), model(x))


SOURCE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
{lines}
    def forward(self, x):{more}
        return self.of(self.fc(x))

    def of(self, y):
        return {product}
"""


def model_from(lines="", more="", product="y @ y.mT"):
    scope = {"nn": nn, "__name__": "written_by_the_test"}
    exec(SOURCE.format(lines=lines, more=more, product=product), scope)
    torch.manual_seed(0)
    return scope["Model"]().eval()


def test_a_file_for_other_code_is_refused(tmp_path):
    model, x = model_from(), torch.randn(2, 4, 8)
    prepared = prepare(model, FP8Config(allowlist={"types": ["MatMul"]}), inplace=False, example_inputs=x)
    prepared(x)
    new = convert(prepared, quiet=True)
    save(new, tmp_path / "model")
    moved = load(tmp_path / "model", model_from(lines="\n" * 7))
    assert torch.equal(moved(x), new(x))  # what stands around a function is nothing to it
    for change in ({"more": "\n"}, {"product": "y.abs() @ y.mT"}):
        with pytest.raises(FormatError, match=r"1 products \(matmul\) .* would run in float: .* another version"):
            load(tmp_path / "model", model_from(**change))


def test_autotune_tries_products(tmp_path):
    model, x = Attention().eval(), torch.randn(2, 4, 8)
    tuning = TuningConfig(config_set=FP8Config(allowlist={"types": ["MatMul"]}), workspace=tmp_path)
    best = autotune(model, tuning, lambda m: 1.0, run_fn=lambda m: m(x), example_inputs=x, quiet=True)
    assert products_of(best) == ["matmul", "matmul_1"]
    assert list(model._modules) == ["query", "key"]


def test_training_rounds_products():
    model, x = Attention(), torch.randn(2, 4, 8)
    prepared = prepare_qat(model, CONFIGS["int8 static"](), example_inputs=x)
    prepared(x).square().sum().backward()
    assert prepared.query.parametrizations.weight.original.grad is not None
    assert products_of(convert(prepared, quiet=True)) == ["matmul", "matmul_1"]


@pytest.mark.parametrize("attention", PARTS)
def test_what_a_cache_holds_in_fp8_is_rounded_once(attention):
    kept = FP8Config(kv_cache=True, allowlist={"names": ["lm_head"]})
    both = FP8Config(kv_cache=True, allowlist={"types": ["MatMul"]}, scale_method="maxabs_arbitrary")
    new = quantized(llama(attention), both)
    operands, name = [], f"model.layers.0.self_attn.{PARTS[attention][0]}"
    product = new.get_submodule(name)
    own = product._float_op
    product._float_op = lambda a, b: operands.append((a, b)) or own(a, b)
    given = []
    product.register_forward_hook(lambda module, args, output: given.append(args))
    with torch.no_grad():
        new(IDS)
    assert torch.equal(operands[0][1], given[0][1])  # keys come from the cache
    assert not torch.equal(operands[0][0], given[0][0])
    assert torch.equal(
        quantized(llama(attention), kept).model.layers[0].self_attn.k_scale, new.model.layers[0].self_attn.k_scale
    )


def test_measuring_and_quantizing_in_runs_of_their_own(tmp_path):
    script = (
        "import sys, torch; sys.path.insert(0, {here!r})\n"
        "from test_function_products import IDS, FP8Config, convert, finalize, llama, prepare, products_of\n"
        "config = FP8Config(mode={mode!r}, dump_stats_path={stats!r}, allowlist={{'types': ['MatMul', 'Linear']}})\n"
        "model = llama('sdpa')\n"
        "if {mode!r} == 'MEASURE':\n"
        "    prepare(model, config); model(IDS); finalize(model)\n"
        "else:\n"
        "    new = convert(model, config, quiet=True)\n"
        "    print(len(products_of(new)), float(new(IDS).logits.double().sum()))\n"
    )
    here, printed = str(__file__).rpartition("/")[0], []
    for mode in ("MEASURE", "QUANTIZE", "LOAD"):
        code = script.format(here=here, mode=mode, stats=str(tmp_path / "stats"))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        printed.append(done.stdout.strip())
    count, total = printed[1].split()
    assert printed[2].split()[0] == count == "4"
    assert float(printed[2].split()[1]) == pytest.approx(float(total), rel=1e-4)
    with torch.no_grad():
        whole = quantized(llama("sdpa"), FP8Config(allowlist={"types": ["MatMul", "Linear"]}))
        assert float(total) == pytest.approx(float(whole(IDS).logits.double().sum()), rel=1e-4)


def test_engines_have_no_place_for_quantized_products(tmp_path):
    new = quantized(llama(), CONFIGS["fp8 static"]())
    with pytest.raises(FormatError, match="MatMul"):
        save(new, tmp_path / "model", format="huggingface")


def test_a_file_whose_products_the_model_does_not_have(tmp_path):
    new = quantized(llama(), CONFIGS["fp8 static"]())
    save(new, tmp_path / "model")
    other = llama()
    other.model.layers[0].self_attn.matmul = nn.Identity()
    with pytest.raises(FormatError, match="matmul"):
        load(tmp_path / "model", other)
    stored = json.loads((tmp_path / "model" / "qconfig.json").read_text())["structure"]["products"]
    assert stored["model.layers.0.self_attn.matmul"][0] == "matmul"


def finalize(model):
    from neural_compressor.torch.quantization import finalize_calibration

    return finalize_calibration(model)


def test_compiled():
    new = quantized(llama(), CONFIGS["fp8 static"]())
    with torch.no_grad():
        expected = copy.deepcopy(new)(IDS).logits
        torch.testing.assert_close(torch.compile(new, backend="eager")(IDS).logits, expected)
