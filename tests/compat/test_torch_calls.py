"""Calls of the 3.x API for PyTorch as its documentation spells them."""

import importlib
import logging

import pytest
import torch
from torch import nn

from neural_compressor.config import ComposedConfig
from neural_compressor.config.composed import config_of
from neural_compressor.errors import ConfigError
from neural_compressor.torch.export import export
from neural_compressor.torch.quantization import (
    AWQConfig,
    FP8Config,
    GPTQConfig,
    RTNConfig,
    StaticQuantConfig,
    TEQConfig,
    TuningConfig,
    autotune,
    convert,
    get_all_config_set,
    get_default_AutoRound_config,
    get_default_gptq_config,
    get_default_qat_module_mappings,
    get_default_rtn_config,
    load,
    prepare,
    prepare_qat,
    quantize,
)
from neural_compressor.torch.quantization.config import get_rtn_double_quant_config_set
from neural_compressor.torch.utils import ProcessorType, SaveLoadFormat


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).eval()


def bits(model):
    return [model[place].scheme.weight.dtype.bits for place in (0, 2)]


@pytest.mark.parametrize("name", ["autotune", "quantize"])
def test_a_function_and_the_module_of_its_name(name):
    package = importlib.import_module("neural_compressor.torch.quantization")
    module = importlib.import_module(f"neural_compressor.torch.quantization.{name}")
    assert getattr(module, name) is getattr(package, name)
    assert callable(getattr(package, name))


def test_settings_by_algorithm():
    model = quantize(net(), {"rtn": {"bits": 8, "group_size": 16, "white_list": ["0"]}, "hqq": {"bits": 4}}, quiet=True)
    assert bits(model) == [8, 4]
    with pytest.raises(ConfigError, match="'rtm' is none; did you mean 'rtn'"):
        quantize(net(), {"rtm": {}})
    with pytest.raises(ConfigError, match="quant_config is a dict"):
        quantize(net(), {})


def test_a_list_is_a_sum():
    parts = [RTNConfig(bits=8, white_list=["2"]), RTNConfig(bits=4, white_list=["0"])]
    execution = prepare(net(), parts)._prepared.execution
    direct = prepare(net(), parts[0] + parts[1])._prepared.execution
    assert execution.plan == direct.plan


@pytest.mark.parametrize("local", [{"2": {"dtype": "fp32"}}, {"Linear": {"bits": 8}}, {}])
def test_global_and_local_settings_are_read(local):
    read = RTNConfig.from_dict({"global": {"bits": 2, "group_size": 16}, "local": local})
    built = RTNConfig(bits=2, group_size=16)
    for name, each in local.items():
        built.set_local(name, RTNConfig(**each))
    assert read.identity == built.identity
    assert RTNConfig.from_dict(read.to_dict()).identity == built.identity
    with pytest.raises(ConfigError, match="mappings"):
        RTNConfig.from_dict({"global": 3})


def test_the_data_type_wins_over_bits(caplog):
    with caplog.at_level(logging.WARNING, "neural_compressor"):
        config = RTNConfig(bits=4, dtype="int8")
    assert "bits=4 is not read" in caplog.text
    assert config.weight_scheme().dtype.name == "int8"
    assert config.bits == 8


@pytest.mark.parametrize("default", [get_default_rtn_config, get_default_gptq_config, get_default_AutoRound_config])
def test_processor_types(default):
    assert default("Server").identity == default(processor_type="client").identity == default().identity
    assert default(ProcessorType.Client).identity == default().identity
    with pytest.raises(ConfigError, match="processor_type: got 'mainframe'"):
        default("mainframe")


def test_questions_about_a_configuration():
    config = RTNConfig(bits=8).set_local("2", RTNConfig(bits=4))
    assert RTNConfig.params_list[:3] == ["dtype", "bits", "use_sym"]
    assert config.to_diff_dict() == {"bits": 8}
    info = RTNConfig.get_model_info(net())
    assert info == [("0", "Linear"), ("2", "Linear")]
    assert {key: each.bits for key, each in config.to_config_mapping(model_info=info).items()} == {
        ("0", "Linear"): 8,
        ("2", "Linear"): 4,
    }
    pair = [RTNConfig(white_list=["0"]), GPTQConfig(white_list=["2"])]
    assert [type(each) for each in config.to_config_mapping(pair, info).values()] == [RTNConfig, GPTQConfig]
    assert set(RTNConfig.get_predefined_configs()) == {"client", "server"} == set(ProcessorType)
    assert {rule: each.bits for rule, each in config.local_config.items()} == {"2": 4}


def test_questions_about_a_sum():
    both = RTNConfig(bits=8) + GPTQConfig(white_list=["2"])
    info = both.get_model_info(net())
    assert info == RTNConfig.get_model_info(net())
    assert [type(each) for each in both.to_config_mapping(model_info=info).values()] == [RTNConfig, GPTQConfig]
    assert [each.name for each in both.config_list] == ["rtn", "gptq"]


def test_sets_to_tune_over(tmp_path):
    assert all(isinstance(each, RTNConfig) for each in RTNConfig.get_config_set_for_tuning())
    assert len(StaticQuantConfig.get_config_set_for_tuning()) == 1
    assert {each.name for each in get_all_config_set()} >= {"rtn", "gptq", "awq", "fp8_quant"}
    tuned = autotune(
        net(),
        TuningConfig(config_set=get_rtn_double_quant_config_set(), workspace=tmp_path),
        lambda model: 1.0,
        quiet=True,
    )
    assert bits(tuned) == [4, 4]


def test_a_model_saves_itself_in_any_format(tmp_path):
    model = quantize(net(), RTNConfig(group_size=32), quiet=True)
    model.save(tmp_path / "ours")
    assert (tmp_path / "ours" / "qconfig.json").is_file()
    with pytest.raises(ConfigError, match="unknown format 'huggingfac'"):
        model.save(tmp_path / "theirs", format="huggingfac")
    transformers = pytest.importorskip("transformers", reason="the transformers extra is not installed")
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2)).eval()
    llama = quantize(llama, RTNConfig(group_size=32), quiet=True)
    llama.save(tmp_path / "theirs", format="huggingface")
    read = load(tmp_path / "theirs", format="huggingface")
    llama.save(output_dir=tmp_path / "same", format=SaveLoadFormat.VLLM)
    assert (tmp_path / "same" / "config.json").read_bytes() == (tmp_path / "theirs" / "config.json").read_bytes()
    load(tmp_path / "same", format=SaveLoadFormat.HUGGINGFACE)
    with pytest.raises(ConfigError, match="checkpoint_dir and output_dir"):
        llama.save(tmp_path / "one", output_dir=tmp_path / "other")
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(read(ids).logits, llama(ids).logits, rtol=0.02, atol=0.02)


def test_calls_of_exported_models_name_their_inputs(tmp_path, caplog):
    example = (torch.randn(2, 32),)
    graph = export(net(), example)
    model = autotune(
        graph,
        TuningConfig(StaticQuantConfig(), workspace=tmp_path),
        lambda model: 1.0,
        run_fn=lambda model: model(*example),
        example_inputs=example,
        quiet=True,
    )
    assert "autotune does not use example_inputs" in caplog.text
    model.save(example_inputs=example, output_dir=tmp_path / "graph")
    assert torch.equal(load(tmp_path / "graph")(*example), model(*example))


def test_fp8_aware_gptq_is_another_configuration():
    assert GPTQConfig(fp8_aware=False) == GPTQConfig()
    with pytest.raises(ConfigError, match=r"HybridGPTQConfig\(\)"):
        GPTQConfig(fp8_aware=True)


def test_lists_of_programs_for_hpu_name_types_that_no_model_here_has(caplog):
    config = FP8Config(scale_method="unit_scale", allowlist={"types": ["Linear", "VLLMKVCache", "LinearAllreduce"]})
    assert all(type(convert(net(), config, quiet=True)[place]).__name__ == "QuantLinear" for place in (0, 2))
    assert "LinearAllreduce is a type of programs for HPU" in caplog.text
    with pytest.raises(ConfigError, match="'Linaer' among the types matches no op"):
        prepare(net(), FP8Config(allowlist={"types": ["Linear", "Linaer"]}))


@pytest.mark.parametrize(("reached", "met"), [(0.5, False), (1.0, True)])
def test_a_gain_may_be_asked_for(tmp_path, reached, met):
    config = TuningConfig(config_set=[RTNConfig()], tolerable_loss=-1, workspace=tmp_path)
    tuned = autotune(net(), config, lambda model: 0.5 if type(model[0]) is nn.Linear else reached, quiet=True)
    assert tuned.tuning.met is met
    assert "where a gain of 100.0% is asked for" in tuned.tuning.verdict


@pytest.mark.parametrize(("config", "field"), [(AWQConfig, "absorb_layer_dict"), (TEQConfig, "absorb_to_layer")])
def test_a_layer_as_absorber(config, field):
    def scaled(**fields):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).eval()
        model = prepare(model, config(group_size=16, **fields))
        for seed in range(4):
            model(torch.randn(8, 32, generator=torch.Generator().manual_seed(seed)) * torch.linspace(0.1, 4, 32))
        return convert(model, quiet=True)

    x = torch.randn(4, 32)
    named = scaled(folding=False, **{field: {"0": ["1"]}})
    assert torch.equal(named(x), scaled(folding=False)(x))
    with pytest.raises(ConfigError, match=r"cannot take up a scale.*folding=False"):
        scaled(folding=True, **{field: {"0": ["1"]}})


def test_fp8_by_the_name_of_static_quantization():
    made = StaticQuantConfig(fp8_config="E4M3", scale_method="MAXABS_POW2", scale_format="CONST", mod_dict={})
    assert isinstance(made, FP8Config)
    assert (made.fp8_config, made.scale_method, made.scale_format) == ("E4M3", "maxabs_pow2", "const")
    assert (made.measure, made.quantize) == (True, True)
    assert (FP8Config(mode="MEASURE").measure, FP8Config(mode="MEASURE").quantize) == (True, False)
    assert (FP8Config(mode="QUANTIZE").measure, FP8Config(mode="QUANTIZE").quantize) == (False, True)
    assert FP8Config(measure_on_hpu=True, scale_params={"input_backoff": 0.5}).scale_params == {"input_backoff": 0.5}
    with pytest.raises(ConfigError, match="mod_dict"):
        FP8Config(mod_dict={"PatchedLinear": "linear"})


def test_settings_as_they_are_written(tmp_path):
    config = RTNConfig(bits=8).set_local("fc1", RTNConfig(bits=2)).set_local(nn.Conv1d, GPTQConfig())
    written = config.to_dict()
    assert written["global"]["bits"] == 8
    assert list(written["local"]) == ["fc1", "Conv1d"]
    assert written["local"]["fc1"]["bits"] == 2
    both = RTNConfig(white_list=["fc1"]) + GPTQConfig(white_list=["fc2"])
    assert set(both.to_dict()) - {"config"} == {"rtn", "gptq"}
    twice = RTNConfig(white_list=["fc1"]) + RTNConfig(bits=2, white_list=["fc2"])
    for each in (config, both, twice, RTNConfig()):
        each.to_json_file(tmp_path / "config.json")
        assert type(each).from_json_file(tmp_path / "config.json").identity == each.identity
    theirs = {"rtn": {"global": {"bits": 4}, "local": {"fc1": {"bits": 8}}}, "gptq": {"bits": 3}}
    read = ComposedConfig.from_dict(theirs, {"rtn": RTNConfig, "gptq": GPTQConfig})
    assert read.identity == (RTNConfig(bits=4).set_local("fc1", RTNConfig(bits=8)) + GPTQConfig(bits=3)).identity
    assert config_of(theirs, "torch").identity == read.identity
    with pytest.raises(ConfigError, match="config_registry"):
        ComposedConfig.from_dict(theirs)
    with pytest.raises(ConfigError, match="unknown algorithm 'gptq'"):
        ComposedConfig.from_dict(theirs, {"rtn": RTNConfig})
    with pytest.raises(ConfigError, match="local rule for 'fc1' is 8"):
        RTNConfig.from_dict({"local": {"fc1": 8}})


@pytest.mark.parametrize("kind", [type(each) for each in get_all_config_set()], ids=lambda kind: kind.__name__)
def test_questions_that_every_configuration_answers(kind):
    config = kind()
    assert config.params_list == [name for name in kind.model_fields if name not in ("white_list", "local")]
    assert config.to_diff_dict() == {}
    assert all(isinstance(each, kind) for each in kind.get_config_set_for_tuning())
    assert set(kind.get_predefined_configs()) == {"client", "server"}
    info = kind.get_model_info(net())
    assert set(config.to_config_mapping([config], info)) == set(info)
    assert kind.from_dict(config.to_dict()).identity == config.identity


def test_arguments_by_name(tmp_path):
    config = RTNConfig().set_local(operator_name_or_list="fc1", config=RTNConfig(bits=8))
    config.to_json_file(filename=tmp_path / "config.json")
    assert RTNConfig.from_json_file(filename=tmp_path / "config.json") == config
    assert RTNConfig.from_dict(config_dict={"bits": 8}) == RTNConfig(bits=8)
    FP8Config().to_json_file(filename=tmp_path / "fp8.json")
    assert FP8Config.from_json_file(filename=tmp_path / "fp8.json").identity == FP8Config().identity
    both = (RTNConfig() + GPTQConfig()).set_local(operator_name_or_list=["fc2"], config=GPTQConfig(bits=8))
    assert ComposedConfig.from_dict(config_dict=both.to_dict()).identity == both.identity


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "mxfp8_e4m3"),
        ({"quant_config": {nn.Linear: "MXFP4"}}, "mxfp4"),
        ({"mapping": {nn.Linear: "MXFP4"}}, "mxfp4"),
    ],
)
def test_training_by_a_scheme(given, expected):
    model, x = net().train(), torch.randn(4, 32)
    prepare_qat(model, **given)  # in place: programs go on with the model they have
    model(x).square().sum().backward()
    assert model[0].parametrizations.weight.original.grad is not None
    assert {
        layer.scheme.weight.dtype.name for layer in convert(model.eval(), quiet=True) if hasattr(layer, "scheme")
    } == {expected}


def test_schemes_are_for_linear_layers():
    assert get_default_qat_module_mappings() == {nn.Linear: "MXFP8"}
    with pytest.raises(
        ConfigError, match="prepare_qat got its configuration twice, as 'quant_config' and as 'mapping'"
    ):
        prepare_qat(net(), StaticQuantConfig(), mapping={nn.Linear: "MXFP4"})
    with pytest.raises(ConfigError, match="other layers are trained with a configuration"):
        prepare_qat(net(), {nn.Conv2d: "MXFP4"})
