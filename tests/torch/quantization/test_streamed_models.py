"""Models larger than memory: weights come from the checkpoint block by block."""

import json
import weakref

import pytest
import torch

from neural_compressor import PostTrainingQuantConfig, quantization
from neural_compressor.errors import ConfigError, FormatError
from neural_compressor.torch import load_empty_model
from neural_compressor.torch.files.streaming import WeightSource
from neural_compressor.torch.methods.weight_only import block_quantizer, lockstep, quantizer
from neural_compressor.torch.methods.weight_only.methods import LayerMethod
from neural_compressor.torch.modules import WeightOnlyLinear
from neural_compressor.torch.quantization import GPTQConfig, HQQConfig, RTNConfig, quantize
from neural_compressor.utils.pytorch import load

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "float")
    return tmp_path / "float"


@pytest.mark.parametrize(
    "make",
    [
        lambda path: RTNConfig(bits=4, group_size=32, model_path=path, use_layer_wise=True),
        lambda path: GPTQConfig(bits=4, group_size=32, model_path=path, use_layer_wise=True),
        lambda path: GPTQConfig(bits=4, group_size=32, model_path=path, use_layer_wise=True, correct_upstream=True),
        lambda path: RTNConfig(bits=4, group_size=32, use_layer_wise=True),
    ],
    ids=["rtn", "gptq", "gptq-upstream", "the-folder-it-was-made-from"],
)
def test_the_same_model_comes_out(folder, make):
    ids = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))
    config = make(str(folder))
    streamed = quantize(load_empty_model(folder), config, run_fn=lambda m: m(ids))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    whole = quantize(loaded, config, run_fn=lambda m: m(ids))
    with torch.no_grad():
        assert torch.equal(streamed(ids).logits, whole(ids).logits)


def test_an_empty_model_that_knows_no_folder_is_refused(folder):
    model = load_empty_model(folder)
    model.config._name_or_path = ""
    with pytest.raises(ConfigError, match="model_path"):
        quantize(model, HQQConfig())


def test_other_values_of_what_the_folder_says(folder):
    model = load_empty_model(folder, torchscript=True, max_position_embeddings=16)
    assert model.config.max_position_embeddings == 16
    with pytest.raises(ConfigError, match="no setting 'max_positions'"):
        load_empty_model(folder, max_positions=16)


def test_fit_reads_the_weights_of_an_empty_model(folder, tmp_path):
    ids = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))
    rule = {".*": {"weight": {"bits": 4, "group_size": 32, "algorithm": "RTN"}}}
    conf = PostTrainingQuantConfig(approach="weight_only", op_type_dict=rule, recipes={"layer_wise_quant": True})
    empty = load_empty_model(folder)
    made = quantization.fit(empty, conf, [ids], eval_func=lambda model: 0.1, workspace=tmp_path / "work", quiet=True)
    assert isinstance(made.model.model.layers[0].mlp.up_proj, WeightOnlyLinear)
    made.save(tmp_path / "out")
    loaded = load(tmp_path / "out", empty, weight_only=True, layer_wise=True)
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, made.model(ids).logits)
    with pytest.raises(ConfigError, match="history_cfg"):
        load(tmp_path / "out", empty, history_cfg={})


def test_a_checkpoint_of_another_model_is_refused(folder, tmp_path):
    settings = json.loads((folder / "config.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({**settings, "intermediate_size": 128}))
    with pytest.raises(FormatError, match="shape"):
        quantize(load_empty_model(other), RTNConfig(model_path=str(folder)))


@pytest.mark.parametrize("method", [RTNConfig, GPTQConfig])
def test_float_weights_are_held_for_one_block_at_a_time(folder, monkeypatch, method):
    ids = torch.randint(0, 64, (2, 16))
    fill, held = WeightSource.fill, []

    def counting(source, model, *args, **kwargs):
        fill(source, model, *args, **kwargs)
        weights = [p for n, p in model.named_parameters() if n.startswith("model.layers.") and p.dim() == 2]
        held.append(sum(p.numel() for p in weights if not p.is_meta))

    monkeypatch.setattr(WeightSource, "fill", counting)
    config = method(bits=4, group_size=32, model_path=str(folder))
    model = quantize(load_empty_model(folder), config, run_fn=lambda m: m(ids))
    block = 4 * 64 * 64 + 3 * 64 * 96
    assert 0 < max(held) <= block, "the floats of a block are gone before those of the next are read"
    assert not any(p.dim() == 2 for n, p in model.named_parameters() if n.startswith("model.layers."))


# Of seven layers: without q, k, v; without o; without gate and up; without down.
FLOATS_LEFT = {"at once": ({}, [0, 0, 0, 0]), "true sequential": ({"true_sequential": True}, [4, 3, 1, 0])}


@pytest.mark.parametrize(("options", "expected"), FLOATS_LEFT.values(), ids=FLOATS_LEFT)
def test_float_weights_go_before_the_layers_of_a_block_are_quantized(folder, monkeypatch, options, expected):
    ids = torch.randint(0, 64, (2, 16))
    fill, run, weights, left = WeightSource.fill, LayerMethod.quantize, [], []

    def remembering(source, model, *args, **kwargs):
        fill(source, model, *args, **kwargs)
        known = [ref() for ref in weights]
        for name, weight in model.named_parameters():
            if "_proj" in name and not weight.is_meta and not any(weight is k for k in known):
                weights.append(weakref.ref(weight))

    def counting(method, *args, **kwargs):
        left.append(sum(ref() is not None for ref in weights))
        return run(method, *args, **kwargs)

    monkeypatch.setattr(WeightSource, "fill", remembering)
    monkeypatch.setattr(LayerMethod, "quantize", counting)
    config = GPTQConfig(bits=4, group_size=32, model_path=str(folder), **options)
    quantize(load_empty_model(folder), config, run_fn=lambda m: m(ids))
    assert left == expected * 3


def test_layers_of_one_input_with_different_bits_are_read_again(folder):
    ids = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))

    def config():
        four = GPTQConfig(bits=4, group_size=32, model_path=str(folder))
        return four.set_local(".*k_proj", GPTQConfig(bits=8, group_size=32, model_path=str(folder)))

    streamed = quantize(load_empty_model(folder), config(), run_fn=lambda m: m(ids))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    whole = quantize(loaded, config(), run_fn=lambda m: m(ids))
    with torch.no_grad():
        assert torch.equal(streamed(ids).logits, whole(ids).logits)


def test_a_block_is_run_through_in_bfloat16_with_the_same_result(folder, monkeypatch):
    for module in (block_quantizer, lockstep):
        monkeypatch.setattr(module, "gains_from_bf16", lambda block: True)
    monkeypatch.setattr(quantizer, "is_fast_at_bf16", lambda device: True)
    ids = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))
    config = GPTQConfig(bits=4, group_size=32, model_path=str(folder), amp=True)
    collect, kinds = block_quantizer.collect, []

    def looking(block, layers, *args, **kwargs):
        weights = [(name, p) for name, p in block.named_parameters() if "_proj" in name]
        kinds.append(["." if p.dtype == torch.bfloat16 else name.split(".")[1][0] for name, p in weights])
        return collect(block, layers, *args, **kwargs)

    monkeypatch.setattr(block_quantizer, "collect", looking)
    streamed = quantize(load_empty_model(folder), config, run_fn=lambda m: m(ids))
    assert ["".join(kind) for kind in kinds] == ["qkvogud", ".......", ".......", "......."] * 3
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    whole = quantize(loaded, config, run_fn=lambda m: m(ids))
    # Sums of bfloat16 products are not the same bits on every CPU, so that codes may differ: what is lost may not.
    exact = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = exact(ids).logits
        ours, theirs = ((model(ids).logits - expected).norm() for model in (streamed, whole))
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0)


def test_no_kernel_keeps_a_layout_of_its_own(folder):
    ids = torch.randint(0, 64, (1, 2))
    config = GPTQConfig(bits=4, group_size=32, model_path=str(folder))
    model = quantize(load_empty_model(folder), config, run_fn=lambda m: m(ids))
    layers = [m for m in model.modules() if isinstance(m, WeightOnlyLinear)]
    if layers[0].kernel_for(2) == "dequantize":
        pytest.skip("no low-bit kernel takes this layer here")
    assert not any(layer._prepacked != [] for layer in layers)
    model(ids)
    assert any(layer._prepacked != [] for layer in layers)  # layers that read one input have one layout together
