"""Data that AutoRoundConfig names, and the files that it has written."""

import copy
import json
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

from neural_compressor.errors import ConfigError, NeuralCompressorError
from neural_compressor.torch import accelerator
from neural_compressor.torch.quantization import (
    AutoRoundConfig,
    TuningConfig,
    autotune,
    convert,
    load,
    prepare,
    quantize,
)
from neural_compressor.torch.quantization.autoround_runs import NamedData

transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")

TEXTS = ["a text of a few words, "] * 12
SMALL = {"bits": 4, "group_size": 32, "iters": 2, "nsamples": 4, "seqlen": 16}


class Letters:
    name_or_path = "letters"

    def __call__(self, text):
        return {"input_ids": [ord(letter) % 64 for letter in text]}

    def save_pretrained(self, folder):
        Path(folder, "letters.json").write_text("{}")


def letters(text):
    return Letters()(text)


@pytest.fixture
def llama():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 64}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config).eval()


def ids():
    return torch.tensor([[ord(letter) % 64 for letter in "".join(TEXTS)][:64]]).reshape(4, 16)


@pytest.mark.parametrize("name", ["fp16", torch.bfloat16])
def test_scales_are_held_in_16_bits(llama, tmp_path, name):
    fields = {**SMALL, "dataset": [ids()]}
    expected = convert(prepare(copy.deepcopy(llama), AutoRoundConfig(**fields)), quiet=True)
    config = AutoRoundConfig(**fields, scale_dtype=name, output_dir=str(tmp_path))
    assert config.identity != AutoRoundConfig(**fields).identity
    found = convert(prepare(copy.deepcopy(llama), config), quiet=True)
    kind = torch.float16 if name == "fp16" else name
    layers = [model.model.layers[1].mlp.down_proj for model in (found, expected)]
    assert layers[0].weight_scale.dtype == kind
    assert torch.equal(layers[0].weight_scale, layers[1].weight_scale.to(kind))
    assert torch.equal(layers[0].weight_packed, layers[1].weight_packed)
    with torch.no_grad():
        assert torch.allclose(load(str(tmp_path), format="huggingface")(ids()).logits, found(ids()).logits, atol=1e-2)


def test_a_model_is_not_lost_for_scales_that_do_not_fit(llama, caplog):
    with torch.no_grad():
        llama.model.layers[1].mlp.down_proj.weight.mul_(1e-9)
    found = convert(prepare(llama, AutoRoundConfig(**SMALL, dataset=[ids()], scale_dtype="fp16")), quiet=True)
    assert "not all scales are in fp16: layer 'model.layers.1.mlp.down_proj'" in caplog.text
    assert found.model.layers[1].mlp.down_proj.weight_scale.dtype == torch.float32


def test_scales_that_are_no_floats_have_no_type_of_floats(llama):
    assert AutoRoundConfig(scale_dtype="fp32").identity == AutoRoundConfig().identity
    for wrong in ({"act_bits": 8}, {"scheme": "MXFP4"}, {"super_bits": 6, "super_group_size": 8}):
        with pytest.raises(ConfigError, match="scale_dtype"):
            prepare(llama, AutoRoundConfig(**wrong, scale_dtype="fp16"))


def test_data_that_is_named_is_that_which_runs(llama, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(TEXTS))
    expected = quantize(copy.deepcopy(llama), AutoRoundConfig(**SMALL), run_fn=lambda model: model(ids()), quiet=True)
    for dataset in (str(tmp_path / "texts.txt"), TEXTS, [ids()], [{"input_ids": ids()}]):
        config = AutoRoundConfig(**SMALL, tokenizer=Letters(), dataset=dataset)
        found = convert(prepare(copy.deepcopy(llama), config), quiet=True)
        layer = found.model.layers[1].mlp.down_proj
        assert torch.equal(layer.weight_packed, expected.model.layers[1].mlp.down_proj.weight_packed)
    best = autotune(llama, TuningConfig(config_set=[config], workspace=str(tmp_path)), lambda _: 1.0, quiet=True)
    assert best.tuning.best.plan


@pytest.mark.parametrize(
    ("name", "method"),
    [("auto_gptq", "gptq"), ("auto_round", "gptq"), ("auto_awq", "awq"), ("llm_compressor", "compressed-tensors")],
)
def test_files_are_written(llama, tmp_path, name, method):
    folder = str(tmp_path / "out")
    named = {"tokenizer": Letters(), "dataset": TEXTS, "export_format": name, "output_dir": folder}
    config = AutoRoundConfig(**SMALL, **named, use_sym=method != "awq")
    found = convert(prepare(llama, config), quiet=True)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["quantization_config"]["quant_method"] == method
    assert (tmp_path / "out" / "letters.json").is_file()
    with torch.no_grad():
        assert (load(folder, format="huggingface")(ids()).logits - found(ids()).logits).abs().max() < 0.02


@pytest.mark.parametrize(
    ("scheme", "data", "format"),
    [("MXFP4", None, "mxfp4"), ("MXFP8", None, "mxfp8"), ("NVFP4", [ids()], "nvfp4")],
)
def test_formats_of_blocks_are_written_without_training(llama, tmp_path, scheme, data, format):
    folder = str(tmp_path / "out")
    config = AutoRoundConfig(
        tokenizer=Letters(), iters=0, scheme=scheme, dataset=data, export_format="auto_round", output_dir=folder
    )
    found = convert(prepare(llama, config), quiet=True)
    written = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert written["config_groups"]["group_0"]["format"] == f"{format}-pack-quantized" or format == "mxfp8"
    with torch.no_grad():
        assert torch.equal(load(folder, format="huggingface")(ids()).logits, found(ids()).logits)


def test_the_best_of_several_budgets_is_written(llama, tmp_path):
    folder, groups = str(tmp_path / "out"), [["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj"]]
    config = AutoRoundConfig(
        iters=0,
        target_bits=[5, 8.25],
        options=["MXFP4", "MXFP8"],
        shared_layers=groups,
        export_format="auto_round",
        output_dir=folder,
    )
    assert [each.target_bits for each in config.expand()] == [5.0, 8.25]
    with torch.no_grad():
        exact = llama(ids()).logits

    @torch.no_grad()
    def closeness(model):
        return -float((model(ids()).logits - exact).square().mean())

    tried = TuningConfig(config_set=[config], tolerable_loss=-1, max_trials=2, workspace=str(tmp_path / "work"))
    best = autotune(llama, tried, closeness, quiet=True)
    kinds = {op.weight.dtype.name for op in best.quantization.plan.values()}
    assert kinds == {"mxfp8_e4m3"}
    with torch.no_grad():
        assert torch.equal(load(folder, format="huggingface")(ids()).logits, best(ids()).logits)


def test_scales_of_a_cache_are_written(llama, tmp_path):
    named = {"tokenizer": Letters(), "dataset": TEXTS, "output_dir": str(tmp_path / "out"), "static_kv_dtype": "fp8"}
    convert(prepare(llama, AutoRoundConfig(**SMALL, **named)), quiet=True)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["quantization_config"]["kv_cache_scheme"]["num_bits"] == 8


def test_what_cannot_be_had_is_said(llama, tmp_path):
    for fields, said in [
        ({"dataset": "NeelNanda/pile-10k"}, "nothing is downloaded"),
        ({"export_format": "gguf:q4_k_m"}, "types that bits and group_size say"),
        ({"export_format": "itrex"}, "not written here"),
        ({"static_kv_dtype": "int8"}, "expected 'fp8'"),
    ]:
        with pytest.raises(ConfigError, match=said):
            AutoRoundConfig(**fields)
    for config, said in [
        (AutoRoundConfig(dataset=TEXTS), "pass tokenizer="),
        (AutoRoundConfig(dataset=TEXTS, static_kv_dtype="fp8"), "give output_dir"),
        (AutoRoundConfig(output_dir="x", static_kv_dtype="fp8"), "give dataset"),
        (AutoRoundConfig().set_local("lm_head", AutoRoundConfig(output_dir="x")), "over the whole model"),
    ]:
        with pytest.raises(ConfigError, match=said):
            prepare(llama, config)
        assert not hasattr(llama, "_prepared")  # it is the float model that it was
    several = [AutoRoundConfig(output_dir="x"), AutoRoundConfig(output_dir="y")]
    for configs, said in [([AutoRoundConfig(scale_dtype="fp16")], "of convert"), (several, "one model is written")]:
        with pytest.raises(ConfigError, match=said):
            autotune(llama, TuningConfig(config_set=configs), lambda _: 1.0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"export_format": "awq", "bits": 8}, "takes 4 bits"),
        ({"export_format": "gptq", "bits": 5}, "takes 2, 3, 4 or 8 bits"),
        ({"export_format": "fp8"}, "cannot be stored as fp8"),
        ({"layer_config": {"model.layers.0.self_attn.q_proj": {"bits": 8}}}, "quantized alike"),
        ({"export_format": "gptq", "static_kv_dtype": "fp8", "dataset": [ids()]}, "no scales of a cache"),
        ({"export_format": "gguf", "static_kv_dtype": "fp8", "dataset": [ids()]}, "no scales of a cache"),
        ({"output_dir": "file/below"}, "cannot be written"),
        ({"output_dir": "file/below", "export_format": "gguf"}, "cannot be written"),
        ({"output_dir": "file"}, "no folder"),
        ({"output_dir": "float"}, "not quantized"),
    ],
)
def test_files_that_cannot_be_written_are_refused_beforehand(llama, tmp_path, monkeypatch, fields, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    llama.save_pretrained("float")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(NeuralCompressorError, match=said):
        prepare(llama, AutoRoundConfig(**{"output_dir": "out", **SMALL, **fields}))
    assert not hasattr(llama, "_prepared")
    assert sorted(tmp_path.iterdir()) == before


def test_a_model_is_not_lost_with_its_files(llama, tmp_path, caplog):
    config = AutoRoundConfig(**SMALL, dataset=[ids()], output_dir=str(tmp_path / "out"))
    prepared = prepare(llama, config)
    (tmp_path / "out").touch()
    model = convert(prepared, quiet=True)
    assert model.model.layers[0].mlp.down_proj.weight_packed.numel()
    assert "is no folder" in caplog.text


def test_it_is_written_down_as_far_as_it_can():
    config = AutoRoundConfig(tokenizer=Letters(), dataset=TEXTS, output_dir="out")
    again = AutoRoundConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert (again.tokenizer, again.dataset, again.output_dir) == ("letters", tuple(TEXTS), "out")
    assert config.identity == AutoRoundConfig().identity
    assert AutoRoundConfig(bits=[4, 8], dataset=TEXTS).identity == AutoRoundConfig(bits=[4, 8]).identity
    assert [each.dataset is config.dataset for each in (config.model_copy(deep=True), *config.expand())] == [True, True]
    for batches in ([ids()], torch.utils.data.DataLoader(ids())):
        with pytest.raises(ConfigError, match="batches cannot be written down"):
            AutoRoundConfig(dataset=batches).to_dict()


def test_paths_are_written_as_text(tmp_path):
    (tmp_path / "texts.txt").write_text("".join(TEXTS))
    written = AutoRoundConfig(tokenizer=tmp_path, dataset=tmp_path / "texts.txt").to_dict()
    assert (written["tokenizer"], written["dataset"]) == (str(tmp_path), str(tmp_path / "texts.txt"))


@pytest.mark.parametrize(
    "other",
    [{"dataset": [ids() + 1]}, {"tokenizer": Letters()}, {"nsamples": 2}, {"seqlen": 8}],
    ids=lambda fields: next(iter(fields)),
)
def test_candidates_are_calibrated_on_the_same_data(llama, tmp_path, other):
    named = {**SMALL, "tokenizer": letters, "dataset": [ids()]}

    def tuned(*configs, **more):
        settings = TuningConfig(config_set=list(configs), workspace=str(tmp_path))
        return autotune(llama, settings, lambda _: 1.0, quiet=True, **more)

    with pytest.raises(ConfigError, match="calibrated on the same data"):
        tuned(AutoRoundConfig(**named), AutoRoundConfig(**{**named, **other}))
    with pytest.raises(ConfigError, match=r"run_fn and AutoRoundConfig\.dataset both give data"):
        tuned(AutoRoundConfig(**named), run_fn=lambda model: model(ids()))


def test_data_that_is_named_runs_where_the_model_is():
    config = AutoRoundConfig(dataset=[torch.zeros(1, 4)])
    with FakeTensorMode(allow_non_fake_inputs=True):  # refuses to compute with tensors of two devices
        model = torch.nn.PReLU()
        model.weight = torch.nn.Parameter(torch.empty(1, device="cuda"))
        NamedData.of(config)(model)


def there_are(monkeypatch, *kinds):
    monkeypatch.delenv(accelerator.VARIABLE, raising=False)
    monkeypatch.setattr(accelerator, "_KINDS", {kind: (lambda kind=kind: kind in kinds) for kind in accelerator._KINDS})


@pytest.mark.parametrize("field", ["device_map", "device"])
@pytest.mark.parametrize("name", ["cpu", "auto", torch.device("cpu"), {"": "cpu"}])
def test_a_model_is_quantized_on_the_device_that_is_named(llama, monkeypatch, field, name):
    there_are(monkeypatch, "cpu")
    model = quantize(llama, AutoRoundConfig(**SMALL, dataset=[ids()], **{field: name}), quiet=True)
    assert model.model.layers[0].mlp.down_proj.weight_packed.device.type == "cpu"


def test_a_model_is_moved_before_it_is_prepared(monkeypatch):
    there_are(monkeypatch, "cuda", "cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    model, moved = torch.nn.Sequential(torch.nn.Linear(32, 32)), []
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, device: moved.append((self is model, device)) or self)
    for name in (1, "1", "cuda:1", torch.device("cuda", 1)):
        prepare(model, AutoRoundConfig(group_size=32, device_map=name), inplace=False)
    assert moved == [(False, torch.device("cuda", 1))] * 4
    with pytest.raises(ConfigError, match=r"'cuda:2'.*there are 2"):
        prepare(model, AutoRoundConfig(device_map="cuda:2"))


def test_a_device_that_is_not_there_and_several_are_errors(llama, monkeypatch):
    there_are(monkeypatch, "cpu")
    for name, said in [("cuda", "machine has none"), (0, "number of an accelerator"), ("tpu", "no device known")]:
        with pytest.raises(ConfigError, match=rf"AutoRoundConfig\.device_map: .*{said}"):
            prepare(llama, AutoRoundConfig(device_map=name))
    for several in ({"model": 0, "lm_head": "cpu"}, "0,1"):
        with pytest.raises(ConfigError, match="on one device"):
            AutoRoundConfig(device_map=several)
    with pytest.raises(ConfigError, match="expected a device"):
        AutoRoundConfig(device_map=1.5)
    with pytest.raises(ConfigError, match="give one of them"):
        AutoRoundConfig(device_map="cpu", device="cpu")


@pytest.mark.parametrize("names", ["model.layers.1", ["model.layers.1"], [["model.layers.1"]]])
def test_layers_inside_named_blocks_are_quantized(llama, names):
    model = quantize(llama, AutoRoundConfig(**SMALL, dataset=[ids()], to_quant_block_names=names), quiet=True)
    found = {name for name, _ in model.quantization.plan}
    assert all(name.startswith("model.layers.1.") for name in found)
    assert len(found) == 7  # the linear layers of one block


def test_names_of_blocks_that_are_none_are_errors(llama):
    with pytest.raises(ConfigError, match="matches no op"):
        prepare(llama, AutoRoundConfig(to_quant_block_names="model.layers, visual.blocks"))
    for wrong in ("", 3, [[]]):
        with pytest.raises(ConfigError, match=r"AutoRoundConfig\.to_quant_block_names"):
            AutoRoundConfig(to_quant_block_names=wrong)
    for other in ({"white_list": ["lm_head"]}, {"quant_lm_head": True}):
        with pytest.raises(ConfigError, match="leave out one"):
            AutoRoundConfig(to_quant_block_names="model.layers", **other)


def test_a_run_fn_beside_the_dataset_is_refused(llama):
    with pytest.raises(ConfigError, match=r"run_fn and AutoRoundConfig\.dataset both give data; pass one of them"):
        quantize(llama, AutoRoundConfig(**SMALL, dataset=[ids()]), run_fn=lambda model: model(ids()))
    assert not hasattr(llama, "_prepared")
